"""Sessions of browsers: a cookie in place of the bearer token that a page could not keep from other scripts.

A cookie is signed with a key that is derived from the access token of its session. So no table of sessions is
needed, cookies are valid across restarts, and they end when the token is revoked or replaced. The store has
only the sessions that were ended by signing out, until their cookies expire.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from ductile.config.snapshot import AccessToken
from ductile.core.auth_scopes import EVERYTHING
from ductile.core.host_names import host_of, is_loopback_listener, is_meant_for
from ductile.errors import DeniedError, MisdirectedError
from ductile.http.responses import Header
from ductile.operations.system.probes import is_forwarded
from ductile.struct import Value

LIFETIME = timedelta(days=7)
CSRF_HEADER = "X-CSRF-Token"
#: Methods of requests that change nothing.
_SAFE_METHODS = ("GET", "HEAD")
_KEY_PURPOSE = b"ductile dashboard session"


class BrowserSession(Value):
    """A signed-in browser, with the rights of its token."""

    token: AccessToken
    id: str
    expires_at: datetime
    #: Sent by the page with every change, in a header that no other page can set.
    csrf: str


class Sessions:
    """Issues and reads session cookies."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        #: The token of sessions that a link from the control socket has started. Only the user that runs the
        #: daemon gets such links. Every daemon makes a new key, so these sessions end with the daemon.
        self.local_token = AccessToken(name="local", digest=secrets.token_bytes(32), scopes=(EVERYTHING,))
        #: Ids of the sessions that were ended by signing out, as the store has them.
        self.ended: set[str] = set()

    def issue(self, token: AccessToken) -> str:
        """Return the value of a new cookie."""
        expires = int((self._now() + LIFETIME).timestamp())
        signed = f"{expires}.{secrets.token_urlsafe(16)}"
        return f"{signed}.{_sign(token, signed)}"

    def read(self, value: str, tokens: Iterable[AccessToken]) -> BrowserSession | None:
        """Return the session of a cookie; None if no token has signed it, or it has expired or ended."""
        signed, _, signature = value.rpartition(".")
        expires, _, session_id = signed.partition(".")
        if not (expires.isascii() and expires.isdigit()) or session_id in self.ended:
            return None
        if len(expires) > len(str(2**53)) or int(expires) <= self._now().timestamp():
            return None
        signer = None
        for token in (*tokens, self.local_token):
            if hmac.compare_digest(_sign(token, signed).encode(), signature.encode()):
                signer = token
        if signer is None:
            return None
        return BrowserSession(
            token=signer,
            id=session_id,
            expires_at=datetime.fromtimestamp(int(expires), UTC),
            csrf=_sign(signer, f"csrf.{session_id}"),
        )


def _sign(token: AccessToken, text: str) -> str:
    key = hmac.digest(token.digest, _KEY_PURPOSE, "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def session_cookie(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the value of the session cookie of a request.

    The header also has cookies of other programs on this host, some of which `http.cookies` cannot read.
    """
    parts = headers.get(b"cookie", b"").decode("latin-1").split(";")
    cookies = dict(part.strip().partition("=")[::2] for part in parts)
    return cookies.get(_cookie_name(headers))


def set_cookie(headers: Mapping[bytes, bytes], value: str) -> Header:
    """Return the header that stores the cookie in the browser; an empty value removes it."""
    age = int(LIFETIME.total_seconds()) if value else 0
    secure = "; Secure" if headers.get(b"x-forwarded-proto") == b"https" else ""
    text = f"{_cookie_name(headers)}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"
    return (b"set-cookie", text.encode())


def _cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the name of the cookie, with the port: browsers send a cookie to all ports of a host."""
    port = headers.get(b"host", b"").decode("latin-1").rpartition(":")[2]
    return f"ductile_{port}" if port.isascii() and port.isdigit() else "ductile_session"


def refuse_foreign_host(listen_address: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise `MisdirectedError` if the request names a host that is not ours.

    Another page can send such a request if its name resolves to this machine. A listener that is not on
    loopback, or is behind a proxy, does not know its names, so nothing is refused.
    """
    host = headers.get(b"host")
    if host is None or not is_loopback_listener(listen_address) or is_forwarded(headers):
        return
    if not is_meant_for(host.decode("latin-1"), None, listen_address):
        raise MisdirectedError(
            "the Host header names another host than this listener's",
            hint=f"Open http://{listen_address}/ui, or let the proxy send X-Forwarded-For.",
        )


def refuse_foreign_page(listen_address: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise `DeniedError` if a page of another host has sent the request, else like `refuse_foreign_host`.

    This is for requests with a token: programs send them, without an `Origin`.
    """
    refuse_foreign_host(listen_address, headers)
    origin = headers.get(b"origin")
    if origin is None or _is_same_origin(origin, headers):
        return
    if not is_loopback_listener(listen_address) or not is_meant_for(
        None, origin.decode("latin-1"), listen_address
    ):
        raise DeniedError(
            "the Origin header names another host than this listener's",
            hint="Call it from a program, or from a page of this host.",
        )


def refuse_other_origin(method: str, headers: Mapping[bytes, bytes], csrf: str | None) -> None:
    """Raise `DeniedError` if a request with a session was not sent by our own page.

    SameSite does not protect from pages on other ports of the same host, so the origin is compared in full,
    and every change has to carry `csrf`. It is None at sign-in, where there is no session yet.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None and site not in (b"same-origin", b"none"):
        raise _foreign_page_error()
    origin = headers.get(b"origin")
    if origin is not None and not _is_same_origin(origin, headers):
        raise _foreign_page_error()
    if method in _SAFE_METHODS:
        return
    if origin is None and site is None:
        raise _foreign_page_error()
    sent = headers.get(CSRF_HEADER.lower().encode(), b"")
    if csrf is not None and not hmac.compare_digest(sent, csrf.encode()):
        raise DeniedError(
            f"the header {CSRF_HEADER} is missing or wrong",
            hint="GET /ui/session returns its value; scripts use an access token instead of a session.",
        )


def _is_same_origin(origin: bytes, headers: Mapping[bytes, bytes]) -> bool:
    scheme, _, authority = origin.decode("latin-1").lower().partition("://")
    names = [headers.get(b"host")]
    if is_forwarded(headers):
        names.append(headers.get(b"x-forwarded-host"))
    hosts = {name.decode("latin-1").lower() for name in names if name is not None}
    return scheme in ("http", "https") and host_of(authority) is not None and authority in hosts


def _foreign_page_error() -> DeniedError:
    return DeniedError(
        "this request of a signed-in browser does not come from the dashboard",
        hint="Behind a proxy, pass on the Host header or send X-Forwarded-Host.",
    )
