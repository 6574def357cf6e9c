"""withings against a fake that speaks its wire format."""

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
class Person:
    service: FakeWithings
    directory: Path
    state: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def ask(self, command: str, payload: dict[str, Any] | None = None, **config: Any) -> PluginResult:
        """One job. Its state is applied as Ductile does it: a fact replaces it, else it is merged."""
        said = ask(
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
        if said.kind == "ok" and said.state:
            is_fact = command in ("poll", "handle")
            self.state = said.state if is_fact else {**self.state, **said.state}
        return said

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
def person(service: FakeWithings, tmp_path: Path) -> Person:
    person = Person(service, tmp_path / "data")
    person.connect()
    return person


def now() -> int:
    return int(time.time())


def test_each_measure_group_is_an_event_in_units(person: Person) -> None:
    """The value on the wire is an integer times a power of ten."""
    at = now() - 3600
    group = person.service.weigh(72.345, at, fat_ratio=21.5, pulse=61)
    said = person.ask("poll")
    (event,) = said.events
    assert (event["type"], event["dedupe_key"]) == (
        "withings.measure",
        f"withings:measure:{group['grpid']}:{at}",
    )
    assert event["payload"]["measures"] == {
        "weight_kg": 72.345,
        "fat_ratio_percent": 21.5,
        "pulse_bpm": 61.0,
    }
    assert (event["payload"]["id"], event["payload"]["device"]) == (str(group["grpid"]), "Body+")


def test_a_measure_of_an_unknown_type_is_kept(person: Person) -> None:
    person.service.add_group([measure(999, 1.5, -1)], now())
    (event,) = person.ask("poll").events
    assert event["payload"]["measures"] == {"type_999": 1.5}


def test_sleep_and_activity_are_events(person: Person) -> None:
    person.service.sleep("2026-02-08", now() - 60, 7.5)
    person.service.walk("2026-02-08", 9000, now())
    said = person.ask("poll")
    assert said.event_types == ["withings.sleep", "withings.activity"]
    night, day = (event["payload"] for event in said.events)
    assert (night["date"], night["sleep"]["total_sleep_time"]) == ("2026-02-08", 27000)
    assert (day["date"], day["activity"]["steps"]) == ("2026-02-08", 9000)


def test_only_what_is_wanted_is_asked_for(person: Person) -> None:
    person.ask("poll", data=["sleep"])
    assert {each.path for each in person.service.calls} == {"/v2/sleep"}


def test_a_repeated_poll_emits_nothing_twice(person: Person) -> None:
    """What was emitted is in the state, also within the time that is asked for again."""
    at = now()
    person.service.weigh(80, at)
    person.service.walk("2026-02-08", 100, at)
    assert len(person.ask("poll").events) == 2
    again = person.ask("poll")
    assert (again.answer["result"], again.events, again.state) == ("0 new", [], {})
    person.service.weigh(81, at)
    assert [event["payload"]["measures"]["weight_kg"] for event in person.ask("poll").events] == [81.0]


def test_a_corrected_measure_and_a_grown_day_are_emitted_again(person: Person) -> None:
    group = person.service.weigh(80, now() - 100)
    person.service.walk("2026-02-08", 100, now() - 100)
    person.ask("poll")
    group["measures"] = [measure(1, 79, -3)]
    group["modified"] = now() + 1
    person.service.walk("2026-02-08", 200, now() + 1)
    said = person.ask("poll")
    assert said.event_types == ["withings.measure", "withings.activity"]
    assert said.events[1]["payload"]["activity"]["steps"] == 200


def test_all_pages_are_read(person: Person) -> None:
    person.service.page_size = 3
    for index in range(8):
        person.service.weigh(80 + index, now() - 100 + index)
    said = person.ask("poll", data=["measure"])
    assert [event["payload"]["measures"]["weight_kg"] for event in said.events] == [
        80.0 + i for i in range(8)
    ]
    assert [call.form.get("offset") for call in person.service.calls] == [None, "3", "6"]


def test_more_than_a_job_may_emit_is_left_to_the_next(person: Person) -> None:
    person.service.page_size = 1000
    for index in range(950):
        person.service.weigh(80, now() - 1000 + index)
    assert len(person.ask("poll", data=["measure"]).events) == 900
    assert len(person.ask("poll", data=["measure"]).events) == 50
    assert person.ask("poll", data=["measure"]).events == []


def test_days_that_do_not_fit_are_not_passed_over(person: Person) -> None:
    person.service.page_size = 1000
    for index in range(890):
        person.service.weigh(80, now() - 1000 + index)
    for day in range(1, 31):
        person.service.walk(f"2026-01-{day:02}", day, now())
    assert len(person.ask("poll").events) == 900
    assert len(person.ask("poll").events) == 20
    assert person.ask("poll").events == []


def test_goals_and_measures_of_others_are_left_out(person: Person) -> None:
    """`attrib` 1 and 4: the scale was not sure who stood on it. When it knows, the group has changed."""
    group = person.service.weigh(80, now() - 10)
    group["attrib"] = 1
    assert person.ask("poll").events == []
    group |= {"attrib": 0, "modified": now()}
    assert person.ask("poll").event_types == ["withings.measure"]


def test_the_first_poll_goes_back_as_far_as_it_is_told(person: Person) -> None:
    person.service.weigh(80, now() - 10 * 86400)
    assert person.ask("poll").events == []
    person.connect()
    assert len(person.ask("poll", history_days=30).events) == 1


def test_weights_can_be_emitted_again(person: Person) -> None:
    """`sync_weight` needs no state and changes none."""
    person.service.weigh(80, now() - 86400)
    person.service.weigh(70, now() - 40 * 86400)
    person.service.add_group([measure(11, 60, 0)], now())
    person.ask("poll")
    said = person.ask("sync_weight", {})
    assert [event["payload"]["kilograms"] for event in said.events] == [80.0]
    assert (said.event_types, said.state) == (["withings.weight"], {})
    since = time.strftime("%Y-%m-%d", time.gmtime(now() - 50 * 86400))
    assert len(person.ask("sync_weight", {"since": since}).events) == 2
    assert person.ask("sync_weight", {"since": "yesterday"}).failed_for_good("`since` has to be a date")


def test_an_expired_token_is_renewed_and_kept(person: Person) -> None:
    """Withings says status 401 with HTTP status 200. The cursors stay beside the new grant."""
    person.service.weigh(80, now())
    person.ask("poll")
    person.service.expire_access_tokens()
    assert person.ask("poll").answer["result"] == "0 new"
    assert person.state["oauth"]["grant"]["number"] == 2
    assert set(person.state["cursors"]) == {"measure", "sleep", "activity"}
    assert person.ask("poll").answer["result"] == "0 new"


def test_a_token_request_can_be_signed(person: Person) -> None:
    """With a nonce, and without the secret."""
    person.service.expire_access_tokens()
    assert person.ask("poll", sign_requests=True).kind == "ok"
    (request,) = person.service.calls_to("/v2/oauth2")
    assert set(request.form) >= {"action", "nonce", "signature"}
    assert "client_secret" not in request.form


def test_a_withdrawn_grant_says_what_to_do(person: Person) -> None:
    person.service.revoke_grants()
    assert person.ask("poll").failed_for_good("ductile plugin authorize it")


def test_a_wrong_secret_is_not_taken_for_a_withdrawn_grant(person: Person) -> None:
    person.service.expire_access_tokens()
    assert person.ask("poll", client_secret="wrong").failed_for_good("check `client_id`")


def test_a_rate_limit_is_waited_for(person: Person) -> None:
    """Status 601 says for how long."""
    person.service.limited = 2
    person.service.weigh(80, now())
    assert len(person.ask("poll").events) == 1


def test_a_long_rate_limit_is_left_to_the_retry(person: Person) -> None:
    limit = {"status": 601, "body": {"wait_seconds": 3600}, "error": "Too Many Requests"}
    person.service.fail_next(Reply(limit))
    assert person.ask("poll").may_be_tried_again("it asks to wait 3600 s")


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
def test_troubles_are_retried_and_mistakes_are_not(person: Person, reply: Reply, retried: bool) -> None:
    person.service.fail_next(reply)
    said = person.ask("poll")
    assert (said.kind, said.answer["retry"]) == ("error", retried)


def test_subscriptions_are_added_once_and_removed(person: Person) -> None:
    assert person.ask("subscribe", callback_url=HOOK).kind == "ok"
    assert {appli for _, appli in person.service.subscriptions} == {1, 2, 4, 16, 44}
    before = len(person.service.calls)
    assert "5 of them before" in person.ask("subscribe", callback_url=HOOK).answer["result"]
    assert len(person.service.calls) == before + 1
    assert person.ask("unsubscribe", callback_url=HOOK).answer["result"] == "ended 5 subscriptions"
    assert person.service.subscriptions == {}
    assert person.ask("subscribe").failed_for_good("`callback_url` is missing")


def test_a_notification_fetches_what_it_announces(person: Person) -> None:
    person.service.weigh(80, now())
    person.service.sleep("2026-02-08", now(), 8)
    form = {"userid": person.service.userid, "appli": 1, "startdate": 1, "enddate": 2}
    said = person.ask("handle", {"body": urlencode(form)})
    assert said.event_types == ["withings.measure"]
    assert person.ask("handle", {"body": urlencode(form)}).events == []


def test_nothing_in_a_notification_is_trusted(person: Person) -> None:
    """It is not signed. Another user, an unknown kind or garbage lead to no request."""
    other = urlencode({"userid": 1, "appli": 1})
    unknown = urlencode({"userid": person.service.userid, "appli": 99})
    assert person.ask("handle", {"body": other}).answer["result"].startswith("passed over")
    assert person.ask("handle", {"body": unknown}).answer["result"].startswith("passed over")
    assert person.ask("handle", {"body": "x"}).failed_for_good("no notification")
    assert person.service.calls == []


def test_an_account_is_connected_in_two_steps(person: Person) -> None:
    person.state = {}
    assert "no account is connected" in person.ask("health").answer["result"]
    started = person.ask("oauth_start", {"redirect_uri": "http://localhost:9/x"}).answer["result"]
    answer = call(Request({}), "GET", started["url"])
    back = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    assert person.ask("oauth_callback", back).answer["result"] == "connected"
    assert person.ask("health").answer["result"] == "healthy, connected to user 12345678"
    person.service.weigh(80, now())
    assert len(person.ask("poll").events) == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"client_id": None}, "`client_id` is missing"),
        ({"data": ["weight"]}, "`data`"),
        ({"history_days": -1}, "`history_days`"),
        ({"base_url": "ftp://x"}, "`base_url`"),
    ],
)
def test_a_fault_in_the_configuration_ends_with_78(
    person: Person, config: dict[str, Any], words: str
) -> None:
    said = person.ask("health", **config)
    assert said.failed_for_good(words)
    assert said.exit_code == 78
