#!/usr/bin/env python3
"""The garmin plugin: daily summaries, sleep, heart rate and activities from Garmin Connect.

The session is an OAuth grant that `login` obtains; `oauth2` in lib/ keeps and refreshes it.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import time
from datetime import date, datetime, timedelta, timezone
from typing import Any, NamedTuple

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
import oauth2
from ductile_http import Answer, check_url, parse_json
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from measures import activity_measure, digest, heart_rate, sleep_measures, summary_measures, withdrawn
from sso import FORBIDDEN, SecondFactor, SignIn

DOMAINS = ("garmin.com", "garmin.cn")
#: The identities of Garmin's own app. Older ones are kept for accounts that refuse the newest.
CLIENT_IDS = (
    "GARMIN_CONNECT_MOBILE_ANDROID_DI_2025Q2",
    "GARMIN_CONNECT_MOBILE_ANDROID_DI_2024Q4",
    "GARMIN_CONNECT_MOBILE_ANDROID_DI",
    "GARMIN_CONNECT_MOBILE_IOS_DI",
)
GRANT_TYPE = "https://connectapi.garmin.com/di-oauth2-service/oauth/grant/service_ticket"
APP_HEADERS = {
    "User-Agent": "GCM-Android-5.23",
    "X-Garmin-User-Agent": "com.garmin.android.apps.connectmobile/5.23; ; Google; Android/33; Dalvik/2.1.0",
    "X-Garmin-Client-Platform": "Android",
}
#: Garmin makes a code invalid after some minutes.
CODE_SECONDS = 600.0
#: New days of one job: each needs two requests, and Garmin limits them.
MAX_DAYS = 14
PAGE = 20
MAX_PAGES = 50
#: Seconds that have to be left to begin another day.
DAY_SECONDS = 10.0
NO_CONTENT, NOT_FOUND = 204, 404
MAX_DAYS_BACK = 365

plugin = Plugin()


class Settings(NamedTuple):
    """The configuration, checked."""

    username: str
    password: str
    sso_url: str
    auth_url: str
    api_url: str
    history_days: int
    lookback_days: int
    zone: Any


class Account(oauth2.Account):
    """The grant of a Garmin account."""

    @property
    def authorize_command(self) -> str:
        return f"ductile run {self.request.instance or 'garmin'} login"

    def connect(self, ticket: str, service_url: str, made_by: str) -> None:
        """Exchange a service ticket for a grant. It is on the disk when this returns."""
        refused = ""
        for client_id in CLIENT_IDS:
            self.provider = provider_of(self.provider.token_url, client_id)
            fields = {"grant_type": GRANT_TYPE, "service_ticket": ticket, "service_url": service_url}
            try:
                self._connect(self._exchange(fields, made_by))
            except oauth2.TokenError as error:
                refused = str(error)
            else:
                return
        raise Failure(
            f"Garmin gives no access for the sign-in, which was accepted: {refused}. Repeat "
            f"`{self.authorize_command}`; if that does not help, Garmin has changed its sign-in",
            retry=False,
        )


@plugin.command
def login(request: Request) -> str:
    """Sign in; with `code` in the payload, complete a sign-in for which Garmin has sent a code."""
    settings = read_settings(request)
    account = open_account(request, settings)
    code = request.payload.get("code")
    if code is None:
        return begin_login(request, settings, account)
    return complete_login(request, settings, account, str(code).strip())


def begin_login(request: Request, settings: Settings, account: Account) -> str:
    sign_in = SignIn(settings.sso_url)
    found = sign_in.with_password(settings.username, settings.password)
    if isinstance(found, str):
        account.connect(found, sign_in.service_url, fingerprint(found))
        request.remember(login=None)
        return "connected"
    request.remember(
        login={
            "csrf_secret": found.csrf,
            "cookies_secret": found.cookies,
            "referer": found.referer,
            "method": found.method,
            "expires_at": time.time() + CODE_SECONDS,
        }
    )
    how = f'{account.authorize_command} --payload \'{{"code": "123456"}}\''
    return f"Garmin asks for a code ({found.method}). Within ten minutes, run: {how}"


def complete_login(request: Request, settings: Settings, account: Account, code: str) -> str:
    pending = request.state.get("login")
    if not isinstance(pending, dict):
        raise Failure(f"no sign-in waits for a code: run `{account.authorize_command}` first", retry=False)
    if time.time() > float(pending["expires_at"]):
        raise Failure(f"the code has come too late: repeat `{account.authorize_command}`", retry=False)
    made_by = fingerprint(pending["csrf_secret"] + code)
    # Killed after the exchange: the code is used up, and the grant is on the disk.
    if not account.resume(made_by):
        sign_in = SignIn(settings.sso_url, pending["cookies_secret"])
        factor = SecondFactor(
            pending["csrf_secret"], pending["referer"], pending["cookies_secret"], pending["method"]
        )
        ticket = sign_in.with_code(code, factor)
        account.connect(ticket, sign_in.service_url, made_by)
    request.remember(login=None)
    return "connected"


@plugin.command
def poll(request: Request) -> str:
    """Get the days since the last poll, and those before it again, since watches synchronise late."""
    settings = read_settings(request)
    account = open_account(request, settings)
    today = datetime.now(timezone.utc).astimezone(settings.zone).date()  # noqa: UP017 - older Pythons
    days = wanted_days(request.state, settings, today)
    api = Api(request, account, settings.api_url)
    name = display_name(request, api)
    known = known_activities(request.state)
    activities = api.activities(days[0], days[-1])
    sent = dict(request.state.get("sent") or {})
    done, changed = [], 0
    for day in days:
        try:
            changed += send_day(request, api, name, day, activities, known, sent)
        except Failure as failure:
            if not done or not failure.retry:
                raise
            request.log(f"stopped before {day}: {failure}", "warn")
            break
        done.append(day)
        if request.seconds_left() < DAY_SECONDS:
            break
    last = max(done[-1].isoformat(), str(request.state.get("through") or ""))
    keep_progress(request, settings, date.fromisoformat(last), sent, activities, known)
    left = (today - done[-1]).days
    return f"{changed} of {len(done)} days changed" + (
        f", {left} days are left for the next poll" if left else ""
    )


@plugin.command
def health(request: Request) -> str:
    settings = read_settings(request)
    if open_account(request, settings).grant is None:
        return "the configuration is good; no account is connected: run the command login"
    return f"healthy, connected, days up to {request.state.get('through') or 'now'} were fetched"


class Api:
    """Requests to Garmin Connect."""

    def __init__(self, request: Request, account: Account, url: str) -> None:
        self._request, self._account, self._url = request, account, url

    def get(self, path: str, **query: str) -> Any:
        """Return the document; None if there is none for this day."""
        answer = self._account.call("GET", f"{self._url}{path}", query=query, headers=APP_HEADERS)
        if answer.status in (NO_CONTENT, NOT_FOUND):
            return None
        if not answer.ok:
            raise refusal(answer)
        return parse_json(answer.content, answer.what) if answer.content else None

    def document(self, path: str, **query: str) -> dict[str, Any]:
        found = self.get(path, **query)
        return found if isinstance(found, dict) else {}

    def activities(self, first: date, last: date) -> list[dict[str, Any]]:
        """Return the activities of these days as measures, all pages of them."""
        found: list[dict[str, Any]] = []
        path = "/activitylist-service/activities/search/activities"
        for page in range(MAX_PAGES):
            query = {
                "startDate": str(first),
                "endDate": str(last),
                "start": str(page * PAGE),
                "limit": str(PAGE),
            }
            listed = self.get(path, **query) or []
            try:
                found += [activity_measure(each) for each in listed]
            except (KeyError, TypeError, AttributeError) as error:
                raise Failure(f"GET {path} answers with an activity that is none: {error}") from None
            if len(listed) < PAGE:
                return found
        raise Failure(f"GET {path} has no end after {MAX_PAGES} pages", retry=False)


def refusal(answer: Answer) -> Failure:
    if answer.status == FORBIDDEN:
        by = "Cloudflare, in front of Garmin," if "cf-ray" in answer.headers else "Garmin"
        return Failure(
            f"{answer.what} answers 403: {by} refuses this machine or this account. The session is kept; "
            "the next scheduled poll tries again",
            retry=False,
        )
    return answer.failure()


def send_day(
    request: Request,
    api: Api,
    name: str,
    day: date,
    activities: list[dict[str, Any]],
    known: dict[str, str],
    sent: dict[str, str],
) -> bool:
    """Emit a day if it is not what was emitted before. Returns whether it was."""
    text = day.isoformat()
    summary = api.document(f"/usersummary-service/usersummary/daily/{name}", calendarDate=text)
    if summary.get("privacyProtected") is True:
        raise Failure(
            f"Garmin shows no data of {name}: repeat `ductile run {request.instance} login`", retry=False
        )
    query = {"date": text, "nonSleepBufferMinutes": "60"}
    sleep = api.document(f"/wellness-service/wellness/dailySleepData/{name}", **query)
    there = {each["id"] for each in activities}
    gone = [withdrawn(each, text) for each in sorted(known) if known[each] == text and each not in there]
    measures = [*summary_measures(text, summary), *sleep_measures(text, sleep)]
    measures += [each for each in activities if each["day"] == text] + gone
    payload = {"day": text, "measures": measures, "heart_rate": heart_rate(summary)}
    mark = digest(payload)
    if not measures or sent.get(text) == mark:
        return False
    sent[text] = mark
    request.emit("garmin.measures", payload, dedupe_key=f"garmin:{name}:{text}:{mark}")
    return True


def keep_progress(
    request: Request,
    settings: Settings,
    last: date,
    sent: dict[str, str],
    activities: list[dict[str, Any]],
    known: dict[str, str],
) -> None:
    """Remember what the next poll needs; what it cannot ask for again is dropped."""
    first = (last - timedelta(days=settings.lookback_days)).isoformat()
    there = {each["id"]: each["day"] for each in activities if each["day"] <= last.isoformat()}
    # An activity that was deleted on a day not yet sent stays known, so that it is withdrawn then.
    later = {each: day for each, day in known.items() if day > last.isoformat()}
    request.remember(
        through=last.isoformat(),
        sent={day: mark for day, mark in sent.items() if day >= first},
        activities={each: day for each, day in {**there, **later}.items() if day >= first},
    )


def wanted_days(state: dict[str, Any], settings: Settings, today: date) -> list[date]:
    """Return the days to ask for, oldest first: some of the last poll, and at most `MAX_DAYS` new ones."""
    through, again = state.get("through"), 0
    if isinstance(through, str):
        again = settings.lookback_days
        first = min(date.fromisoformat(through), today) - timedelta(days=again - 1)
    else:
        first = today - timedelta(days=settings.history_days - 1)
    first = max(first, today - timedelta(days=MAX_DAYS_BACK))
    return [first + timedelta(days=n) for n in range(min(MAX_DAYS + again, (today - first).days + 1))]


def display_name(request: Request, api: Api) -> str:
    known = request.state.get("display_name")
    if isinstance(known, str):
        return known
    name = api.document("/userprofile-service/socialProfile").get("displayName")
    if not isinstance(name, str) or not name:
        raise Failure(
            "Garmin's profile has no displayName: open connect.garmin.com once and set one", retry=False
        )
    request.remember(display_name=name)
    return name


def known_activities(state: dict[str, Any]) -> dict[str, str]:
    known = state.get("activities")
    return dict(known) if isinstance(known, dict) else {}


def open_account(request: Request, settings: Settings) -> Account:
    token_url = f"{settings.auth_url}/di-oauth2-service/oauth/token"
    account = Account(request, provider_of(token_url, CLIENT_IDS[0]))
    used = (account.grant or {}).get("client_id")
    if isinstance(used, str):
        account.provider = provider_of(token_url, used)
    return account


def provider_of(token_url: str, client_id: str) -> oauth2.Provider:
    basic = base64.b64encode(f"{client_id}:".encode()).decode()
    return oauth2.Provider(
        client_id=client_id,
        client_secret="",
        authorize_url="",
        token_url=token_url,
        read_answer=lambda answer: {**oauth2.read_token_answer(answer), "client_id": client_id},
        keep=("client_id",),
        headers={**APP_HEADERS, "Authorization": f"Basic {basic}"},
    )


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_settings(request: Request) -> Settings:
    config = request.config
    for key in ("username", "password"):
        if not isinstance(config.get(key), str) or not config[key]:
            raise ConfigFailure(f"`{key}` is missing in the plugin's config")
    domain = config.get("domain", DOMAINS[0])
    if domain not in DOMAINS:
        raise ConfigFailure(f"`domain` is {domain!r}; it has to be {' or '.join(DOMAINS)}")
    return Settings(
        username=config["username"],
        password=config["password"],
        sso_url=read_url(config.get("sso_url", f"https://sso.{domain}/sso"), "sso_url"),
        auth_url=read_url(config.get("auth_url", f"https://diauth.{domain}"), "auth_url"),
        api_url=read_url(config.get("api_url", f"https://connectapi.{domain}"), "api_url"),
        history_days=read_count(config, "history_days", 30, MAX_DAYS_BACK),
        lookback_days=read_count(config, "lookback_days", 3, MAX_DAYS),
        zone=read_zone(config.get("timezone")),
    )


def read_url(url: Any, key: str) -> str:
    check_url(url, key)
    return str(url).rstrip("/")


def read_count(config: dict[str, Any], key: str, default: int, most: int) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigFailure(f"`{key}` is {value!r}; it has to be a number from 1 to {most}")
    return value


def read_zone(name: Any) -> Any:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - slow to load

    try:
        return None if name is None else ZoneInfo(str(name))
    except Exception:  # noqa: BLE001 - an odd name raises KeyError, ValueError, OSError or a class of zoneinfo
        raise ConfigFailure(
            f"`timezone` is {name!r}, which this machine does not know; such as Europe/Oslo"
        ) from None


plugin.run()
