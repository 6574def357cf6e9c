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


class Session:
    """The plugin with its fake service: requests follow one another with the state that is kept."""

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

    def ask(
        self, command: str, payload: dict[str, Any] | None = None, *, keep_state: bool = True
    ) -> PluginResult:
        response = ask(
            "garmin",
            command,
            config=self.config,
            state=self.state,
            payload=payload,
            environ={"DUCTILE_DATA_DIR": str(self.directory)},
        )
        if keep_state and response.kind == "ok":
            self.state |= response.state
        return response

    def log_in(self) -> Session:
        assert self.ask("login").answer["result"] == "connected"
        return self


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with FakeGarmin() as garmin:
        with_example_days(garmin, TODAY)
        yield Session(garmin, tmp_path / "data")


def days_of(response: PluginResult) -> list[str]:
    return [event["payload"]["day"] for event in response.events]


def test_poll_emits_each_day_with_its_measures(session: Session) -> None:
    """One event has the summary, sleep and activities of a day, in the units of Garmin."""
    day = TODAY - timedelta(days=1)
    session.garmin.activities = [Activity(77, day, "trail_running", 1830.0, 5210.0)]
    session.garmin.days[day] = GarminDay(
        steps=4321, resting_heart_rate=51, moderate_minutes=10, vigorous_minutes=7, sleep_seconds=27000
    )
    response = session.log_in().ask("poll")
    assert response.answer["result"] == "5 of 5 days changed"
    (event,) = [event for event in response.events if event["payload"]["day"] == str(day)]
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


def test_its_measures_are_what_health_analyzer_takes(session: Session) -> None:
    payload = session.log_in().ask("poll").events[0]["payload"]
    analyzer_response = ask("health_analyzer", "handle", payload=payload)
    assert "ignored" not in analyzer_response.answer["result"]
    assert "logs" not in analyzer_response.answer


def test_a_day_is_emitted_again_only_if_it_changed(session: Session) -> None:
    """The next poll emits late and corrected values, and withdraws a deleted activity."""
    yesterday = TODAY - timedelta(days=1)
    session.garmin.activities = [Activity(5, yesterday, "running", 60.0, 200.0)]
    session.log_in().ask("poll")
    assert session.ask("poll").events == []
    session.garmin.days[TODAY - timedelta(days=2)].steps = 1
    session.garmin.activities.clear()
    response = session.ask("poll")
    assert days_of(response) == [str(TODAY - timedelta(days=2)), str(yesterday)]
    withdrawn = {"metric": "activity", "id": "5", "day": str(yesterday), "value": None}
    assert withdrawn in response.events[1]["payload"]["measures"]
    assert session.ask("poll").answer["result"] == "1 of 3 days changed"
    assert session.ask("poll").events == []


def test_a_long_history_arrives_over_several_polls(session: Session) -> None:
    session.config["history_days"] = 30
    response = session.log_in().ask("poll")
    assert response.answer["result"] == "14 of 14 days changed, 16 days are left for the next poll"
    days = days_of(response)
    while "left" in response.answer["result"]:
        response = session.ask("poll")
        days += days_of(response)
    assert days == [str(TODAY - timedelta(days=29 - n)) for n in range(30)]


def test_all_pages_of_activities_are_read(session: Session) -> None:
    session.garmin.activities = [Activity(n, TODAY, "walking", 60.0, 100.0) for n in range(1, 48)]
    response = session.log_in().ask("poll")
    ids = [
        measure["id"]
        for measure in response.events[-1]["payload"]["measures"]
        if measure["metric"] == "activity"
    ]
    assert sorted(ids, key=int) == [str(n) for n in range(1, 48)]
    assert [call.query["start"] for call in session.garmin.calls_to(ACTIVITIES)] == ["0", "20", "40"]


def test_a_day_without_a_watch_has_no_measures(session: Session) -> None:
    del session.garmin.days[TODAY]
    session.garmin.activities.clear()
    assert str(TODAY) not in days_of(session.log_in().ask("poll"))


def test_an_ended_session_is_renewed_and_the_old_token_not_used_again(session: Session) -> None:
    """An access token that is refused early is renewed once, and the poll goes on."""
    session.log_in()
    session.garmin.expire_access_tokens()
    assert session.ask("poll").kind == "ok"
    assert len(session.garmin.calls_to(TOKEN)) == 2


@pytest.mark.parametrize("offset", [-40_000.0, 40_000.0])
def test_a_clock_that_is_wrong_does_no_harm(session: Session, offset: float) -> None:
    """Lifetimes are counted by the clock of this machine; a token that is refused nevertheless is renewed."""
    session.garmin.clock_offset = offset
    assert session.log_in().ask("poll").kind == "ok"


def test_a_session_that_was_withdrawn_needs_a_login(session: Session) -> None:
    session.log_in()
    session.garmin.revoke_grants()
    assert session.ask("poll").failed_for_good("ductile run it login")
    assert session.log_in().ask("poll").kind == "ok"


def test_a_renewed_session_survives_a_process_that_is_killed(session: Session) -> None:
    """The refresh token that Garmin has replaced is on the disk, though the state was never applied."""
    session.log_in()
    for _ in range(2):
        session.garmin.expire_access_tokens()
        assert session.ask("poll", keep_state=False).kind == "ok"
    assert session.ask("poll").kind == "ok"


def test_without_a_session_poll_says_what_to_do(session: Session) -> None:
    assert session.ask("poll").failed_for_good("ductile run it login")
    assert "no account is connected" in session.ask("health").answer["result"]


