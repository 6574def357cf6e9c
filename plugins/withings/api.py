"""The API of Withings: its settings, its statuses, its pages and its signatures."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import oauth2
from ductile_http import Answer, call, check_url, read_number, read_text
from ductile_sdk import ConfigFailure, Failure, Request

BASE_URL = "https://wbsapi.withings.net"
AUTH_URL = "https://account.withings.com"
SCOPE = "user.info,user.metrics,user.activity"
#: Service, action and list of each kind of data.
KINDS = {
    "measure": ("measure", "getmeas", "measuregrps"),
    "sleep": ("v2/sleep", "getsummary", "series"),
    "activity": ("v2/measure", "getactivity", "activities"),
}
#: Which notifications announce it: weight, temperature, blood pressure; activity; sleep.
APPLI = {"measure": ("1", "2", "4"), "activity": ("16",), "sleep": ("44",)}
SLEEP_FIELDS = (
    "total_sleep_time,total_timeinbed,sleep_efficiency,sleep_latency,wakeup_latency,wakeupduration,wakeupcount,"
    "deepsleepduration,lightsleepduration,remsleepduration,hr_average,hr_min,hr_max,rr_average,rr_min,rr_max,"
    "snoring,snoringepisodecount,sleep_score,breathing_disturbances_intensity"
)
#: Statuses of the body, by https://developer.withings.com/api-reference#section/Response-status
OK, TIMEOUT, BAD_STATE, TOO_MANY = 0, 522, 524, 601
UNAUTHORIZED = (100, 101, 102, 200, 214, 277, 401, 2553, 2555)
INVALID_PARAMS = 503
#: How long a job waits because Withings asks for it.
LONGEST_WAIT = 20
MAX_WAITS = 3
MAX_PAGES = 200


class Settings(NamedTuple):
    client_id: str
    client_secret: str
    data: tuple[str, ...]
    history_days: float
    redirect_uri: str
    callback_url: str | None
    sign_requests: bool
    base_url: str
    auth_url: str


def read_settings(request: Request) -> Settings:
    """Return the configuration, checked. ConfigFailure names the key."""
    config = request.config
    needed = {key: read_text(config, key) for key in ("client_id", "client_secret")}
    for key, value in needed.items():
        if value is None:
            raise ConfigFailure(f"`{key}` is missing in the plugin's config: it is that of your Withings app")
    data = config.get("data", list(KINDS))
    if not isinstance(data, list) or not data or not all(kind in KINDS for kind in data):
        raise ConfigFailure(f"`data` in the plugin's config has to be a list of {', '.join(KINDS)}")
    urls = {
        key: read_text(config, key, default)
        for key, default in (("base_url", BASE_URL), ("auth_url", AUTH_URL), ("callback_url", None))
    }
    for key, url in urls.items():
        if url is not None:
            check_url(url, key)
    return Settings(
        client_id=needed["client_id"] or "",
        client_secret=needed["client_secret"] or "",
        data=tuple(data),
        history_days=read_number(config, "history_days", 7),
        redirect_uri=read_text(config, "redirect_uri") or "",
        callback_url=urls["callback_url"],
        sign_requests=config.get("sign_requests") is True,
        base_url=(urls["base_url"] or "").rstrip("/"),
        auth_url=(urls["auth_url"] or "").rstrip("/"),
    )


class Api:
    """Calls of one job."""

    def __init__(self, job: Request) -> None:
        self._job = job
        self.settings = settings = read_settings(job)
        provider = oauth2.Provider(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            authorize_url=f"{settings.auth_url}/oauth2_user/authorize2",
            token_url=f"{settings.base_url}/v2/oauth2",
            scope=SCOPE,
            prepare=self._prepare_token_request,
            read_answer=read_token,
            keep=("userid",),
            redirect_uri=settings.redirect_uri,
        )
        self.account = oauth2.Account(job, provider)
        #: When the first page of the last list was answered, by the clock of Withings.
        self.answered_at: float | None = None

    def rows(self, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yield all rows of a kind of data, page by page."""
        service, action, key = KINDS[kind]
        extra = {"measure": {"category": 1}, "sleep": {"data_fields": SLEEP_FIELDS}}.get(kind, {})
        offset: Any = None
        self.answered_at = None
        for _ in range(MAX_PAGES):
            position = {} if offset is None else {"offset": offset}
            body = self.request(service, action=action, **extra, **fields, **position)
            rows = body.get(key) or []
            yield from (row for row in rows if isinstance(row, dict))
            offset = body.get("offset")
            if not body.get("more") or not rows or offset is None:
                return
        raise Failure(f"Withings has more than {MAX_PAGES} pages of {kind}", retry=False)

    def subscriptions(self) -> list[dict[str, Any]]:
        return list(self.request("notify", action="list").get("profiles") or [])

    def callback_url(self) -> str:
        if self.settings.callback_url is None:
            raise ConfigFailure("`callback_url` is missing in the plugin's config: Withings posts to it")
        return self.settings.callback_url

    def request(self, service: str, **fields: Any) -> dict[str, Any]:
        """Return the body of an answer with status 0. Waits if Withings asks for a short wait."""
        url, waits = f"{self.settings.base_url}/{service}", 0
        while True:
            answer = self.account.call("POST", url, form=fields, is_rejected=is_rejected)
            document = answer.json()
            status = document.get("status")
            self.answered_at = self.answered_at or answer.server_time()
            if answer.ok and status == OK:
                body = document.get("body")
                return body if isinstance(body, dict) else {}
            wait = seconds_to_wait(document) if status == TOO_MANY else None
            if wait is None or waits == MAX_WAITS or wait > min(LONGEST_WAIT, self._job.seconds_left() - 5):
                raise failure_of(answer, document)
            time.sleep(wait)
            waits += 1

    def _prepare_token_request(self, fields: dict[str, str]) -> dict[str, str]:
        """Withings calls it an action. Signed, the secret itself is not sent."""
        fields = {"action": "requesttoken", **fields}
        if not self.settings.sign_requests:
            return fields
        fields.pop("client_secret", None)
        nonce = self._nonce()
        signed = f"requesttoken,{self.settings.client_id},{nonce}"
        return {**fields, "nonce": nonce, "signature": self._sign(signed)}

    def _nonce(self) -> str:
        timestamp = str(int(time.time()))
        form = {
            "action": "getnonce",
            "client_id": self.settings.client_id,
            "timestamp": timestamp,
            "signature": self._sign(f"getnonce,{self.settings.client_id},{timestamp}"),
        }
        answer = call(self._job, "POST", f"{self.settings.base_url}/v2/signature", form=form)
        document = answer.json()
        if document.get("status") != OK:
            raise failure_of(answer, document)
        return str(document["body"]["nonce"])

    def _sign(self, text: str) -> str:
        return hmac.new(self.settings.client_secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def read_token(answer: Answer) -> dict[str, Any]:
    """The token document is in the body, and a refusal has HTTP status 200."""
    document = answer.json()
    status, body = document.get("status"), document.get("body")
    if status == OK and isinstance(body, dict) and body.get("access_token"):
        return body
    words = str(document.get("error") or "")
    if status == INVALID_PARAMS and "client" in words:
        raise oauth2.TokenError("invalid_client", words)
    if status == INVALID_PARAMS or status in UNAUTHORIZED:
        raise oauth2.TokenError("invalid_grant", f"status {status}: {words}")
    raise failure_of(answer, document)


def is_rejected(answer: Answer) -> bool:
    return answer.status == 401 or answer.json_or_empty().get("status") in UNAUTHORIZED  # noqa: PLR2004 - of HTTP


def seconds_to_wait(document: dict[str, Any]) -> float | None:
    body = document.get("body")
    wait = body.get("wait_seconds") if isinstance(body, dict) else None
    return float(wait) if isinstance(wait, (int, float)) else None


def failure_of(answer: Answer, document: dict[str, Any]) -> Failure:
    status, words = document.get("status"), document.get("error") or "no message"
    retry = status in (TIMEOUT, BAD_STATE, TOO_MANY) or answer.failure().retry
    wait = seconds_to_wait(document)
    more = f"; it asks to wait {wait:g} s" if wait else ""
    return Failure(f"{answer.what} answers status {status}: {words}{more}", retry=retry)
