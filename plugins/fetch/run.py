#!/usr/bin/env python3
"""The fetch plugin: HTTP requests by the standard library, with limits on size, time and where they go."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import sys
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)
NOT_MODIFIED = 304
#: Answers below 500 that may be different next time: timeout, too early, too many requests.
PASSING = (408, 425, 429)
SERVER_ERROR = 500
#: Seconds kept back for answering before the process is ended.
RESERVE = 1.0

plugin = Plugin()


class Wanted(NamedTuple):
    """One request to make."""

    url: str
    method: str
    headers: dict[str, str]
    body: bytes | None = None


class Settings(NamedTuple):
    """The configuration, checked."""

    url: str | None
    headers: dict[str, str]
    timeout: float
    max_bytes: int
    expect: tuple[int, ...]
    allow_hosts: tuple[str, ...]
    max_redirects: int


class Got(NamedTuple):
    url: str
    status: int
    headers: dict[str, str]
    content: bytes


@plugin.command
def poll(request: Request) -> str:
    """Conditional, so that a server that knows validators sends nothing twice."""
    settings = read_settings(request)
    if settings.url is None:
        raise Failure("poll needs `url` in the plugin's config", retry=False)
    known = request.state if request.state.get("url") == settings.url else {}
    got = follow(Wanted(settings.url, "GET", validators(known)), settings, also=(NOT_MODIFIED,))
    if got.status == NOT_MODIFIED:
        return "not modified"
    digest = hashlib.sha256(got.content).hexdigest()
    request.remember(
        url=settings.url,
        etag=got.headers.get("etag"),
        last_modified=got.headers.get("last-modified"),
        sha256=digest,
    )
    if digest == known.get("sha256"):
        return "unchanged"
    request.emit("fetch.changed", shown(got))
    return f"changed: {len(got.content)} bytes"


@plugin.command
def handle(request: Request) -> dict[str, Any]:
    settings = read_settings(request)
    got = follow(wanted_by(request, settings), settings)
    answer = shown(got)
    request.emit("fetch.done", answer)
    return answer


@plugin.command
def health(request: Request) -> str:
    settings = read_settings(request)
    if settings.url is not None:
        check_address(settings.url, settings)
    return "healthy"


def read_settings(request: Request) -> Settings:
    config = request.config
    try:
        timeout = float(config.get("timeout", 30))
        return Settings(
            url=None if config.get("url") is None else str(config["url"]),
            headers=texts(config.get("headers") or {}, "headers"),
            timeout=max(0.1, min(timeout, request.seconds_left() - RESERVE)),
            max_bytes=int(config.get("max_bytes", 1024 * 1024)),
            expect=tuple(int(status) for status in config.get("expect") or ()),
            allow_hosts=tuple(str(host).lower() for host in config.get("allow_hosts") or ()),
            max_redirects=int(config.get("max_redirects", 5)),
        )
    except (TypeError, ValueError) as error:
        raise Failure(f"the plugin's config cannot be used: {error}", retry=False) from None


def texts(given: Any, name: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise Failure(f"`{name}` has to be an object of names and texts", retry=False)
    return {str(key): str(value) for key, value in given.items()}


def wanted_by(request: Request, settings: Settings) -> Wanted:
    """What the payload asks for, over what is configured."""
    payload = request.payload
    url = payload.get("url") or settings.url
    if not isinstance(url, str):
        raise Failure("`url` is missing: give it in the payload or in the plugin's config", retry=False)
    headers = texts(payload.get("headers") or {}, "headers")
    body = payload.get("body")
    content = None if body is None else str(body).encode()
    if "json" in payload:
        content = json.dumps(payload["json"]).encode()
        headers.setdefault("Content-Type", "application/json")
    default = request.config.get("method") or ("GET" if content is None else "POST")
    method = str(payload.get("method") or default).upper()
    if not (method.isascii() and method.isalpha()):
        raise Failure(f"{method!r} is not an HTTP method", retry=False)
    return Wanted(url, method, headers, content)


def validators(known: dict[str, Any]) -> dict[str, str]:
    pairs = (("If-None-Match", known.get("etag")), ("If-Modified-Since", known.get("last_modified")))
    return {name: value for name, value in pairs if isinstance(value, str)}


def follow(wanted: Wanted, settings: Settings, also: tuple[int, ...] = ()) -> Got:
    """Make the request, and those it is referred to. Only what changes nothing is sent elsewhere."""
    for _ in range(settings.max_redirects + 1):
        got = send(wanted, settings)
        place = got.headers.get("location")
        if got.status not in REDIRECTS or place is None or wanted.method not in ("GET", "HEAD"):
            check_status(wanted, got, settings.expect, also)
            return got
        target = urljoin(wanted.url, place)
        headers = wanted.headers if origin(target) == origin(wanted.url) else {}
        wanted = wanted._replace(url=target, headers=headers)
    raise Failure(f"{wanted.url}: more than {settings.max_redirects} redirects", retry=False)


def check_status(wanted: Wanted, got: Got, expect: tuple[int, ...], also: tuple[int, ...]) -> None:
    good = got.status in expect if expect else 200 <= got.status < 300  # noqa: PLR2004 - the meaning of 2xx
    if good or got.status in also:
        return
    retry = got.status >= SERVER_ERROR or got.status in PASSING
    said = got.content[:200].decode("utf-8", "replace").strip()
    raise Failure(f"{wanted.method} {wanted.url} answers {got.status}: {said}".rstrip(": "), retry=retry)


def check_address(url: str, settings: Settings) -> SplitResult:
    try:
        place = urlsplit(url)
        port = place.port
    except ValueError as error:
        raise Failure(f"{url!r} is not an address: {error}", retry=False) from None
    if place.scheme not in PORTS or not place.hostname or port == 0:
        raise Failure(f"{url!r} is not an http or https address", retry=False)
    if settings.allow_hosts and place.hostname.lower() not in settings.allow_hosts:
        raise Failure(f"{place.hostname} is not among `allow_hosts` in the plugin's config", retry=False)
    if place.username is not None or place.password is not None:
        raise Failure("an address must not hold a password: set a header instead", retry=False)
    return place


def origin(url: str) -> tuple[str, str | None, int | None]:
    place = urlsplit(url)
    return place.scheme, place.hostname, place.port or PORTS.get(place.scheme)


def own_headers(url: str, settings: Settings) -> dict[str, str]:
    """Configured headers may hold credentials: they go to configured places and nowhere else."""
    host = urlsplit(url).hostname or ""
    home = settings.url is not None and origin(url) == origin(settings.url)
    return settings.headers if home or host.lower() in settings.allow_hosts else {}


def send(wanted: Wanted, settings: Settings) -> Got:
    place = check_address(wanted.url, settings)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.hostname or "", place.port, timeout=settings.timeout)
    path = (place.path or "/") + (f"?{place.query}" if place.query else "")
    headers = {"User-Agent": "ductile-fetch/1", "Accept": "*/*", **own_headers(wanted.url, settings)}
    try:
        connection.request(wanted.method, path, body=wanted.body, headers={**headers, **wanted.headers})
        response = connection.getresponse()
        content = response.read(settings.max_bytes + 1)
        if len(content) > settings.max_bytes:
            raise Failure(f"{wanted.url} sends more than {settings.max_bytes} bytes", retry=False)
        named = {name.lower(): value for name, value in response.getheaders()}
        return Got(wanted.url, response.status, named, content)
    except (ValueError, http.client.InvalidURL) as error:
        raise Failure(f"{wanted.method} {wanted.url} cannot be sent: {error}", retry=False) from None
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise Failure(f"{wanted.method} {wanted.url} failed: {reason}") from None
    finally:
        connection.close()


def shown(got: Got) -> dict[str, Any]:
    """The answer as JSON: `json` where it is JSON, `body` for other text, `body_base64` for other bytes."""
    headers = {name: value for name, value in got.headers.items() if name != "set-cookie"}
    return {"url": got.url, "status": got.status, "headers": headers, **shown_content(got)}


def shown_content(got: Got) -> dict[str, Any]:
    kind = got.headers.get("content-type", "").lower()
    if "json" in kind:
        try:
            return {"json": json.loads(got.content, parse_constant=refuse_constant)}
        except (ValueError, RecursionError):
            pass  # what the server calls JSON is shown as the text it is
    charset = kind.partition("charset=")[2].split(";")[0].strip(' "') or "utf-8"
    try:
        return {"body": got.content.decode(charset)}
    except (LookupError, UnicodeDecodeError):
        return {"body_base64": base64.b64encode(got.content).decode()}


def refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity, which no JSON has and no answer may hold


plugin.run()
