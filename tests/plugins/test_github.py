"""github turns deliveries into events."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from builders.shipped import PluginResult, ask

PULL = {
    "action": "opened",
    "pull_request": {"number": 7, "title": "Mend it", "html_url": "https://github.com/o/r/pull/7"},
    "repository": {"full_name": "o/r"},
    "sender": {"login": "ada"},
}
PUSH = {"ref": "refs/heads/main", "compare": "https://github.com/o/r/compare/a...b", "commits": []}


def deliver(event: str | None, payload: dict[str, Any], **config: Any) -> PluginResult:
    headers = {} if event is None else {"x-github-event": event, "x-github-delivery": "d1"}
    return ask("github", "handle", config=config, payload=payload, event={"headers": headers})


def test_a_delivery_becomes_an_event_of_its_own_type() -> None:
    """The type is `github.<event>.<action>`, and the delivery id is the dedupe key."""
    response = deliver("pull_request", PULL)
    assert response.answer["result"] == "github.pull_request.opened"
    (event,) = response.events
    assert (event["type"], event["dedupe_key"]) == ("github.pull_request.opened", "d1")
    assert event["payload"] == {
        **PULL,
        "github": {
            "event": "pull_request",
            "action": "opened",
            "delivery": "d1",
            "repository": "o/r",
            "sender": "ada",
            "number": 7,
            "title": "Mend it",
            "url": "https://github.com/o/r/pull/7",
        },
    }


def test_an_event_without_action_has_a_short_type() -> None:
    (event,) = deliver("push", PUSH).events
    assert event["type"] == "github.push"
    assert event["payload"]["github"]["branch"] == "main"
    assert event["payload"]["github"]["url"] == PUSH["compare"]


def test_ping_is_answered_and_leads_to_nothing() -> None:
    response = deliver("ping", {"zen": "Keep it logically awesome.", "hook_id": 1})
    assert (response.answer["result"], response.events) == ("pong: Keep it logically awesome.", [])


def test_a_delivery_as_a_form_is_understood() -> None:
    """GitHub offers two content types; the listener passes what is not JSON as `body`."""
    response = deliver("pull_request", {"body": urlencode({"payload": json.dumps(PULL)})})
    assert response.event_types == ["github.pull_request.opened"]
    assert deliver("push", {"body": "payload=%7B"}).failed_for_good("form")


@pytest.mark.parametrize(
    ("config", "accepted"),
    [
        ({"events": ["pull_request"]}, True),
        ({"events": ["pull_request.opened"]}, True),
        ({"events": ["pull_request.closed", "push"]}, False),
        ({"repositories": ["o/r"]}, True),
        ({"repositories": ["o/other"]}, False),
    ],
)
def test_only_what_is_wanted_goes_on(config: dict[str, Any], accepted: bool) -> None:
    response = deliver("pull_request", PULL, **config)
    assert bool(response.events) is accepted
    assert response.answer["result"].startswith("github." if accepted else "passed over")


@pytest.mark.parametrize("event", [None, "", "Push Event", "../x"])
def test_a_request_that_is_no_delivery_is_refused(event: str | None) -> None:
    """The header becomes part of the type of the event, so it has to be a plain word."""
    assert deliver(event, PUSH).failed_for_good("x-github-event")


def test_an_odd_action_does_not_get_into_the_type() -> None:
    assert deliver("issues", {"action": "a b"}).event_types == ["github.issues"]
