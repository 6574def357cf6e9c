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

IN_HALF_AN_HOUR = datetime.now(UTC) + timedelta(minutes=30)


@dataclass
class Session:
    service: FakeGoogleCalendar
    directory: Path
    state: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def ask(self, command: str, payload: dict[str, Any] | None = None, **config: Any) -> PluginResult:
        """Run one job, and apply its state as Ductile does: a fact replaces it, else it is merged."""
        response = ask(
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
        if response.kind == "ok" and response.state:
            is_fact = command in ("poll", "upcoming")
            self.state = response.state if is_fact else {**self.state, **response.state}
        return response

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
def session(tmp_path: Path) -> Iterator[Session]:
    with FakeGoogleCalendar() as service:
        session = Session(service, tmp_path)
        session.connect()
        yield session


def test_the_first_poll_emits_nothing(session: Session) -> None:
    session.service.put("a", "Standup", IN_HALF_AN_HOUR)
    assert session.ask("poll").events == []
    session.service.put("b", "Review", IN_HALF_AN_HOUR)
    (event,) = session.ask("poll").events
    assert event["type"] == "google_calendar.changed"
    assert (event["payload"]["id"], event["payload"]["summary"]) == ("b", "Review")


def test_existing_entries_can_be_wanted(session: Session) -> None:
    session.service.put("a", "Standup", IN_HALF_AN_HOUR)
    assert len(session.ask("poll", emit_existing=True).events) == 1


def test_changes_and_deletions_are_told_apart(session: Session) -> None:
    session.service.put("a", "Standup", IN_HALF_AN_HOUR)
    session.ask("poll")
    session.service.put("a", "Standup, moved", IN_HALF_AN_HOUR)
    assert session.ask("poll").event_types == ["google_calendar.changed"]
    session.service.delete("a")
    assert session.ask("poll").event_types == ["google_calendar.deleted"]
    unchanged = session.ask("poll")
    assert (unchanged.events, unchanged.state) == ([], {})


def test_all_pages_are_read(session: Session) -> None:
    session.service.page_size = 2
    session.ask("poll")
    for index in range(5):
        session.service.put(f"e{index}", "x", IN_HALF_AN_HOUR)
    assert [event["payload"]["id"] for event in session.ask("poll").events] == [
        f"e{index}" for index in range(5)
    ]


def test_a_forgotten_sync_token_leads_to_a_full_sync_without_repetitions(session: Session) -> None:
    """After a 410 only the entries that have changed meanwhile are emitted."""
    session.service.put("old", "Known", IN_HALF_AN_HOUR)
    session.ask("poll")
    session.service.put("new", "Meanwhile", IN_HALF_AN_HOUR)
    session.service.forget_tokens()
    response = session.ask("poll")
    assert [event["payload"]["id"] for event in response.events] == ["new"]
    assert "full sync" in response.answer["result"]
    assert session.ask("poll").events == []


def test_upcoming_entries_are_announced_once(session: Session) -> None:
    start = datetime.now(UTC) + timedelta(minutes=30)  # IN_HALF_AN_HOUR may be long ago by now
    session.service.put("soon", "Standup", start)
    session.service.put("later", "Review", start + timedelta(hours=5))
    session.service.put("running", "Lunch", datetime.now(UTC) - timedelta(minutes=10))
    response = session.ask("upcoming", {})
    assert [event["payload"]["id"] for event in response.events] == ["soon"]
    assert session.ask("upcoming", {}).events == []
    session.service.put("soon", "Standup", start + timedelta(minutes=5))
    assert len(session.ask("upcoming", {}).events) == 1, "it was moved"
    assert len(session.ask("upcoming", {"minutes": 600}).events) == 1
    assert session.ask("upcoming", {"minutes": -1}).failed_for_good("`minutes`")


ENTRY = {"summary": "Dentist", "start": "2026-03-01T09:00:00+01:00", "end": "2026-03-01T10:00:00+01:00"}


def test_an_entry_is_created_once(session: Session) -> None:
    """The plugin makes the id of an entry from the key, so that Google knows a repetition."""
    first = session.ask("create_event", {**ENTRY, "key": "k"}).answer["result"]
    repeated = session.ask("create_event", {**ENTRY, "key": "k"}).answer["result"]
    other = session.ask("create_event", {**ENTRY, "key": "l"}).answer["result"]
    assert (first["created"], repeated["created"], other["created"]) == (True, False, True)
    assert first["id"] == repeated["id"] != other["id"]
    assert len(session.service.entries) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"summary": " "}, "`summary` is missing"),
        ({"start": "tomorrow"}, "`start` has to be a date"),
        ({"end": "2026-03-01T10:00:00"}, "`end` has no time zone"),
    ],
)
def test_an_incomplete_entry_is_refused(session: Session, fields: dict[str, Any], message: str) -> None:
    assert session.ask("create_event", {**ENTRY, **fields}).failed_for_good(message)


