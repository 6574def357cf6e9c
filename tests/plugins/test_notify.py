"""notify, with apprise itself and with a stand-in for it, both of which post to a real server.

The stand-in behaves as apprise 1, starts faster, and can raise an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builders.services import Reply, Service, a_service
from builders.shipped import PluginResult, ask

#: The part of apprise's interface that the plugin uses: `add` and `notify` return true or false.
APPRISE = """\
import json, urllib.request

class Apprise:
    def add(self, url):
        self.url = url
        return url.startswith("http://")

    def notify(self, body, title="", notify_type="info"):
        if "raise" in self.url:
            raise RuntimeError(self.url)
        data = json.dumps({"body": body, "title": title, "type": notify_type}).encode()
        try:
            return urllib.request.urlopen(self.url, data=data).status == 200
        except OSError:
            return False
"""


@dataclass
class Notifications:
    service: Service
    packages: Path
    state: dict[str, Any] = field(default_factory=dict)

    def notify(
        self, payload: dict[str, Any], *paths: str, event: dict[str, Any] | None = None, **config: Any
    ) -> PluginResult:
        urls = [self.service.url + path for path in paths or ("/a",)]
        response = ask(
            "notify",
            "handle",
            config={"secret_urls": urls, **config},
            payload=payload,
            event=event,
            state=self.state,
            environ={"PYTHONPATH": str(self.packages)},
        )
        self.state |= response.state
        return response

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.service.requests]


@pytest.fixture
def notifications(tmp_path: Path) -> Iterator[Notifications]:
    (tmp_path / "apprise.py").write_text(APPRISE)
    with a_service(lambda request: Reply(status=500 if "bad" in request.path else 200)) as service:
        yield Notifications(service, tmp_path)


def test_a_message_reaches_every_address(notifications: Notifications) -> None:
    response = notifications.notify({"message": "hi", "title": "t", "type": "warning"}, "/a", "/b")
    assert response.answer["result"] == "sent to 2 of 2"
    assert notifications.messages == [{"body": "hi", "title": "t", "type": "warning"}] * 2


def test_a_redelivery_does_not_notify_twice(notifications: Notifications) -> None:
    """The ids of sent messages are kept in the state."""
    notifications.notify({"message": "hi"})
    repeated = notifications.notify({"message": "hi"})
    assert (repeated.answer["result"], repeated.state) == ("sent before", {})
    assert len(notifications.messages) == 1


def test_messages_are_the_same_by_id_key_or_event(notifications: Notifications) -> None:
    """A message is known by its own id, else by the dedupe key of its event, else by the event."""
    notifications.notify({"message": "hi", "id": "1"}, event={"dedupe_key": "k"})
    notifications.notify({"message": "hi", "id": "1"})
    notifications.notify({"message": "hi"}, event={"dedupe_key": "k"})
    notifications.notify({"message": "hi"}, event={"dedupe_key": "k"})
    notifications.notify({"message": "hi"})
    assert notifications.state["sent"] == ["1", "k", "e1"]
    assert len(notifications.messages) == 3


def test_the_memory_is_bounded(notifications: Notifications) -> None:
    """The state keeps the latest ids only."""
    for number in range(4):
        notifications.notify({"message": "hi", "id": str(number)}, remember=2)
    assert notifications.state["sent"] == ["2", "3"]


def test_an_undelivered_message_is_tried_again_and_not_remembered(notifications: Notifications) -> None:
    response = notifications.notify({"message": "hi"}, "/bad", "/raise")
    assert response.may_be_tried_again("no address took the message")
    assert response.state == {}


def test_one_address_that_fails_does_not_make_the_others_ring_twice(notifications: Notifications) -> None:
    response = notifications.notify({"message": "hi"}, "/bad", "/a")
    assert response.answer["result"] == "sent to 1 of 2"
    assert response.answer["logs"] == [
        {"level": "error", "message": "secret_urls[0] did not take the message"}
    ]
    assert notifications.state["sent"] == ["e1"]


def test_an_address_is_never_shown(notifications: Notifications) -> None:
    """An address, which has a token, is shown neither if it is unknown, nor if its service fails."""
    failed = notifications.notify({"message": "hi"}, "/raise-canary")
    unknown = ask(
        "notify",
        "health",
        config={"secret_urls": ["odd://canary"]},
        environ={"PYTHONPATH": str(notifications.packages)},
    )
    assert unknown.failed_for_good("secret_urls[0]")
    for response in (failed, unknown):
        assert "canary" not in response.stderr + json.dumps(response.answer)


@pytest.mark.parametrize(
    ("payload", "body"),
    [({"text": "t"}, "t"), ({"message": " ", "result": "r"}, "r"), ({"a": 1}, '{\n  "a": 1\n}')],
)
def test_events_of_other_plugins_can_be_sent(
    notifications: Notifications, payload: dict[str, Any], body: str
) -> None:
    notifications.notify(payload, title="default")
    assert notifications.messages == [{"body": body, "title": "default", "type": "info"}]


def test_nothing_to_say_is_a_mistake(notifications: Notifications) -> None:
    assert notifications.notify({}).failed_for_good("nothing to say")


def test_without_apprise_it_says_what_to_install(tmp_path: Path) -> None:
    """The exit status 78 is a permanent failure."""
    (tmp_path / "apprise.py").write_text("raise ImportError\n")
    response = ask(
        "notify",
        "handle",
        config={"secret_urls": ["json://localhost"]},
        payload={"message": "hi"},
        environ={"PYTHONPATH": str(tmp_path)},
    )
    assert (response.kind, response.exit_code) == ("config", 78)
    assert "pip install apprise" in response.stderr


@pytest.mark.parametrize("urls", [None, [], [5], {}])
def test_invalid_addresses_are_reported(urls: Any) -> None:
    assert ask("notify", "health", config={"secret_urls": urls}).failed_for_good("`secret_urls`")


def run_with_apprise(command: str, *urls: str) -> PluginResult:
    """Run the plugin with the interpreter of the tests, for which the package apprise is installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    config = {"secret_urls": list(urls)}
    payload = {"message": "hi", "title": "t", "type": "warning"}
    return ask("notify", command, config=config, payload=payload, environ={"PATH": path})


