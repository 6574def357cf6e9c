"""The API of Google Calendar: settings, access by OAuth or by a service account, pages and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import oauth2
import rs256
from ductile_http import Answer, call, check_url, read_number, read_text
from ductile_sdk import ConfigFailure, Failure, Request

BASE_URL = "https://www.googleapis.com/calendar/v3"
AUTH_URL = "https://accounts.google.com"
TOKEN_URL = "https://oauth2.googleapis.com"  # noqa: S105 - an address
SCOPE = "https://www.googleapis.com/auth/calendar.events"
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
#: Reasons of a 403 that pass: https://developers.google.com/workspace/calendar/api/guides/errors
LIMITS = ("rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded")
UNAUTHORIZED, FORBIDDEN = 401, 403
LIFETIME = 3600
#: A clock that differs by less is not the reason for a refusal.
TOLERANCE = 30
MAX_PAGES = 200


class Settings(NamedTuple):
    client_id: str
    client_secret: str
    service_account: dict[str, Any] | None
    subject: str | None
    calendar: str
    emit_existing: bool
    minutes: float
    redirect_uri: str
    base_url: str
    auth_url: str
    token_url: str


def read_settings(request: Request) -> Settings:
    """Return the configuration, checked. ConfigFailure names the key."""
    config = request.config
    file = read_text(config, "service_account_file")
    client = {key: read_text(config, key) for key in ("client_id", "client_secret")}
    if file is None and None in client.values():
        raise ConfigFailure(
            "give `client_id` and `client_secret`, or `service_account_file`, in the plugin's config"
        )
    urls = {}
    for key, default in (("base_url", BASE_URL), ("auth_url", AUTH_URL), ("token_url", TOKEN_URL)):
        urls[key] = (read_text(config, key, default) or default).rstrip("/")
        check_url(urls[key], key)
    return Settings(
        client_id=client["client_id"] or "",
        client_secret=client["client_secret"] or "",
        service_account=None if file is None else read_service_account(file),
        subject=read_text(config, "subject"),
        calendar=read_text(config, "calendar", "primary") or "primary",
        emit_existing=config.get("emit_existing") is True,
        minutes=read_number(config, "minutes", 60),
        redirect_uri=read_text(config, "redirect_uri") or "",
        **urls,
    )


def read_service_account(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - pathlib is slow to load
            account = json.load(opened)
    except (OSError, ValueError) as error:
        raise ConfigFailure(f"`service_account_file` cannot be read: {error}") from None
    if not isinstance(account, dict) or not account.get("client_email") or not account.get("private_key"):
        raise ConfigFailure("`service_account_file` is not the JSON key of a service account")
    return account


class Api:
    """Calls of one job, for one calendar."""

    def __init__(self, job: Request) -> None:
        self._job = job
        self.settings = settings = read_settings(job)
        provider = oauth2.Provider(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            authorize_url=f"{settings.auth_url}/o/oauth2/v2/auth",
            token_url=f"{settings.token_url}/token",
            scope=SCOPE,
            # Without these Google gives no refresh token, or only the first time.
            authorize_parameters={"access_type": "offline", "prompt": "consent"},
            redirect_uri=settings.redirect_uri,
        )
        self.account = oauth2.Account(job, provider)
        stored = job.state.get("service_account")
        #: The access token of the service account; kept in the state.
        self.service_token: dict[str, Any] = stored if isinstance(stored, dict) else {}

    @property
    def events_url(self) -> str:
        return f"{self.settings.base_url}/calendars/{quote(self.settings.calendar, safe='')}/events"

    def events(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list. The last one has `nextSyncToken`."""
        page: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            position = {"pageToken": page["nextPageToken"]} if page else {}
            page = self.json("GET", self.events_url, query={"maxResults": 250, **query, **position})
            yield page
            if not page.get("nextPageToken"):
                return
        raise Failure(f"the calendar has more than {MAX_PAGES} pages", retry=False)

    def json(self, method: str, url: str, **parts: Any) -> dict[str, Any]:
        """Return the body of a success. Raises `Refused`, or a Failure that may be retried for a limit."""
        answer = self._call(method, url, parts)
        if answer.ok:
            return answer.json()
        raise refusal_of(answer)

    def _call(self, method: str, url: str, parts: dict[str, Any]) -> Answer:
        if self.settings.service_account is None:
            return self.account.call(method, url, **parts)
        answer = call(self._job, method, url, headers=self._service_headers(), **parts)
        if answer.status == UNAUTHORIZED:
            self.service_token = {}
            answer = call(self._job, method, url, headers=self._service_headers(), **parts)
        return answer

    def _service_headers(self) -> dict[str, str]:
        known = self.service_token
        if float(known.get("token_expires_at") or 0) - oauth2.EXPIRY_MARGIN <= time.time():
            known = self.service_token = self._request_service_token()
        return {"Authorization": f"Bearer {known['access_token']}"}

    def _request_service_token(self, ahead: float = 0.0) -> dict[str, Any]:
        """Exchange a signed assertion. `ahead` is how far Google's clock is ahead of ours."""
        now = time.time()
        form = {"grant_type": JWT_GRANT, "assertion": self._assertion(now + ahead)}
        answer = call(self._job, "POST", f"{self.settings.token_url}/token", form=form)
        body = answer.json_or_empty()
        if answer.ok and body.get("access_token"):
            lifetime = float(body.get("expires_in") or LIFETIME)
            return {"access_token": body["access_token"], "token_expires_at": now + lifetime}
        theirs = answer.server_time()
        if not ahead and theirs is not None and abs(theirs - now) > TOLERANCE:
            # Google refuses an assertion from the future, or an expired one: use its clock.
            self._job.log(f"the clock of this machine differs from Google's by {theirs - now:.0f} s", "warn")
            return self._request_service_token(theirs - now)
        words = body.get("error_description") or body.get("error") or answer.status
        raise Failure(f"Google refuses the service account: {words}", retry=False)

    def _assertion(self, now: float) -> str:
        account = self.settings.service_account or {}
        try:
            key = rs256.read_key(str(account["private_key"]))
        except (ValueError, IndexError) as error:
            raise ConfigFailure(f"`private_key` in `service_account_file` cannot be used: {error}") from None
        claims = {
            "iss": account["client_email"],
            "scope": SCOPE,
            "aud": account.get("token_uri") or f"{self.settings.token_url}/token",
            "iat": int(now),
            "exp": int(now) + LIFETIME,
            **({"sub": self.settings.subject} if self.settings.subject else {}),
        }
        return rs256.encode_jwt(key, claims, account.get("private_key_id"))


class Refused(Failure):
    """Google refuses a request; `status` is that of HTTP."""

    def __init__(self, message: str, *, status: int, retry: bool) -> None:
        super().__init__(message, retry=retry)
        self.status = status


def refusal_of(answer: Answer) -> Refused:
    error = answer.json_or_empty().get("error")
    error = error if isinstance(error, dict) else {}
    reasons = [each.get("reason") for each in error.get("errors") or [] if isinstance(each, dict)]
    limited = answer.status == FORBIDDEN and any(reason in LIMITS for reason in reasons)
    words = error.get("message") or answer.content[:200].decode("utf-8", "replace")
    return Refused(f"{answer.what} answers {answer.status}: {words}", status=answer.status, retry=limited)
