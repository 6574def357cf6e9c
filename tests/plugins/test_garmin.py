"""garmin against a fake that speaks Garmin's wire format."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders.shipped import PluginResult, ask
from fakes.garmin import ACTIVITIES, DISPLAY_NAME, Activity, FakeGarmin, GarminDay, with_example_days
from fakes.service import Call, Reply

TOKEN = "/di-oauth2-service/oauth/token"
SUMMARY = "/usersummary-service"
#: A zone in which it is morning now, so that the day does not change while the tests run.
HOURS_BEHIND = min(datetime.now(UTC).hour - 6, 12)
ZONE = f"Etc/GMT{HOURS_BEHIND:+d}"
TODAY = (datetime.now(UTC) - timedelta(hours=HOURS_BEHIND)).date()


class Watch:
    """The plugin with its fake: requests follow one another with the state that was kept."""

    def __init__(self, garmin: FakeGarmin, directory: Path) -> None:
        self.garmin = garmin
        self.directory = directory
        self.state: dict[str, Any] = {}
        self.config: dict[str, Any] = {
            "username": garmin.username,
            "password": garmin.password,
            "sso_url": garmin.url + "/sso",
            "auth_url": garmin.url,
            "api_url": garmin.url,
            "timezone": ZONE,
            "history_days": 5,
        }

    def ask(self, command: str, payload: dict[str, Any] | None = None, *, keep: bool = True) -> PluginResult:
        said = ask(
            "garmin",
            command,
            config=self.config,
            state=self.state,
            payload=payload,
            environ={"DUCTILE_DATA_DIR": str(self.directory)},
        )
        if keep and said.kind == "ok":
            self.state |= said.state
        return said

    def logged_in(self) -> Watch:
        assert self.ask("login").answer["result"] == "connected"
        return self


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with FakeGarmin() as garmin:
        with_example_days(garmin, TODAY)
        yield Watch(garmin, tmp_path / "data")


def days_of(said: PluginResult) -> list[str]:
    return [event["payload"]["day"] for event in said.events]


def test_poll_emits_each_day_with_its_measures(watch: Watch) -> None:
    """Summary, sleep and activities of a day in one event, in the units of Garmin."""
    day = TODAY - timedelta(days=1)
    watch.garmin.activities = [Activity(77, day, "trail_running", 1830.0, 5210.0)]
    watch.garmin.days[day] = GarminDay(
        steps=4321, resting_heart_rate=51, moderate_minutes=10, vigorous_minutes=7, sleep_seconds=27000
    )
    said = watch.logged_in().ask("poll")
    assert said.answer["result"] == "5 of 5 days changed"
    (event,) = [event for event in said.events if event["payload"]["day"] == str(day)]
    assert event["type"] == "garmin.measures"
    assert event["payload"]["heart_rate"] == {"resting": 51, "min": 48, "max": 141}
    assert event["payload"]["measures"] == [
        {"metric": "steps", "day": str(day), "value": 4321, "unit": "count"},
        {"metric": "resting_heart_rate", "day": str(day), "value": 51, "unit": "bpm"},
        {"metric": "active_minutes", "day": str(day), "value": 17, "unit": "min"},
        {"metric": "sleep", "day": str(day), "value": 27000, "unit": "s"},
        {
            "metric": "activity",
            "id": "77",
            "day": str(day),
            "type": "trail_running",
            "minutes": 30.5,
            "km": 5.21,
        },
    ]


def test_its_measures_are_what_health_analyzer_takes(watch: Watch) -> None:
    payload = watch.logged_in().ask("poll").events[0]["payload"]
    kept = ask("health_analyzer", "handle", payload=payload)
    assert "ignored" not in kept.answer["result"]
    assert "logs" not in kept.answer


def test_a_day_is_emitted_again_only_if_it_changed(watch: Watch) -> None:
    """Late and corrected values come with the next poll; a deleted activity is withdrawn."""
    yesterday = TODAY - timedelta(days=1)
    watch.garmin.activities = [Activity(5, yesterday, "running", 60.0, 200.0)]
    watch.logged_in().ask("poll")
    assert watch.ask("poll").events == []
    watch.garmin.days[TODAY - timedelta(days=2)].steps = 1
    watch.garmin.activities.clear()
    said = watch.ask("poll")
    assert days_of(said) == [str(TODAY - timedelta(days=2)), str(yesterday)]
    gone = {"metric": "activity", "id": "5", "day": str(yesterday), "value": None}
    assert gone in said.events[1]["payload"]["measures"]
    assert watch.ask("poll").answer["result"] == "1 of 3 days changed"
    assert watch.ask("poll").events == []


def test_a_long_history_arrives_over_several_polls(watch: Watch) -> None:
    watch.config["history_days"] = 30
    said = watch.logged_in().ask("poll")
    assert said.answer["result"] == "14 of 14 days changed, 16 days are left for the next poll"
    seen = days_of(said)
    while "left" in said.answer["result"]:
        said = watch.ask("poll")
        seen += days_of(said)
    assert seen == [str(TODAY - timedelta(days=29 - n)) for n in range(30)]


def test_all_pages_of_activities_are_read(watch: Watch) -> None:
    watch.garmin.activities = [Activity(n, TODAY, "walking", 60.0, 100.0) for n in range(1, 48)]
    said = watch.logged_in().ask("poll")
    listed = [m["id"] for m in said.events[-1]["payload"]["measures"] if m["metric"] == "activity"]
    assert sorted(listed, key=int) == [str(n) for n in range(1, 48)]
    assert [call.query["start"] for call in watch.garmin.calls_to(ACTIVITIES)] == ["0", "20", "40"]


def test_a_day_without_a_watch_has_no_measures(watch: Watch) -> None:
    del watch.garmin.days[TODAY]
    watch.garmin.activities.clear()
    assert str(TODAY) not in days_of(watch.logged_in().ask("poll"))


def test_an_ended_session_is_renewed_and_the_old_token_not_used_again(watch: Watch) -> None:
    """A 401 before the promised time is renewed once; the poll goes on."""
    watch.logged_in()
    watch.garmin.expire_access_tokens()
    assert watch.ask("poll").kind == "ok"
    assert len(watch.garmin.calls_to(TOKEN)) == 2


@pytest.mark.parametrize("offset", [-40_000.0, 40_000.0])
def test_a_clock_that_is_wrong_does_no_harm(watch: Watch, offset: float) -> None:
    """Lifetimes are counted from our own clock; a token that is refused in spite of that is renewed."""
    watch.garmin.clock_offset = offset
    assert watch.logged_in().ask("poll").kind == "ok"


def test_a_session_that_was_withdrawn_needs_a_login(watch: Watch) -> None:
    watch.logged_in()
    watch.garmin.revoke_grants()
    assert watch.ask("poll").failed_for_good("ductile run it login")
    assert watch.logged_in().ask("poll").kind == "ok"


def test_a_renewed_session_survives_a_process_that_is_killed(watch: Watch) -> None:
    """The refresh token that Garmin has replaced is on the disk, though the state was never applied."""
    watch.logged_in()
    for _ in range(2):
        watch.garmin.expire_access_tokens()
        assert watch.ask("poll", keep=False).kind == "ok"
    assert watch.ask("poll").kind == "ok"


def test_without_a_session_poll_says_what_to_do(watch: Watch) -> None:
    assert watch.ask("poll").failed_for_good("ductile run it login")
    assert "no account is connected" in watch.ask("health").answer["result"]


def test_a_code_completes_the_sign_in_once(watch: Watch) -> None:
    """The cookies and the CSRF token of the first step are used in the second."""
    watch.garmin.code = "123456"
    said = watch.ask("login")
    assert "asks for a code (email)" in said.answer["result"]
    assert 'ductile run it login --payload \'{"code": "123456"}\'' in said.answer["result"]
    assert watch.garmin.sent_codes == 1
    assert watch.ask("login", {"code": "000000"}).failed_for_good("does not accept the code")
    assert watch.ask("login", {"code": "123456"}).answer["result"] == "connected"
    assert watch.ask("poll").kind == "ok"
    assert watch.ask("login", {"code": "123456"}).failed_for_good("no sign-in waits for a code")


def test_a_login_that_was_killed_after_the_exchange_is_completed(watch: Watch) -> None:
    """The code is used up at Garmin; the same job again finds the grant on the disk."""
    watch.garmin.code = "123456"
    watch.ask("login")
    assert watch.ask("login", {"code": "123456"}, keep=False).answer["result"] == "connected"
    assert watch.ask("login", {"code": "123456"}).answer["result"] == "connected"
    assert watch.ask("poll").kind == "ok"


def test_a_code_that_comes_too_late_is_refused(watch: Watch) -> None:
    watch.garmin.code = "123456"
    watch.ask("login")
    watch.state["login"]["expires_at"] = 0
    assert watch.ask("login", {"code": "123456"}).failed_for_good("too late")


def test_a_wrong_password_is_not_tried_again(watch: Watch) -> None:
    watch.config["password"] = "wrong"
    said = watch.ask("login")
    assert said.failed_for_good("Check `username` and `password`")
    assert "wrong" not in said.answer["error"]


def test_an_older_identity_of_the_app_is_tried_and_remembered(watch: Watch) -> None:
    watch.garmin.accepted_clients = {"GARMIN_CONNECT_MOBILE_ANDROID_DI"}
    watch.logged_in()
    watch.garmin.expire_access_tokens()
    assert watch.ask("poll").kind == "ok"
    clients = [call.form["client_id"] for call in watch.garmin.calls_to(TOKEN)]
    assert len(clients) == 4
    assert clients[-2:] == ["GARMIN_CONNECT_MOBILE_ANDROID_DI"] * 2


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (429, b"", "429: Garmin has had too many sign-ins"),
        (403, b"<title>Just a moment...</title>", "takes this machine for a bot"),
        (200, b"<title>Something new</title>", "not what this plugin expects"),
    ],
)
def test_a_sign_in_that_is_refused_is_not_repeated(
    watch: Watch, status: int, body: bytes, words: str
) -> None:
    """Each further try would make a block longer."""
    watch.garmin.fail_next(Reply(body, status), path="/sso/signin")
    assert watch.ask("login").failed_for_good(words)


def test_a_sign_in_page_that_is_down_may_come_back(watch: Watch) -> None:
    watch.garmin.fail_next(Reply(b"<title>502 Bad Gateway</title>", 502), path="/sso/signin")
    assert watch.ask("login").may_be_tried_again("502")


def test_a_rate_limit_keeps_the_days_that_arrived(watch: Watch) -> None:
    """The next poll goes on with the day that was refused."""
    watch.logged_in()
    sleep = f"/wellness-service/wellness/dailySleepData/{DISPLAY_NAME}"

    def limit(call: Call) -> None:
        if call.path == sleep and len(watch.garmin.calls_to(sleep)) == 2:
            watch.garmin.fail_next(Reply(b"", 429, {"Retry-After": "3600"}), path=sleep)

    watch.garmin.before = limit
    said = watch.ask("poll")
    assert said.answer["result"] == "2 of 2 days changed, 3 days are left for the next poll"
    assert "429" in said.answer["logs"][0]["message"]
    watch.garmin.before = lambda _: None
    assert days_of(watch.ask("poll"))[-3:] == [str(TODAY - timedelta(days=n)) for n in (2, 1, 0)]


@pytest.mark.parametrize(
    ("status", "headers", "retry", "words"),
    [
        (429, {"Retry-After": "3600"}, True, "again in 3600 s"),
        (500, {}, True, "answers 500"),
        (403, {"cf-ray": "8a1"}, False, "403: Cloudflare"),
    ],
)
def test_a_refused_poll_says_what_happened(
    watch: Watch, status: int, headers: dict[str, str], retry: bool, words: str
) -> None:
    watch.logged_in()
    watch.garmin.fail_next(Reply(b"", status, headers), path=SUMMARY)
    said = watch.ask("poll")
    assert said.may_be_tried_again(words) if retry else said.failed_for_good(words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"username": ""}, "`username` is missing"),
        ({"domain": "example.com"}, "garmin.com or garmin.cn"),
        ({"api_url": "ftp://x"}, "`api_url`"),
        ({"history_days": 0}, "from 1 to 365"),
        ({"timezone": "Nowhere"}, "Europe/Oslo"),
    ],
)
def test_a_config_that_cannot_be_used_is_exit_78(watch: Watch, config: dict[str, Any], words: str) -> None:
    watch.config |= config
    said = watch.ask("health")
    assert said.exit_code == 78
    assert words in said.answer["error"]


def test_no_secret_is_in_a_message(watch: Watch) -> None:
    """Neither password nor tokens, in results, logs and errors of a whole life."""
    watch.garmin.code = "123456"
    said = [
        watch.ask("login"),
        watch.ask("login", {"code": "123456"}),
        watch.ask("poll"),
        watch.ask("health"),
    ]
    watch.garmin.revoke_grants()
    said.append(watch.ask("poll"))
    shown = str([(each.answer.get("result"), each.answer.get("error"), each.stderr) for each in said])
    secrets = [watch.garmin.password, *watch.garmin.grants[0].refresh_tokens]
    assert not [secret for secret in secrets if secret in shown]