def test_a_code_completes_the_sign_in_once(session: Session) -> None:
    """The cookies and the CSRF token of the first step are used in the second."""
    session.garmin.code = "123456"
    response = session.ask("login")
    assert "asks for a code (email)" in response.answer["result"]
    assert 'ductile run it login --payload \'{"code": "123456"}\'' in response.answer["result"]
    assert session.garmin.sent_codes == 1
    assert session.ask("login", {"code": "000000"}).failed_for_good("does not accept the code")
    assert session.ask("login", {"code": "123456"}).answer["result"] == "connected"
    assert session.ask("poll").kind == "ok"
    assert session.ask("login", {"code": "123456"}).failed_for_good("no sign-in waits for a code")


def test_a_login_that_was_killed_after_the_exchange_is_completed(session: Session) -> None:
    """The code is used up at Garmin; the same job again finds the grant on the disk."""
    session.garmin.code = "123456"
    session.ask("login")
    assert session.ask("login", {"code": "123456"}, keep_state=False).answer["result"] == "connected"
    assert session.ask("login", {"code": "123456"}).answer["result"] == "connected"
    assert session.ask("poll").kind == "ok"


def test_a_code_that_comes_too_late_is_refused(session: Session) -> None:
    session.garmin.code = "123456"
    session.ask("login")
    session.state["login"]["expires_at"] = 0
    assert session.ask("login", {"code": "123456"}).failed_for_good("too late")


def test_a_wrong_password_is_not_tried_again(session: Session) -> None:
    session.config["password"] = "wrong"
    response = session.ask("login")
    assert response.failed_for_good("Check `username` and `password`")
    assert "wrong" not in response.answer["error"]


def test_an_older_identity_of_the_app_is_tried_and_remembered(session: Session) -> None:
    session.garmin.accepted_clients = {"GARMIN_CONNECT_MOBILE_ANDROID_DI"}
    session.log_in()
    session.garmin.expire_access_tokens()
    assert session.ask("poll").kind == "ok"
    clients = [call.form["client_id"] for call in session.garmin.calls_to(TOKEN)]
    assert len(clients) == 4
    assert clients[-2:] == ["GARMIN_CONNECT_MOBILE_ANDROID_DI"] * 2


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (429, b"", "429: Garmin has had too many sign-ins"),
        (403, b"<title>Just a moment...</title>", "takes this machine for a bot"),
        (200, b"<title>Something new</title>", "not what this plugin expects"),
    ],
)
def test_a_sign_in_that_is_refused_is_not_repeated(
    session: Session, status: int, body: bytes, message: str
) -> None:
    """Each further try would make a block longer."""
    session.garmin.fail_next(Reply(body, status), path="/sso/signin")
    assert session.ask("login").failed_for_good(message)


def test_a_sign_in_page_that_is_down_may_come_back(session: Session) -> None:
    session.garmin.fail_next(Reply(b"<title>502 Bad Gateway</title>", 502), path="/sso/signin")
    assert session.ask("login").may_be_tried_again("502")


def test_a_rate_limit_keeps_the_days_that_arrived(session: Session) -> None:
    """The next poll goes on with the day that was refused."""
    session.log_in()
    sleep = f"/wellness-service/wellness/dailySleepData/{DISPLAY_NAME}"

    def limit(call: Call) -> None:
        if call.path == sleep and len(session.garmin.calls_to(sleep)) == 2:
            session.garmin.fail_next(Reply(b"", 429, {"Retry-After": "3600"}), path=sleep)

    session.garmin.before = limit
    response = session.ask("poll")
    assert response.answer["result"] == "2 of 2 days changed, 3 days are left for the next poll"
    assert "429" in response.answer["logs"][0]["message"]
    session.garmin.before = lambda _: None
    assert days_of(session.ask("poll"))[-3:] == [str(TODAY - timedelta(days=n)) for n in (2, 1, 0)]


@pytest.mark.parametrize(
    ("status", "headers", "retry", "message"),
    [
        (429, {"Retry-After": "3600"}, True, "again in 3600 s"),
        (500, {}, True, "answers 500"),
        (403, {"cf-ray": "8a1"}, False, "403: Cloudflare"),
    ],
)
def test_a_refused_poll_says_what_happened(
    session: Session, status: int, headers: dict[str, str], retry: bool, message: str
) -> None:
    session.log_in()
    session.garmin.fail_next(Reply(b"", status, headers), path=SUMMARY)
    response = session.ask("poll")
    assert response.may_be_tried_again(message) if retry else response.failed_for_good(message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"username": ""}, "`username` is missing"),
        ({"domain": "example.com"}, "garmin.com or garmin.cn"),
        ({"api_url": "ftp://x"}, "`api_url`"),
        ({"history_days": 0}, "from 1 to 365"),
        ({"timezone": "Nowhere"}, "Europe/Oslo"),
    ],
)
def test_a_config_that_cannot_be_used_is_exit_78(
    session: Session, config: dict[str, Any], message: str
) -> None:
    session.config |= config
    response = session.ask("health")
    assert response.exit_code == 78
    assert message in response.answer["error"]


def test_no_secret_is_in_a_message(session: Session) -> None:
    """Results, logs and errors have neither the password nor tokens."""
    session.garmin.code = "123456"
    responses = [
        session.ask("login"),
        session.ask("login", {"code": "123456"}),
        session.ask("poll"),
        session.ask("health"),
    ]
    session.garmin.revoke_grants()
    responses.append(session.ask("poll"))
    text = str(
        [
            (response.answer.get("result"), response.answer.get("error"), response.stderr)
            for response in responses
        ]
    )
    secrets = [session.garmin.password, *session.garmin.grants[0].refresh_tokens]
    assert not [secret for secret in secrets if secret in text]
