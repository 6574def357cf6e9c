"""The ASGI application at `/ui`: sends the page and its files, signs browsers in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ductile.dashboard.assets import STATIC, load_assets
from ductile.dashboard.rights import SessionView, session_view
from ductile.errors import DuctileError, MethodNotAllowedError, NotFoundError, RefusedError, UnauthorizedError
from ductile.http.application import Exchange, HttpApplication, headers_by_name, report_request
from ductile.http.authentication import Authenticator
from ductile.http.body import BODY_SECONDS, decode_object, read_body
from ductile.http.responses import Header, HttpResponse, JsonResponse, encode
from ductile.http.sessions import BrowserSession, refuse_foreign_host, refuse_other_origin, set_cookie
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel, describe_error

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

    from ductile.operations.context import OperationContext

#: The first segment of the paths of the dashboard.
SEGMENT = b"ui"
_SESSION, _SIGN_OUT = "/ui/session", "/ui/session/end"
_SAFE_METHODS = ("GET", "HEAD")
_METHODS = (*_SAFE_METHODS, "POST")
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
        return DashboardExchange(scope, receive, send, received_at=self._clock())

    async def respond(self, exchange: DashboardExchange) -> HttpResponse:
        """Send the page or one of its files; sign in, sign out, or show the session."""
        snapshot = self._context.snapshot()
        headers = headers_by_name(exchange.scope)
        if not snapshot.api.ui:
            raise NotFoundError("there is no dashboard here", hint="Remove `ui: false` from the section api.")
        refuse_foreign_host(snapshot.api.listen, headers)
        method, path = exchange.scope["method"], exchange.path
        if path not in (_SESSION, _SIGN_OUT):
            if method not in _SAFE_METHODS:
                raise MethodNotAllowedError(f"{method} is not for this path", details={"allow": "GET, HEAD"})
            # Every other path is a view of the page, which reads the path itself.
            assets = load_assets()
            file = assets.files.get(path) if path.startswith(STATIC) else assets.page
            if file is None:
                raise NotFoundError(
                    "there is no such file", hint="Load the page again: there is a newer version."
                )
            return file.response(headers)
        if method == "POST":
            body = await read_body(exchange.scope, exchange.receive, limit=_MAX_BODY, seconds=BODY_SECONDS)
            exchange.body_read = True
            if path == _SESSION:
                return self._sign_in(exchange, headers, decode_object(body))
            session = self._authenticator.identify_session(headers, method)
            exchange.token_name = session.token.name
            await self._context.store.end_session(session.id, session.expires_at)
            content = encode({"message": "Signed out."})
            return JsonResponse(content=content, headers=(set_cookie(headers, ""), _NO_STORE))
        if method in _SAFE_METHODS and path == _SESSION:
            session = self._authenticator.identify_session(headers, method)
            exchange.token_name = session.token.name
            return self._session_response(session)
        allowed = "POST" if path == _SIGN_OUT else "GET, HEAD, POST"
        raise MethodNotAllowedError(f"{method} is not for this path", details={"allow": allowed})

    def _sign_in(
        self, exchange: DashboardExchange, headers: Mapping[bytes, bytes], body: Mapping[str, object]
    ) -> HttpResponse:
        """Start a session for an access token, or for the code of a link from the control socket."""
        refuse_other_origin("POST", headers, None)
        code, secret = body.get("code"), body.get("token")
        if isinstance(code, str):
            links = self._context.sign_in_links
            if links is None or not links.redeem(code):
                raise UnauthorizedError(
                    "this link has been used, or is older than a minute",
                    hint="Make a new one with `ductile ui open`.",
                )
            token = self._authenticator.sessions.local_token
        elif isinstance(secret, str) and secret.strip():
            token = self._authenticator.sign_in(secret.strip(), exchange.peer)
        else:
            raise RefusedError("token is missing", hint="Send the secret of an access token.")
        exchange.token_name = token.name
        value = self._authenticator.sessions.issue(token)
        session = self._authenticator.sessions.read(value, (token,))
        assert session is not None  # noqa: S101 - it was issued for this token just now
        return self._session_response(session, set_cookie(headers, value))

    def _session_response(self, session: BrowserSession, *headers: Header) -> JsonResponse:
        """Return the response that tells the page who is signed in, and with which rights."""
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
        is_sign_in_or_out = method == "POST" and exchange.token_name is not None and status < _BAD_REQUEST
        report_request(
            self._signals,
            exchange,
            path=exchange.path,
            endpoint="/ui" if method in _METHODS else None,
            seconds=self._clock() - exchange.received_at,
            level=None if is_sign_in_or_out else SignalLevel.DEBUG,
        )