def test_whole_days_and_named_zones_are_accepted(session: Session) -> None:
    session.ask("create_event", {"summary": "Trip", "start": "2026-03-01", "end": "2026-03-03"})
    times = {"start": "2026-03-01T09:00:00", "end": "2026-03-01T10:00:00", "time_zone": "Europe/Berlin"}
    session.ask("create_event", {"summary": "Call", "key": "z", **times})
    trip, call_ = session.service.entries.values()
    assert trip["start"] == {"date": "2026-03-01"}
    assert call_["start"] == {"dateTime": "2026-03-01T09:00:00", "timeZone": "Europe/Berlin"}


def test_a_token_is_renewed_and_the_refresh_token_stays(session: Session) -> None:
    """Google does not replace the refresh token."""
    refresh = session.state["oauth"]["grant"]["refresh_token"]
    session.ask("poll")
    session.service.expire_access_tokens()
    assert session.ask("poll").kind == "ok"
    assert session.state["oauth"]["grant"]["refresh_token"] == refresh
    assert session.state["sync_token"]


def test_a_withdrawn_grant_says_what_to_do(session: Session) -> None:
    session.service.revoke_grants()
    assert session.ask("poll").failed_for_good("ductile plugin authorize it")


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
def test_troubles_are_retried_and_refusals_are_not(session: Session, reply: Reply, retried: bool) -> None:
    session.service.fail_next(reply, path="/calendar")
    response = session.ask("poll")
    assert (response.kind, response.answer["retry"]) == ("error", retried)


def test_a_service_account_needs_no_user(session: Session) -> None:
    """The assertion is signed by RS256. The access token is kept for the next jobs."""
    session.use_service_account()
    assert session.ask("poll", subject="boss@example.com").kind == "ok"
    ((header, claims),) = session.service.assertions
    assert header == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert (claims["iss"], claims["sub"]) == ("robot@example.com", "boss@example.com")
    session.ask("poll")
    assert len(session.service.assertions) == 1
    session.service.expire_access_tokens()
    assert session.ask("poll").kind == "ok"


def test_a_clock_that_is_wrong_here_is_corrected(session: Session) -> None:
    """Google refuses assertions from another time; its response has the right time."""
    session.use_service_account()
    session.service.clock_offset = 7200
    response = session.ask("poll")
    assert response.kind == "ok"
    assert "the clock of this machine differs" in response.answer["logs"][0]["message"]


def test_an_account_is_connected_in_two_steps(session: Session) -> None:
    session.state = {}
    authorisation = session.ask("oauth_start", {"redirect_uri": "http://127.0.0.1:9/x"}).answer["result"]
    reply = call(Request({}), "GET", authorisation["url"])
    callback = dict(parse_qsl(urlsplit(reply.headers["location"]).query))
    assert session.ask("oauth_callback", callback).answer["result"] == "connected"
    assert session.ask("health").answer["result"] == "healthy, connected"
    assert session.ask("poll").kind == "ok"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"client_id": None}, "`client_id` and `client_secret`, or `service_account_file`"),
        ({"service_account_file": "/nowhere"}, "cannot be read"),
        ({"minutes": 0}, "`minutes`"),
        ({"token_url": "x"}, "`token_url`"),
    ],
)
def test_a_fault_in_the_configuration_ends_with_78(
    session: Session, config: dict[str, Any], message: str
) -> None:
    response = session.ask("health", **config)
    assert response.failed_for_good(message)
    assert response.exit_code == 78
