"""withings against a fake with its wire format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from ductile_http import call
from ductile_sdk import Request

from builders.shipped import PluginResult, ask
from fakes.service import Reply
from fakes.withings import FakeWithings, measure

HOOK = "https://example.com/hook?token=secret"


@dataclass
class Session:
    service: FakeWithings
    directory: Path
    state: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def ask(self, command: str, payload: dict[str, Any] | None = None, **config: Any) -> PluginResult:
        """Run one job, and apply its state as Ductile does: a fact replaces it, else it is merged."""
        response = ask(
            "withings",
            command,
            config={
                "client_id": self.service.client_id,
                "client_secret": self.service.client_secret,
                "base_url": self.service.url,
                "auth_url": self.service.url,
                **self.config,
                **config,
            },
            state=self.state,
            payload=payload,
            environ={"DUCTILE_DATA_DIR": str(self.directory)},
        )
        if response.kind == "ok" and response.state:
            is_fact = command in ("poll", "handle")
            self.state = response.state if is_fact else {**self.state, **response.state}
        return response

    def connect(self) -> None:
        access, refresh = self.service.new_grant()
        grant = {"id": "g", "number": 1, "access_token": access, "refresh_token": refresh}
        ends = time.time() + 10800
        self.state = {"oauth": {"grant": {**grant, "token_expires_at": ends, "userid": self.service.userid}}}


@pytest.fixture
def service() -> Iterator[FakeWithings]:
    with FakeWithings() as service:
        yield service


@pytest.fixture
def session(service: FakeWithings, tmp_path: Path) -> Session:
    session = Session(service, tmp_path / "data")
    session.connect()
    return session


def now() -> int:
    return int(time.time())


def test_each_measure_group_is_an_event_in_units(session: Session) -> None:
    """The value on the wire is an integer times a power of ten."""
    measured_at = now() - 3600
    group = session.service.weigh(72.345, measured_at, fat_ratio=21.5, pulse=61)
    response = session.ask("poll")
    (event,) = response.events
    assert (event["type"], event["dedupe_key"]) == (
        "withings.measure",
        f"withings:measure:{group['grpid']}:{measured_at}",
    )
    assert event["payload"]["measures"] == {
        "weight_kg": 72.345,
        "fat_ratio_percent": 21.5,
        "pulse_bpm": 61.0,
    }
    assert (event["payload"]["id"], event["payload"]["device"]) == (str(group["grpid"]), "Body+")


def test_a_measure_of_an_unknown_type_is_kept(session: Session) -> None:
    session.service.add_group([measure(999, 1.5, -1)], now())
    (event,) = session.ask("poll").events
    assert event["payload"]["measures"] == {"type_999": 1.5}


def test_sleep_and_activity_are_events(session: Session) -> None:
    session.service.sleep("2026-02-08", now() - 60, 7.5)
    session.service.walk("2026-02-08", 9000, now())
    response = session.ask("poll")
    assert response.event_types == ["withings.sleep", "withings.activity"]
    sleep_payload, activity_payload = (event["payload"] for event in response.events)
    assert (sleep_payload["date"], sleep_payload["sleep"]["total_sleep_time"]) == ("2026-02-08", 27000)
    assert (activity_payload["date"], activity_payload["activity"]["steps"]) == ("2026-02-08", 9000)


def test_only_what_is_wanted_is_asked_for(session: Session) -> None:
    session.ask("poll", data=["sleep"])
    assert {call_.path for call_ in session.service.calls} == {"/v2/sleep"}


def test_a_repeated_poll_emits_nothing_twice(session: Session) -> None:
    """Emitted events are known by the state, also within the overlapping time of two polls."""
    measured_at = now()
    session.service.weigh(80, measured_at)
    session.service.walk("2026-02-08", 100, measured_at)
    assert len(session.ask("poll").events) == 2
    repeated = session.ask("poll")
    assert (repeated.answer["result"], repeated.events, repeated.state) == ("0 new", [], {})
    session.service.weigh(81, measured_at)
    assert [event["payload"]["measures"]["weight_kg"] for event in session.ask("poll").events] == [81.0]


def test_a_corrected_measure_and_a_grown_day_are_emitted_again(session: Session) -> None:
    group = session.service.weigh(80, now() - 100)
    session.service.walk("2026-02-08", 100, now() - 100)
    session.ask("poll")
    group["measures"] = [measure(1, 79, -3)]
    group["modified"] = now() + 1
    session.service.walk("2026-02-08", 200, now() + 1)
    response = session.ask("poll")
    assert response.event_types == ["withings.measure", "withings.activity"]
    assert response.events[1]["payload"]["activity"]["steps"] == 200


def test_all_pages_are_read(session: Session) -> None:
    session.service.page_size = 3
    for index in range(8):
        session.service.weigh(80 + index, now() - 100 + index)
    response = session.ask("poll", data=["measure"])
    assert [event["payload"]["measures"]["weight_kg"] for event in response.events] == [
        80.0 + index for index in range(8)
    ]
    assert [call.form.get("offset") for call in session.service.calls] == [None, "3", "6"]


def test_more_than_a_job_may_emit_is_left_to_the_next(session: Session) -> None:
    session.service.page_size = 1000
    for index in range(950):
        session.service.weigh(80, now() - 1000 + index)
    assert len(session.ask("poll", data=["measure"]).events) == 900
    assert len(session.ask("poll", data=["measure"]).events) == 50
    assert session.ask("poll", data=["measure"]).events == []


def test_days_that_do_not_fit_are_not_passed_over(session: Session) -> None:
    session.service.page_size = 1000
    for index in range(890):
        session.service.weigh(80, now() - 1000 + index)
    for day in range(1, 31):
        session.service.walk(f"2026-01-{day:02}", day, now())
    assert len(session.ask("poll").events) == 900
    assert len(session.ask("poll").events) == 20
    assert session.ask("poll").events == []


def test_goals_and_measures_of_others_are_left_out(session: Session) -> None:
    """A scale that is not sure about its user sets `attrib`; when it knows, the group changes."""
    group = session.service.weigh(80, now() - 10)
    group["attrib"] = 1
    assert session.ask("poll").events == []
    group |= {"attrib": 0, "modified": now()}
    assert session.ask("poll").event_types == ["withings.measure"]


def test_the_first_poll_goes_back_as_far_as_it_is_told(session: Session) -> None:
    session.service.weigh(80, now() - 10 * 86400)
    assert session.ask("poll").events == []
    session.connect()
    assert len(session.ask("poll", history_days=30).events) == 1


def test_weights_can_be_emitted_again(session: Session) -> None:
    """`sync_weight` needs no state and changes none."""
    session.service.weigh(80, now() - 86400)
    session.service.weigh(70, now() - 40 * 86400)
    session.service.add_group([measure(11, 60, 0)], now())
    session.ask("poll")
    response = session.ask("sync_weight", {})
    assert [event["payload"]["kilograms"] for event in response.events] == [80.0]
    assert (response.event_types, response.state) == (["withings.weight"], {})
    since = time.strftime("%Y-%m-%d", time.gmtime(now() - 50 * 86400))
    assert len(session.ask("sync_weight", {"since": since}).events) == 2
    assert session.ask("sync_weight", {"since": "yesterday"}).failed_for_good("`since` has to be a date")


def test_an_expired_token_is_renewed_and_kept(session: Session) -> None:
    """Withings has status 401 in a body with HTTP status 200. The cursors stay beside the new grant."""
    session.service.weigh(80, now())
    session.ask("poll")
    session.service.expire_access_tokens()
    assert session.ask("poll").answer["result"] == "0 new"
    assert session.state["oauth"]["grant"]["number"] == 2
    assert set(session.state["cursors"]) == {"measure", "sleep", "activity"}
    assert session.ask("poll").answer["result"] == "0 new"


def test_a_token_request_can_be_signed(session: Session) -> None:
    """A signed request has a nonce, and not the secret."""
    session.service.expire_access_tokens()
    assert session.ask("poll", sign_requests=True).kind == "ok"
    (request,) = session.service.calls_to("/v2/oauth2")
    assert set(request.form) >= {"action", "nonce", "signature"}
    assert "client_secret" not in request.form


def test_a_withdrawn_grant_says_what_to_do(session: Session) -> None:
    session.service.revoke_grants()
    assert session.ask("poll").failed_for_good("ductile plugin authorize it")


def test_a_wrong_secret_is_not_taken_for_a_withdrawn_grant(session: Session) -> None:
    session.service.expire_access_tokens()
    assert session.ask("poll", client_secret="wrong").failed_for_good("check `client_id`")


def test_a_rate_limit_is_waited_for(session: Session) -> None:
    """A response with status 601 has the time to wait."""
    session.service.limited = 2
    session.service.weigh(80, now())
    assert len(session.ask("poll").events) == 1


def test_a_long_rate_limit_is_left_to_the_retry(session: Session) -> None:
    limit = {"status": 601, "body": {"wait_seconds": 3600}, "error": "Too Many Requests"}
    session.service.fail_next(Reply(limit))
    assert session.ask("poll").may_be_tried_again("it asks to wait 3600 s")


@pytest.mark.parametrize(
    ("reply", "retried"),
    [
        (Reply({"status": 522, "body": {}, "error": "Timeout"}), True),
        (Reply({"status": 524, "body": {}, "error": "Bad state"}), True),
        (Reply(b"Bad gateway", 502), True),
        (Reply(b"<html>maintenance</html>", 200), True),
        (Reply({"status": 503, "body": {}, "error": "Invalid Params"}), False),
        (Reply({"status": 2554, "body": {}, "error": "Not implemented"}), False),
    ],
)
def test_troubles_are_retried_and_mistakes_are_not(session: Session, reply: Reply, retried: bool) -> None:
    session.service.fail_next(reply)
    response = session.ask("poll")
    assert (response.kind, response.answer["retry"]) == ("error", retried)


def test_subscriptions_are_added_once_and_removed(session: Session) -> None:
    assert session.ask("subscribe", callback_url=HOOK).kind == "ok"
    assert {appli for _, appli in session.service.subscriptions} == {1, 2, 4, 16, 44}
    before = len(session.service.calls)
    assert "5 of them before" in session.ask("subscribe", callback_url=HOOK).answer["result"]
    assert len(session.service.calls) == before + 1
    assert session.ask("unsubscribe", callback_url=HOOK).answer["result"] == "ended 5 subscriptions"
    assert session.service.subscriptions == {}
    assert session.ask("subscribe").failed_for_good("`callback_url` is missing")


def test_a_notification_fetches_what_it_announces(session: Session) -> None:
    session.service.weigh(80, now())
    session.service.sleep("2026-02-08", now(), 8)
    form = {"userid": session.service.userid, "appli": 1, "startdate": 1, "enddate": 2}
    response = session.ask("handle", {"body": urlencode(form)})
    assert response.event_types == ["withings.measure"]
    assert session.ask("handle", {"body": urlencode(form)}).events == []


def test_nothing_in_a_notification_is_trusted(session: Session) -> None:
    """A notification is not signed. Another user, an unknown kind or garbage lead to no request."""
    other_user = urlencode({"userid": 1, "appli": 1})
    unknown_kind = urlencode({"userid": session.service.userid, "appli": 99})
    assert session.ask("handle", {"body": other_user}).answer["result"].startswith("passed over")
    assert session.ask("handle", {"body": unknown_kind}).answer["result"].startswith("passed over")
    assert session.ask("handle", {"body": "x"}).failed_for_good("no notification")
    assert session.service.calls == []


def test_an_account_is_connected_in_two_steps(session: Session) -> None:
    session.state = {}
    assert "no account is connected" in session.ask("health").answer["result"]
    authorisation = session.ask("oauth_start", {"redirect_uri": "http://localhost:9/x"}).answer["result"]
    reply = call(Request({}), "GET", authorisation["url"])
    callback = dict(parse_qsl(urlsplit(reply.headers["location"]).query))
    assert session.ask("oauth_callback", callback).answer["result"] == "connected"
    assert session.ask("health").answer["result"] == "healthy, connected to user 12345678"
    session.service.weigh(80, now())
    assert len(session.ask("poll").events) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"client_id": None}, "`client_id` is missing"),
        ({"data": ["weight"]}, "`data`"),
        ({"history_days": -1}, "`history_days`"),
        ({"base_url": "ftp://x"}, "`base_url`"),
    ],
)
def test_a_fault_in_the_configuration_ends_with_78(
    session: Session, config: dict[str, Any], message: str
) -> None:
    response = session.ask("health", **config)
    assert response.failed_for_good(message)
    assert response.exit_code == 78
