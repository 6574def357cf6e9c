"""The dashboard's own requests: the page and its files, signing in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ductile.dashboard.assets import STATIC, load_assets
from ductile.dashboard.rights import SessionView, session_view
from ductile.errors import DuctileError, MethodNotAllowedError, NotFoundError, RefusedError, UnauthorizedError
from ductile.http.application import Exchange, HttpApplication, report_request, single_headers
from ductile.http.authentication import Authenticator
from ductile.http.body import BODY_SECONDS, decode_object, read_body
from ductile.http.responses import Header, HttpResponse, JsonResponse, encode
from ductile.http.sessions import BrowserSession, refuse_foreign_host, refuse_other_origin, set_cookie
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel, describe_error

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

    from ductile.config.snapshot import AccessToken
    from ductile.operations.context import OperationContext

#: The first segment of its paths.
SEGMENT = b"ui"
_SESSION, _SIGN_OUT = "/ui/session", "/ui/session/end"
_READING = ("GET", "HEAD")
_METHODS = (*_READING, "POST")
_MAX_BODY = 16 * 1024
_NO_STORE = (b"cache-control", b"no-store")
_BAD_REQUEST = 400


class DashboardExchange(Exchange):
    @property
    def path(self) -> str:
        return self.scope["raw_path"].decode("latin-1")[:300]


class DashboardApplication(HttpApplication[DashboardExchange]):
    def __init__(
        self,
        context: OperationContext,
        authenticator: Authenticator,
        signals: SignalBus,
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._authenticator = authenticator
        self._signals = signals
        self._clock = clock

    def new_exchange(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> DashboardExchange:
        return DashboardExchange(scope, receive, send, started_at=self._clock())

    async def respond(self, exchange: DashboardExchange) -> HttpResponse:
        snapshot = self._context.snapshot()
        headers = single_headers(exchange.scope)
        if not snapshot.api.ui:
            raise NotFoundError("there is no dashboard here", hint="Remove `ui: false` from the section api.")
        refuse_foreign_host(snapshot.api.listen, headers)
        method, path = exchange.scope["method"], exchange.path
        if path in (_SESSION, _SIGN_OUT):
            return await self._answer_session(exchange, method, path, headers)
        if method not in _READING:
            raise MethodNotAllowedError(f"{method} is not for this path", details={"allow": "GET, HEAD"})
        return _file(path, headers)

    async def _answer_session(
        self, exchange: DashboardExchange, method: str, path: str, headers: Mapping[bytes, bytes]
    ) -> HttpResponse:
        if method == "POST":
            body = await read_body(exchange.scope, exchange.receive, limit=_MAX_BODY, seconds=BODY_SECONDS)
            exchange.body_read = True
            if path == _SESSION:
                return self._sign_in(exchange, headers, decode_object(body))
            return await self._sign_out(exchange, headers)
        if method in _READING and path == _SESSION:
            session = self._authenticator.identify_session(headers, method)
            exchange.token = session.token.name
            return self._show(session)
        allowed = "POST" if path == _SIGN_OUT else "GET, HEAD, POST"
        raise MethodNotAllowedError(f"{method} is not for this path", details={"allow": allowed})

    def _sign_in(
        self, exchange: DashboardExchange, headers: Mapping[bytes, bytes], body: Mapping[str, object]
    ) -> HttpResponse:
        """Start a session for an access token, or for the code of a link from the control socket."""
        refuse_other_origin("POST", headers, None)
        token = self._signed_in(body, exchange.peer)
        exchange.token = token.name
        value = self._authenticator.sessions.issue(token)
        session = self._authenticator.sessions.read(value, (token,))
        assert session is not None  # noqa: S101 - it was issued for this token just now
        return self._show(session, set_cookie(headers, value))

    def _signed_in(self, body: Mapping[str, object], peer: str | None) -> AccessToken:
        code, secret = body.get("code"), body.get("token")
        if isinstance(code, str):
            links = self._context.sign_in_links
            if links is None or not links.redeem(code):
                raise UnauthorizedError(
                    "this link has been used, or is older than a minute",
                    hint="Make a new one with `ductile ui open`.",
                )
            return self._authenticator.sessions.local_user
        if not isinstance(secret, str) or not secret.strip():
            raise RefusedError("token is missing", hint="Send the secret of an access token.")
        return self._authenticator.sign_in(secret.strip(), peer)

    async def _sign_out(self, exchange: DashboardExchange, headers: Mapping[bytes, bytes]) -> HttpResponse:
        session = self._authenticator.identify_session(headers, "POST")
        exchange.token = session.token.name
        await self._context.store.end_session(session.id, session.expires_at)
        content = encode({"message": "Signed out."})
        return JsonResponse(content=content, headers=(set_cookie(headers, ""), _NO_STORE))

    def _show(self, session: BrowserSession, *headers: Header) -> JsonResponse:
        view: SessionView = session_view(self._context.snapshot(), session)
        return JsonResponse(content=encode(view), headers=(*headers, _NO_STORE))

    def maybe_stored(self, exchange: DashboardExchange) -> bool:  # noqa: ARG002 - nothing is stored here
        return False

    def on_error(self, exchange: DashboardExchange, error: Exception) -> DuctileError:
        self._signals.emit(Signal.API_FAULT, data={"path": exchange.path, **describe_error(error)})
        return DuctileError(f"an unexpected error in the daemon ({type(error).__name__})")

    def on_end(self, exchange: DashboardExchange) -> None:
        """Log each sign-in and sign-out. Files and failures are logged at debug level: a flood of failures
        must not fill the log, and the authenticator reports wrong tokens.
        """
        method, status = exchange.scope["method"], exchange.status
        is_sign_in_or_out = method == "POST" and exchange.token is not None and status < _BAD_REQUEST
        report_request(
            self._signals,
            exchange,
            path=exchange.path,
            endpoint="/ui" if method in _METHODS else None,
            seconds=self._clock() - exchange.started_at,
            level=None if is_sign_in_or_out else SignalLevel.DEBUG,
        )


def _file(path: str, headers: Mapping[bytes, bytes]) -> HttpResponse:
    """A file of the page. Every other path below `/ui` is a view, which the page itself finds."""
    assets = load_assets()
    if not path.startswith(STATIC):
        return assets.page.response(headers)
    file = assets.files.get(path)
    if file is None:
        raise NotFoundError("there is no such file", hint="Load the page again: there is a newer version.")
    return file.response(headers)