def apprise_url(service: Service, path: str) -> str:
    """Return an address in the syntax of apprise, to which it posts messages as JSON."""
    return service.url.replace("http://", "json://") + path


def test_apprise_sends_it_and_is_believed(notifications: Notifications) -> None:
    response = run_with_apprise(
        "handle", apprise_url(notifications.service, "/a"), apprise_url(notifications.service, "/bad")
    )
    assert response.answer["result"] == "sent to 1 of 2"
    assert response.answer["logs"] == [
        {"level": "error", "message": "secret_urls[1] did not take the message"}
    ]
    assert response.state == {"sent": ["e1"]}
    assert [request.path for request in notifications.service.requests] == ["/a", "/bad"]
    for message in notifications.messages:
        assert (message["message"], message["title"], message["type"]) == ("hi", "t", "warning")


def test_apprise_understands_an_address_without_sending(notifications: Notifications) -> None:
    assert (
        run_with_apprise("health", apprise_url(notifications.service, "/a")).answer["result"]
        == "healthy, 1 addresses"
    )
    assert notifications.messages == []


def test_a_message_apprise_could_not_send_is_retried_without_its_address(
    notifications: Notifications,
) -> None:
    refused = run_with_apprise("handle", apprise_url(notifications.service, "/bad-canary"))
    unreachable = run_with_apprise("handle", "json://canary:canary@127.0.0.1:1/canary")
    unknown = run_with_apprise("handle", "odd://canary")
    for response in (refused, unreachable):
        assert response.may_be_tried_again("no address took the message")
    assert unknown.failed_for_good("secret_urls[0]")
    for response in (refused, unreachable, unknown):
        assert "canary" not in response.stderr + json.dumps(response.answer)
