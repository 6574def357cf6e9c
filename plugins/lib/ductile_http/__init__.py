"""HTTP for plugins that call a service. Standard library only.

Statuses have one meaning for all of them: 429, 408, 425 and 5xx may be retried, other refusals may not. A
`Retry-After` is waited for within the job if the time suffices. Nothing lasts longer than the job.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from ductile_sdk import ConfigFailure, Failure, Request
from ductile_settings import read_number, read_text  # noqa: F401 - plugins that call a service import both here

#: Seconds kept for the response before the process is ended.
RESERVE = 1.0
SERVER_ERROR = 500
TOO_MANY_REQUESTS = 429
UNAVAILABLE = 503
#: Statuses below 500 after which a retry may succeed: timeout, too early, too many requests.
TRANSIENT = (408, 425, TOO_MANY_REQUESTS)
REFUSED_KEY = (401, 403)
#: Statuses that are an answer, whatever they mean: a retry would get the same.
FINAL = tuple(status for status in range(300, 500) if status not in TRANSIENT)
#: Requests of one job to a server that asks to wait.
MAX_TRIES = 3
MAX_QUOTED = 300
MAX_LINE = 16 * 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024
#: zlib reads the header of gzip with this window size, and that of zlib too.
GZIP_OR_ZLIB = 47


class HttpFailure(Failure):
    """The server refused; `status` is its answer, and `wait` how many seconds it asks to wait.

    `code` is `error.code` or `error.type` of a JSON body.
    """

    def __init__(self, message: str, *, status: int, wait: float | None, code: str = "") -> None:
        super().__init__(message, retry=status >= SERVER_ERROR or status in TRANSIENT)
        self.status = status
        self.wait = wait
        self.code = code


@contextmanager
def before_deadline(request: Request, at_most: float | None = None) -> Iterator[None]:
    """Raise a `Failure` shortly before the job's deadline, or after `at_most` seconds.

    A signal ends the code inside whatever it waits for, also a server that sends one byte a second.
    """
    left = max(0.05, request.seconds_left() - RESERVE)
    seconds = left if at_most is None else min(left, at_most)
    words = "before the job's deadline: raise its `timeout`" if seconds == left else f"within {seconds:g} s"

    def over(*_: object) -> None:
        raise Failure(f"no complete answer {words}")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def check_url(url: Any, key: str) -> SplitResult:
    """Return the parts of an http or https URL. ConfigFailure names the key of the configuration."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port
    except ValueError:
        raise ConfigFailure(f"`{key}` in the plugin's config is not a URL: {url!r}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigFailure(f"`{key}` in the plugin's config has to be an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ConfigFailure(f"`{key}` in the plugin's config must not hold a password")
    if not url.isascii() or any(character <= " " for character in url):
        raise ConfigFailure(
            f"`{key}` in the plugin's config holds a blank or a letter that a URL cannot have"
        )
    return parts


class Response:
    """An answer whose body has not been read."""

    def __init__(self, raw: http.client.HTTPResponse, url: str) -> None:
        self._raw = raw
        self.url = url
        self.status = raw.status
        #: By name in lower case.
        self.headers = {name.lower(): value for name, value in raw.getheaders()}

    def read(self, limit: int) -> bytes:
        """Return the body, decompressed. Failure if it is longer than `limit`."""
        content = self._raw.read(limit + 1)
        if len(content) <= limit and self._raw.length:
            raise Failure(f"{self.url}: the answer ends {self._raw.length} bytes too early")
        if self.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
            decoder = zlib.decompressobj(GZIP_OR_ZLIB)
            try:
                content = decoder.decompress(content, limit + 1)
            except zlib.error as error:
                raise Failure(f"{self.url} sends a body that cannot be decompressed: {error}") from None
        if len(content) > limit:
            raise Failure(f"{self.url} sends more than {limit} bytes", retry=False)
        return content

    def json(self, limit: int = 64 * 1024 * 1024) -> Any:
        return parse_json(self.read(limit), self.url)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of a stream as they arrive, without blank ones."""
        while line := self._raw.readline(MAX_LINE):
            if line.strip():
                yield line.strip()

    def seconds_to_wait(self) -> float | None:
        """Return what `Retry-After` asks for. An instant is compared with the server's own clock."""
        milliseconds = self.headers.get("retry-after-ms", "").strip()
        if milliseconds.isascii() and milliseconds.isdigit():
            return float(milliseconds) / 1000
        value = self.headers.get("retry-after", "").strip()
        if value.isascii() and value.isdigit():
            return float(value)
        until, now = _instant(value), _instant(self.headers.get("date", ""))
        if until is None:
            return None
        return max(0.0, (until - (now or datetime.now(timezone.utc))).total_seconds())  # noqa: UP017 - 3.10

    def refusal(self) -> tuple[str, str]:
        """Return the message in the body of an error (`error`, `error.message`, or the text) and its code."""
        content = self._raw.read(64 * 1024)
        try:
            said = json.loads(content)
        except ValueError:
            said = content.decode("utf-8", "replace")
        if isinstance(said, dict):
            said = said.get("error", said.get("detail", said))
        code = ""
        if isinstance(said, dict):
            code = str(said.get("code") or said.get("type") or "")
            said = said.get("message", said)
        text = said if isinstance(said, str) else json.dumps(said)
        return " ".join(text.split())[:MAX_QUOTED], code


class Client:
    """Calls one server, with its headers."""

    def __init__(
        self,
        base_url: str,
        *,
        request: Request,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        secret: str = "",
        key: str = "base_url",
    ) -> None:
        """`secret` never appears in a message; `key` is the name of the URL in the configuration."""
        self._parts = check_url(base_url, key)
        self._base = base_url
        self._request = request
        self._timeout = timeout
        self._headers = {"User-Agent": "ductile-plugin/1", "Accept-Encoding": "identity", **(headers or {})}
        self._secret = secret

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        also: tuple[int, ...] = (),
    ) -> Iterator[Response]:
        """Yield an answer of 2xx or `also`; raises `HttpFailure` for others. `Retry-After` is honoured.

        `body` is sent as JSON, unless it is bytes.
        """
        for number in range(1, MAX_TRIES + 1):
            with self._once(method, path, body, headers or {}) as response:
                if 200 <= response.status < 300 or response.status in also:  # noqa: PLR2004 - the meaning of 2xx
                    yield response
                    return
                failure = self._failure(method, response)
            if not self._worth_waiting(failure, number):
                raise failure
            sys.stderr.write(f"waiting {failure.wait:g} s, as the server asks: {failure}\n")
            time.sleep(failure.wait or 0.0)

    def _worth_waiting(self, failure: HttpFailure, number: int) -> bool:
        asked = failure.status in (TOO_MANY_REQUESTS, UNAVAILABLE) and failure.wait is not None
        enough = (failure.wait or 0.0) + 2 * RESERVE < self._request.seconds_left()
        return asked and enough and number < MAX_TRIES

    def _failure(self, method: str, response: Response) -> HttpFailure:
        wait = response.seconds_to_wait()
        said, code = response.refusal()
        text = f"{method} {response.url} answers {response.status}: {said}".rstrip(": ")
        if wait is not None:
            text = f"{text} (to be tried again in {wait:g} s)"
        return HttpFailure(self._masked(text), status=response.status, wait=wait, code=code)

    def _masked(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text

    @contextmanager
    def _once(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Iterator[Response]:
        url = (self._base.rstrip("/") if path.startswith("/") else self._base) + path
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        sent = {**self._headers, **headers}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with _reported(f"{method} {url}", self._timeout, self._masked):
            try:
                try:
                    connection.request(method, target, body=content, headers=sent)
                except ValueError as error:
                    raise ConfigFailure(
                        f"{method} {url} cannot be sent: {self._masked(str(error))}"
                    ) from None
                yield Response(connection.getresponse(), url)
            finally:
                connection.close()


class Answer:
    """An answer with its body."""

    def __init__(self, response: Response, method: str) -> None:
        self.status = response.status
        self.headers = response.headers
        self.content = response.read(MAX_ANSWER)
        #: The request in words, without its query.
        self.what = f"{method} {response.url.partition('?')[0]}"

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004 - the meaning of 2xx

    def json(self) -> dict[str, Any]:
        """Return the JSON object in the body. Failure if there is none."""
        body = parse_json(self.content, self.what)
        if not isinstance(body, dict):
            raise Failure(f"{self.what} does not answer with a JSON object")
        return body

    def json_or_empty(self) -> dict[str, Any]:
        """Return the JSON object in the body, or an empty one: refusals may have any form."""
        try:
            return self.json()
        except Failure:
            return {}

    def server_time(self) -> float | None:
        """Return the clock of the server, in seconds; None if it does not say."""
        instant = _instant(self.headers.get("date", ""))
        return None if instant is None else instant.timestamp()

    def failure(self) -> Failure:
        """Return the failure for this status, with the beginning of the body."""
        said = " ".join(self.content.decode("utf-8", "replace").split())[:MAX_QUOTED]
        retry = self.status >= SERVER_ERROR or self.status in TRANSIENT
        return Failure(f"{self.what} answers {self.status}: {said}".rstrip(": "), retry=retry)


def call(
    request: Request,
    method: str,
    url: str,
    *,
    query: Mapping[str, Any] | None = None,
    form: Mapping[str, Any] | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Answer:
    """Send one request and return its answer, also a refusal. Redirects are not followed.

    `form` is sent as a form, `body` as JSON. Raises `HttpFailure` for 408, 425, 429 and 5xx, after
    waiting as `Retry-After` asks if the time suffices.
    """
    left = request.seconds_left() - RESERVE
    if left <= 0:
        raise Failure(f"{method} {url} was not sent: the deadline of the job is too near")
    sent = {"Accept": "application/json", **(headers or {})}
    if form is not None:
        body = urlencode(form).encode()
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    client = Client(url, request=request, timeout=min(timeout, left))
    with client.open(
        method, f"?{urlencode(query)}" if query else "", body, headers=sent, also=FINAL
    ) as response:
        return Answer(response, method)


@contextmanager
def _reported(what: str, timeout: float, masked: Callable[[str], str]) -> Iterator[None]:
    """Turn what the network does into a `Failure`."""
    try:
        yield
    except TimeoutError:
        raise Failure(f"{what}: nothing received for {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        reason = masked(str(error)) or type(error).__name__
        raise Failure(f"{what} failed: {reason}") from None


def parse_json(content: bytes, url: str) -> Any:
    """Decode JSON of a server. Failure if it is none; NaN, which no answer may hold, becomes null."""
    try:
        return json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        quoted = content[:80].decode("utf-8", "replace")
        raise Failure(f"{url} does not answer with JSON: {quoted!r}") from None


def _instant(value: str) -> datetime | None:
    try:
        read = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return read if read.tzinfo is not None else read.replace(tzinfo=timezone.utc)  # noqa: UP017 - 3.10
