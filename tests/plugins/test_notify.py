"""notify, with apprise itself and with a stand-in for it, both of which post to a real server.

The stand-in answers as apprise 1 did, starts sooner, and can be set to raise.
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

#: What of apprise's interface is used: add and notify answer true or false.
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
class People:
    service: Service
    packages: Path
    state: dict[str, Any] = field(default_factory=dict)

    def tell(
        self, payload: dict[str, Any], *paths: str, event: dict[str, Any] | None = None, **config: Any
    ) -> PluginResult:
        urls = [self.service.url + path for path in paths or ("/a",)]
        said = ask(
            "notify",
            "handle",
            config={"secret_urls": urls, **config},
            payload=payload,
            event=event,
            state=self.state,
            environ={"PYTHONPATH": str(self.packages)},
        )
        self.state |= said.state
        return said

    @property
    def got(self) -> list[dict[str, Any]]:
        return [json.loads(asked.body) for asked in self.service.requests]


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    (tmp_path / "apprise.py").write_text(APPRISE)
    with a_service(lambda asked: Reply(status=500 if "bad" in asked.path else 200)) as service:
        yield People(service, tmp_path)


def test_a_message_reaches_every_address(people: People) -> None:
    said = people.tell({"message": "hi", "title": "t", "type": "warning"}, "/a", "/b")
    assert said.answer["result"] == "sent to 2 of 2"
    assert people.got == [{"body": "hi", "title": "t", "type": "warning"}] * 2


def test_a_redelivery_does_not_notify_twice(people: People) -> None:
    """Sent ids are kept in state."""
    people.tell({"message": "hi"})
    again = people.tell({"message": "hi"})
    assert (again.answer["result"], again.state) == ("sent before", {})
    assert len(people.got) == 1


def test_messages_are_the_same_by_id_key_or_event(people: People) -> None:
    """Its own id, else the event's key, else the event."""
    people.tell({"message": "hi", "id": "1"}, event={"dedupe_key": "k"})
    people.tell({"message": "hi", "id": "1"})
    people.tell({"message": "hi"}, event={"dedupe_key": "k"})
    people.tell({"message": "hi"}, event={"dedupe_key": "k"})
    people.tell({"message": "hi"})
    assert people.state["sent"] == ["1", "k", "e1"]
    assert len(people.got) == 3


def test_the_memory_is_bounded(people: People) -> None:
    """State has a limit."""
    for number in range(4):
        people.tell({"message": "hi", "id": str(number)}, remember=2)
    assert people.state["sent"] == ["2", "3"]


def test_an_undelivered_message_is_tried_again_and_not_remembered(people: People) -> None:
    said = people.tell({"message": "hi"}, "/bad", "/raise")
    assert said.may_be_tried_again("no address took the message")
    assert said.state == {}


def test_one_address_that_fails_does_not_make_the_others_ring_twice(people: People) -> None:
    said = people.tell({"message": "hi"}, "/bad", "/a")
    assert said.answer["result"] == "sent to 1 of 2"
    assert said.answer["logs"] == [{"level": "error", "message": "secret_urls[0] did not take the message"}]
    assert people.state["sent"] == ["e1"]


def test_an_address_is_never_shown(people: People) -> None:
    """It holds a token. Neither when it is not understood, nor when its service fails."""
    failed = people.tell({"message": "hi"}, "/raise-canary")
    odd = ask(
        "notify",
        "health",
        config={"secret_urls": ["odd://canary"]},
        environ={"PYTHONPATH": str(people.packages)},
    )
    assert odd.failed_for_good("secret_urls[0]")
    for said in (failed, odd):
        assert "canary" not in said.stderr + json.dumps(said.answer)


@pytest.mark.parametrize(
    ("payload", "body"),
    [({"text": "t"}, "t"), ({"message": " ", "result": "r"}, "r"), ({"a": 1}, '{\n  "a": 1\n}')],
)
def test_events_of_other_plugins_can_be_sent(people: People, payload: dict[str, Any], body: str) -> None:
    people.tell(payload, title="default")
    assert people.got == [{"body": body, "title": "default", "type": "info"}]


def test_nothing_to_say_is_a_mistake(people: People) -> None:
    assert people.tell({}).failed_for_good("nothing to say")


def test_without_apprise_it_says_what_to_install(tmp_path: Path) -> None:
    """Exit 78, which is permanent."""
    (tmp_path / "apprise.py").write_text("raise ImportError\n")
    said = ask(
        "notify",
        "handle",
        config={"secret_urls": ["json://localhost"]},
        payload={"message": "hi"},
        environ={"PYTHONPATH": str(tmp_path)},
    )
    assert (said.kind, said.exit_code) == ("config", 78)
    assert "pip install apprise" in said.stderr


@pytest.mark.parametrize("urls", [None, [], [5], {}])
def test_invalid_addresses_are_reported(urls: Any) -> None:
    assert ask("notify", "health", config={"secret_urls": urls}).failed_for_good("`secret_urls`")


def with_apprise(command: str, *urls: str) -> PluginResult:
    """With the package itself, which is installed where the tests run: `python3` is that interpreter then."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    config = {"secret_urls": list(urls)}
    payload = {"message": "hi", "title": "t", "type": "warning"}
    return ask("notify", command, config=config, payload=payload, environ={"PATH": path})


def at(service: Service, path: str) -> str:
    """An address as apprise writes it: it posts its messages as JSON."""
    return service.url.replace("http://", "json://") + path


def test_apprise_sends_it_and_is_believed(people: People) -> None:
    said = with_apprise("handle", at(people.service, "/a"), at(people.service, "/bad"))
    assert said.answer["result"] == "sent to 1 of 2"
    assert said.answer["logs"] == [{"level": "error", "message": "secret_urls[1] did not take the message"}]
    assert said.state == {"sent": ["e1"]}
    assert [asked.path for asked in people.service.requests] == ["/a", "/bad"]
    for got in people.got:
        assert (got["message"], got["title"], got["type"]) == ("hi", "t", "warning")


def test_apprise_understands_an_address_without_sending(people: People) -> None:
    assert with_apprise("health", at(people.service, "/a")).answer["result"] == "healthy, 1 addresses"
    assert people.got == []


def test_a_message_apprise_could_not_send_is_retried_without_its_address(people: People) -> None:
    refused = with_apprise("handle", at(people.service, "/bad-canary"))
    unreachable = with_apprise("handle", "json://canary:canary@127.0.0.1:1/canary")
    odd = with_apprise("handle", "odd://canary")
    for said in (refused, unreachable):
        assert said.may_be_tried_again("no address took the message")
    assert odd.failed_for_good("secret_urls[0]")
    for said in (refused, unreachable, odd):
        assert "canary" not in said.stderr + json.dumps(said.answer)
