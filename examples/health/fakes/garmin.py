"""Garmin Connect: the sign-in widget, the exchange of its ticket, and the documents of the app's API."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from datetime import date, timedelta
from html import escape
from typing import Any

from fakes.oauth_server import Grant, OAuthService, Refusal, Rotation
from fakes.service import Call, Reply, serve

TICKET_GRANT = "https://connectapi.garmin.com/di-oauth2-service/oauth/grant/service_ticket"
DISPLAY_NAME = "7f1c0d5e-5b1e-4f0c-9a0e-3b1f9e6a2d44"
ACTIVITIES = "/activitylist-service/activities/search/activities"
UNAUTHORIZED = Reply({"error": "Token is not active"}, 401)


@dataclass
class GarminDay:
    """What the watch recorded. None was not recorded."""

    steps: int | None = None
    resting_heart_rate: int | None = None
    stress: int = -1
    moderate_minutes: int = 0
    vigorous_minutes: int = 0
    sleep_seconds: int | None = None


@dataclass
class Session:
    """A browser that signs in, known by its cookie."""

    csrf: str = ""
    waits_for_code: bool = False


@dataclass
class Activity:
    identifier: int
    day: date
    kind: str
    seconds: float
    metres: float
    extra: dict[str, Any] = field(default_factory=dict)


class FakeGarmin(OAuthService):
    """Garmin Connect of one user."""

    token_path = "/di-oauth2-service/oauth/token"  # noqa: S105 - a path

    def __init__(self, *, rotation: Rotation = Rotation.STRICT, lifetime: int = 86_400) -> None:
        super().__init__(rotation=rotation, lifetime=lifetime)
        self.username, self.password = "ada@example.com", "correct horse"
        #: Set to demand a second factor at the sign-in.
        self.code: str | None = None
        self.accepted_clients = {"GARMIN_CONNECT_MOBILE_ANDROID_DI_2025Q2"}
        self.days: dict[date, GarminDay] = {}
        self.activities: list[Activity] = []
        self.sent_codes = 0
        self._sessions: dict[str, Session] = {}
        self._tickets: set[str] = set()

    def respond(self, call: Call) -> Reply:
        if call.path.startswith("/sso/"):
            return self._sso(call)
        if (reply := self.respond_oauth(call)) is not None:
            return reply
        return self._api(call) if self.grant_of(call) is not None else UNAUTHORIZED

    # -- the sign-in widget

    def _sso(self, call: Call) -> Reply:
        if call.path == "/sso/embed":
            name = secrets.token_hex(8)
            self._sessions[name] = Session()
            return Reply(page("GARMIN"), headers={"Set-Cookie": f"SESSION={name}; Path=/sso; HttpOnly"})
        session = self._session(call)
        if session is None:
            return Reply(page("GARMIN Authentication Application", "no session"))
        if call.path == "/sso/signin" and call.method == "GET":
            session.csrf = secrets.token_hex(16)
            return Reply(page("GARMIN Authentication Application", hidden(session.csrf)))
        if call.path == "/sso/verifyMFA/mfaCode":
            self.sent_codes += 1
            return Reply({"status": "sent"})
        if call.method != "POST" or call.form.get("_csrf") != session.csrf:
            return Reply(page("GARMIN Authentication Application", "CSRF"), 403)
        if call.path == "/sso/signin":
            return self._sign_in(call, session)
        return self._verify(call, session)

    def _session(self, call: Call) -> Session | None:
        cookies = dict(pair.strip().partition("=")[::2] for pair in call.headers.get("cookie", "").split(";"))
        return self._sessions.get(cookies.get("SESSION", ""))

    def _sign_in(self, call: Call, session: Session) -> Reply:
        if (call.form.get("username"), call.form.get("password")) != (self.username, self.password):
            return Reply(page("GARMIN Authentication Application - Invalid sign in", hidden(session.csrf)))
        if self.code is None:
            return self._success(call)
        session.waits_for_code, session.csrf = True, secrets.token_hex(16)
        script = (
            '<script>var customerGuid = "guid-1"; var mfaMethod = "email"; var locale = "en_US"; '
            'var clientId = ""; var codeSentTo = "";</script>'
        )
        return Reply(page("Enter MFA code for login", hidden(session.csrf) + script))

    def _verify(self, call: Call, session: Session) -> Reply:
        if not session.waits_for_code or call.form.get("mfa-code") != self.code:
            return Reply(page("Enter MFA code for login", hidden(session.csrf)))
        session.waits_for_code = False
        return self._success(call)

    def _success(self, call: Call) -> Reply:
        ticket = f"ST-{secrets.token_hex(8)}-cas"
        self._tickets.add(ticket)
        place = escape(f"{call.query['service']}?ticket={ticket}")
        return Reply(page("Success", f'<script>var response_url = "{place}";</script>'))

    # -- the exchange

    def check_client(self, fields: dict[str, str]) -> None:
        if fields.get("client_id") not in self.accepted_clients:
            raise Refusal("invalid_client", "Client is not allowed", 401)

    def respond_oauth(self, call: Call) -> Reply | None:
        if call.path == self.token_path:
            expected = base64.b64encode(f"{call.form.get('client_id')}:".encode()).decode()
            if call.headers.get("authorization") != f"Basic {expected}":
                return Reply({"error": "invalid_client"}, 401)
        return super().respond_oauth(call)

    def token(self, fields: dict[str, str]) -> dict[str, object]:
        if fields.get("grant_type") != TICKET_GRANT:
            return super().token(fields)
        if fields.get("service_ticket") not in self._tickets or "/sso/embed" not in fields["service_url"]:
            raise Refusal("invalid_grant", "Invalid service ticket")
        self._tickets.discard(fields["service_ticket"])
        grant = Grant(scope="CONNECT_READ")
        self.grants.append(grant)
        return self._document(grant, self._issue_access(grant), self._issue_refresh(grant))

    # -- the documents

    def _api(self, call: Call) -> Reply:
        if call.path == "/userprofile-service/socialProfile":
            return Reply({"displayName": DISPLAY_NAME, "userName": self.username})
        if call.path == f"/usersummary-service/usersummary/daily/{DISPLAY_NAME}":
            return Reply(self._summary(date.fromisoformat(call.query["calendarDate"])))
        if call.path == f"/wellness-service/wellness/dailySleepData/{DISPLAY_NAME}":
            return Reply(self._sleep(date.fromisoformat(call.query["date"])))
        if call.path == ACTIVITIES:
            return Reply(self._listed(call.query))
        return Reply({"message": "HTTP 404 Not Found", "error": "NotFoundException"}, 404)

    def _summary(self, day: date) -> dict[str, Any]:
        found = self.days.get(day, GarminDay())
        return {
            "calendarDate": day.isoformat(),
            "includesWellnessData": day in self.days,
            "privacyProtected": False,
            "totalSteps": found.steps,
            "restingHeartRate": found.resting_heart_rate,
            "minHeartRate": None if found.resting_heart_rate is None else found.resting_heart_rate - 3,
            "maxHeartRate": None if found.resting_heart_rate is None else found.resting_heart_rate + 90,
            "averageStressLevel": found.stress,
            "moderateIntensityMinutes": found.moderate_minutes,
            "vigorousIntensityMinutes": found.vigorous_minutes,
        }

    def _sleep(self, day: date) -> dict[str, Any]:
        found = self.days.get(day, GarminDay())
        night = {"calendarDate": day.isoformat(), "sleepTimeSeconds": found.sleep_seconds}
        return {"dailySleepDTO": night, "restingHeartRate": found.resting_heart_rate}

    def _listed(self, query: dict[str, str]) -> list[dict[str, Any]]:
        first, last = date.fromisoformat(query["startDate"]), date.fromisoformat(query["endDate"])
        found = [each for each in self.activities if first <= each.day <= last]
        found.sort(key=lambda each: (each.day, each.identifier), reverse=True)
        start = int(query["start"])
        return [shown(each) for each in found[start : start + int(query["limit"])]]


def shown(activity: Activity) -> dict[str, Any]:
    return {
        "activityId": activity.identifier,
        "activityName": activity.kind.title(),
        "activityType": {"typeId": 1, "typeKey": activity.kind},
        "startTimeLocal": f"{activity.day} 18:03:11",
        "duration": activity.seconds,
        "distance": activity.metres,
        **activity.extra,
    }


def page(title: str, body: str = "") -> bytes:
    return f"<html><head><title>{title}</title></head><body>{body}</body></html>".encode()


def hidden(csrf: str) -> str:
    return f'<form><input type="hidden" name="_csrf" value="{csrf}" /></form>'


def with_example_days(garmin: FakeGarmin, today: date, count: int = 60) -> FakeGarmin:
    """Fill in days that are the same each time: more steps each week, and one night with little sleep."""
    for back in range(count):
        day = today - timedelta(days=back)
        wave = (day.toordinal() * 37) % 11 - 5
        garmin.days[day] = GarminDay(
            steps=8600 - 45 * back + 130 * wave,
            resting_heart_rate=56 + wave % 3,
            stress=30 + wave,
            moderate_minutes=20 + wave,
            vigorous_minutes=5,
            sleep_seconds=(440 + 4 * wave) * 60,
        )
        if day.weekday() in (1, 5):
            seconds, metres = 2400.0 + 60 * wave, 7000.0 + 100 * wave
            garmin.activities.append(Activity(day.toordinal(), day, "running", seconds, metres))
    short = today - timedelta(days=today.weekday() + 3)
    garmin.days[short].sleep_seconds = 230 * 60
    return garmin


if __name__ == "__main__":
    serve(with_example_days(FakeGarmin(), date.today()), 9103)  # noqa: DTZ011 - the day of this machine
