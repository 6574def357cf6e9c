"""google_calendar against a fake of the Calendar API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import rs256
from ductile_http import call
from ductile_sdk import Request

from builders.rsa import KEY
from builders.shipped import PluginResult, ask
from fakes.google_calendar import FakeGoogleCalendar, failed
from fakes.service import Reply

SOON = datetime.now(UTC) + timedelta(minutes=30)


@dataclass
class Calendar:
    service: FakeGoogleCalendar
    directory: Path
    state: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def ask(self, command: str, payload: dict[str, Any] | None = None, **config: Any) -> PluginResult:
        """One job. Its state is applied as Ductile does it: a fact replaces it, else it is merged."""
        said = ask(
            "google_calendar",
            command,
            config={
                "client_id": self.service.client_id,
                "client_secret": self.service.client_secret,
                "base_url": self.service.url + self.service.base_path,
                "auth_url": self.service.url,
                "token_url": self.service.url,
                **self.config,
                **config,
            },
            state=self.state,
            payload=payload,
            environ={"DUCTILE_DATA_DIR": str(self.directory / "data")},
        )
        if said.kind == "ok" and said.state:
            is_fact = command in ("poll", "upcoming")
            self.state = said.state if is_fact else {**self.state, **said.state}
        return said

    def connect(self) -> None:
        access, refresh = self.service.new_grant()
        grant = {"id": "g", "number": 1, "access_token": access, "refresh_token": refresh}
        self.state = {"oauth": {"grant": {**grant, "token_expires_at": time.time() + 3599}}}

    def use_service_account(self) -> None:
        account = {"client_email": "robot@example.com", "private_key": KEY, "private_key_id": "k1"}
        file = self.directory / "account.json"
        file.write_text(json.dumps(account))
        self.state, self.config = {}, {"service_account_file": str(file)}
        key = rs256.read_key(KEY)
        self.service.verify = lambda signed, signature: rs256.sign(key, signed) == signature


@pytest.fixture
def calendar(tmp_path: Path) -> Iterator[Calendar]:
    with FakeGoogleCalendar() as service:
        it = Calendar(service, tmp_path)
        it.connect()
        yield it


def test_the_first_poll_only_notes_where_it_begins(calendar: Calendar) -> None:
    calendar.service.put("a", "Standup", SOON)
    assert calendar.ask("poll").events == []
    calendar.service.put("b", "Review", SOON)
    (event,) = calendar.ask("poll").events
    assert event["type"] == "google_calendar.changed"
    assert (event["payload"]["id"], event["payload"]["summary"]) == ("b", "Review")


def test_existing_entries_can_be_wanted(calendar: Calendar) -> None:
    calendar.service.put("a", "Standup", SOON)
    assert len(calendar.ask("poll", emit_existing=True).events) == 1


def test_changes_and_deletions_are_told_apart(calendar: Calendar) -> None:
    calendar.service.put("a", "Standup", SOON)
    calendar.ask("poll")
    calendar.service.put("a", "Standup, moved", SOON)
    assert calendar.ask("poll").event_types == ["google_calendar.changed"]
    calendar.service.delete("a")
    assert calendar.ask("poll").event_types == ["google_calendar.deleted"]
    quiet = calendar.ask("poll")
    assert (quiet.events, quiet.state) == ([], {})


def test_all_pages_are_read(calendar: Calendar) -> None:
    calendar.service.page_size = 2
    calendar.ask("poll")
    for index in range(5):
        calendar.service.put(f"e{index}", "x", SOON)
    assert [event["payload"]["id"] for event in calendar.ask("poll").events] == [f"e{i}" for i in range(5)]


def test_a_forgotten_sync_token_leads_to_a_full_sync_without_repetitions(calendar: Calendar) -> None:
    """410 Gone. What was known before is not emitted again, what changed meanwhile is."""
    calendar.service.put("old", "Known", SOON)
    calendar.ask("poll")
    calendar.service.put("new", "Meanwhile", SOON)
    calendar.service.forget_tokens()
    said = calendar.ask("poll")
    assert [event["payload"]["id"] for event in said.events] == ["new"]
    assert "full sync" in said.answer["result"]
    assert calendar.ask("poll").events == []


def test_upcoming_entries_are_announced_once(calendar: Calendar) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=30)  # SOON may be long ago by now
    calendar.service.put("soon", "Standup", soon)
    calendar.service.put("later", "Review", soon + timedelta(hours=5))
    calendar.service.put("running", "Lunch", datetime.now(UTC) - timedelta(minutes=10))
    said = calendar.ask("upcoming", {})
    assert [event["payload"]["id"] for event in said.events] == ["soon"]
    assert calendar.ask("upcoming", {}).events == []
    calendar.service.put("soon", "Standup", soon + timedelta(minutes=5))
    assert len(calendar.ask("upcoming", {}).events) == 1, "it was moved"
    assert len(calendar.ask("upcoming", {"minutes": 600}).events) == 1
    assert calendar.ask("upcoming", {"minutes": -1}).failed_for_good("`minutes`")


ENTRY = {"summary": "Dentist", "start": "2026-03-01T09:00:00+01:00", "end": "2026-03-01T10:00:00+01:00"}


def test_an_entry_is_created_once(calendar: Calendar) -> None:
    """Its id is made of the key, by us, so that Google knows a repetition."""
    first = calendar.ask("create_event", {**ENTRY, "key": "k"}).answer["result"]
    again = calendar.ask("create_event", {**ENTRY, "key": "k"}).answer["result"]
    other = calendar.ask("create_event", {**ENTRY, "key": "l"}).answer["result"]
    assert (first["created"], again["created"], other["created"]) == (True, False, True)
    assert first["id"] == again["id"] != other["id"]
    assert len(calendar.service.entries) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"summary": " "}, "`summary` is missing"),
        ({"start": "tomorrow"}, "`start` has to be a date"),
        ({"end": "2026-03-01T10:00:00"}, "`end` has no time zone"),
    ],
)
def test_an_incomplete_entry_is_refused(calendar: Calendar, change: dict[str, Any], words: str) -> None:
    assert calendar.ask("create_event", {**ENTRY, **change}).failed_for_good(words)


def test_whole_days_and_named_zones_are_accepted(calendar: Calendar) -> None:
    calendar.ask("create_event", {"summary": "Trip", "start": "2026-03-01", "end": "2026-03-03"})
    zoned = {"start": "2026-03-01T09:00:00", "end": "2026-03-01T10:00:00", "time_zone": "Europe/Berlin"}
    calendar.ask("create_event", {"summary": "Call", "key": "z", **zoned})
    days, call_ = calendar.service.entries.values()
    assert days["start"] == {"date": "2026-03-01"}
    assert call_["start"] == {"dateTime": "2026-03-01T09:00:00", "timeZone": "Europe/Berlin"}


def test_a_token_is_renewed_and_the_refresh_token_stays(calendar: Calendar) -> None:
    """Google does not replace it."""
    refresh = calendar.state["oauth"]["grant"]["refresh_token"]
    calendar.ask("poll")
    calendar.service.expire_access_tokens()
    assert calendar.ask("poll").kind == "ok"
    assert calendar.state["oauth"]["grant"]["refresh_token"] == refresh
    assert calendar.state["sync_token"]


def test_a_withdrawn_grant_says_what_to_do(calendar: Calendar) -> None:
    calendar.service.revoke_grants()
    assert calendar.ask("poll").failed_for_good("ductile plugin authorize it")


@pytest.mark.parametrize(
    ("reply", "retried"),
    [
        (failed(403, "rateLimitExceeded", "Rate Limit Exceeded"), True),
        (failed(403, "forbidden", "Forbidden"), False),
        (failed(404, "notFound", "Not Found"), False),
        (failed(500, "backendError", "Backend Error"), True),
        (Reply({}, 429, {"Retry-After": "600"}), True),
    ],
)
def test_troubles_are_retried_and_refusals_are_not(calendar: Calendar, reply: Reply, retried: bool) -> None:
    calendar.service.fail_next(reply, path="/calendar")
    said = calendar.ask("poll")
    assert (said.kind, said.answer["retry"]) == ("error", retried)


def test_a_service_account_needs_no_user(calendar: Calendar) -> None:
    """Its assertion is signed by RS256. The access token is kept for the next jobs."""
    calendar.use_service_account()
    assert calendar.ask("poll", subject="boss@example.com").kind == "ok"
    ((header, claims),) = calendar.service.assertions
    assert header == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert (claims["iss"], claims["sub"]) == ("robot@example.com", "boss@example.com")
    calendar.ask("poll")
    assert len(calendar.service.assertions) == 1
    calendar.service.expire_access_tokens()
    assert calendar.ask("poll").kind == "ok"


def test_a_clock_that_is_wrong_here_is_corrected(calendar: Calendar) -> None:
    """Google refuses assertions from another time; its own time is in the answer."""
    calendar.use_service_account()
    calendar.service.clock_offset = 7200
    said = calendar.ask("poll")
    assert said.kind == "ok"
    assert "the clock of this machine differs" in said.answer["logs"][0]["message"]


def test_an_account_is_connected_in_two_steps(calendar: Calendar) -> None:
    calendar.state = {}
    started = calendar.ask("oauth_start", {"redirect_uri": "http://127.0.0.1:9/x"}).answer["result"]
    answer = call(Request({}), "GET", started["url"])
    back = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    assert calendar.ask("oauth_callback", back).answer["result"] == "connected"
    assert calendar.ask("health").answer["result"] == "healthy, connected"
    assert calendar.ask("poll").kind == "ok"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"client_id": None}, "`client_id` and `client_secret`, or `service_account_file`"),
        ({"service_account_file": "/nowhere"}, "cannot be read"),
        ({"minutes": 0}, "`minutes`"),
        ({"token_url": "x"}, "`token_url`"),
    ],
)
def test_a_fault_in_the_configuration_ends_with_78(
    calendar: Calendar, config: dict[str, Any], words: str
) -> None:
    said = calendar.ask("health", **config)
    assert said.failed_for_good(words)
    assert said.exit_code == 78
