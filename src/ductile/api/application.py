"""The ASGI application of the API: finds the endpoint, authenticates, reads the body, responds and logs.

It uses no framework: all routes are in the table of endpoints, and submitting a job is the path of the daemon
that is used most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ductile.api.endpoint import ApiRequest, ApiServices, Endpoint, MatchedEndpoint, Reply, read_parameters
from ductile.api.router import Router, path_for_log
from ductile.errors import DeniedError, DuctileError
from ductile.http.application import (
    Exchange,
    HttpApplication,
    LogRateLimiter,
    headers_by_name,
    report_request,
    run_unless_disconnected,
)
from ductile.http.body import BODY_SECONDS, read_body
from ductile.http.responses import HttpResponse, JsonResponse, encode
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel, describe_error

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

    from ductile.operations.context import OperationContext

_BAD_REQUEST = 400


class ApiExchange(Exchange):
    matched: MatchedEndpoint | None = None
    #: The scopes of the caller's token.
    scopes: tuple[str, ...] = ()
    #: Whether the caller signed in by a link, without a token of the configuration.
    signed_in_by_link: bool = False

    @property
    def path(self) -> str:
        """The path for the log, without the query."""
        return path_for_log(self.scope["raw_path"]) if self.matched is None else self.matched.logged_path


class ApiApplication(HttpApplication[ApiExchange]):
    def __init__(
        self,
        context: OperationContext,
        services: ApiServices,
        router: Router,
        signals: SignalBus,
        clock: Callable[[], float],
        *,
        request_log_limiter: LogRateLimiter | None = None,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`request_log_limiter` decides which requests without a token are logged in full; if it is
        None, all are.
        """
        self._context = context
        self._services = services
        self._router = router
        self._authenticator = services.authenticator
        self._signals = signals
        self._clock = clock
        self._request_log_limiter = request_log_limiter
        self._body_seconds = body_seconds

    def new_exchange(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> ApiExchange:
        return ApiExchange(scope, receive, send, received_at=self._clock())

    async def respond(self, exchange: ApiExchange) -> HttpResponse:
        scope = exchange.scope
        matched = exchange.matched = self._router.find(scope["method"], scope["raw_path"])
        endpoint = matched.endpoint
        headers = headers_by_name(scope)
        snapshot = self._context.snapshot()
        self._admit(exchange, matched, headers)
        if endpoint.http.submits:
            self._context.refuse_when_stopping()
        body = None
        if endpoint.http.method == "POST":
            body = await read_body(
                scope, exchange.receive, limit=snapshot.api.max_body_size, seconds=self._body_seconds
            )
            exchange.body_read = True
            # While a slow body arrived, the daemon may have begun to stop, or a reload removed the token.
            if endpoint.http.submits:
                self._context.refuse_when_stopping()
            if self._context.snapshot() is not snapshot:
                self._admit(exchange, matched, headers)
        request = ApiRequest(
            context=self._context,
            services=self._services,
            values=read_parameters(matched, scope["query_string"], headers, body),
            headers=headers,
            matched=matched,
            token_name=exchange.token_name,
            scopes=exchange.scopes,
            signed_in_by_link=exchange.signed_in_by_link,
            peer=exchange.peer,
        )
        work = endpoint.handler(request)
        if endpoint.http.waits:
            response = await run_unless_disconnected(exchange.receive, work)
            # A token that was revoked meanwhile gets no events, but still the response to a submission.
            if not endpoint.http.submits:
                self._admit_again(exchange, request, headers)
        else:
            response = await work
        return _render(endpoint, response) if isinstance(response, Reply) else response

    def _admit(self, exchange: ApiExchange, matched: MatchedEndpoint, headers: Mapping[bytes, bytes]) -> None:
        """Identify the caller. Raises if that fails, or if its token may not call the endpoint."""
        access = matched.endpoint.access
        token = self._authenticator.identify(access, headers, exchange.peer, exchange.scope["method"])
        if token is not None:
            exchange.token_name, exchange.scopes = token.name, token.scopes
            exchange.signed_in_by_link = token is self._authenticator.sessions.local_token
        self._authenticator.authorize(token, access, matched.values)

    def _admit_again(
        self, exchange: ApiExchange, request: ApiRequest, headers: Mapping[bytes, bytes]
    ) -> None:
        """Raise if the token has changed since the request, so that it would get another response now."""
        matched, snapshot = request.matched, self._context.snapshot()
        self._admit(exchange, matched, headers)
        access = matched.endpoint.access
        reach_before = access.reach(request.scopes, snapshot, matched.values)
        reach_now = access.reach(exchange.scopes, snapshot, matched.values)
        if reach_now is not reach_before:
            raise DeniedError("the scopes of the token were changed meanwhile", hint="Call it again.")

    def maybe_stored(self, exchange: ApiExchange) -> bool:
        return exchange.body_read and exchange.matched is not None and exchange.matched.endpoint.http.submits

    def on_error(self, exchange: ApiExchange, error: Exception) -> DuctileError:
        self._signals.emit(Signal.API_FAULT, data={"path": exchange.path, **describe_error(error)})
        return DuctileError(f"an unexpected error in the daemon ({type(error).__name__})")

    def on_end(self, exchange: ApiExchange) -> None:
        """Log the request; at debug level if it is a successful poll, or one of a flood without a token."""
        matched = exchange.matched
        if matched is not None and matched.endpoint.http.is_polled and exchange.status < _BAD_REQUEST:
            level = SignalLevel.DEBUG
        elif exchange.token_name is not None or self._request_log_limiter is None:
            level = None
        else:
            should_log = self._request_log_limiter.should_log(str(exchange.status), exchange.peer)
            level = None if should_log else SignalLevel.DEBUG
        report_request(
            self._signals,
            exchange,
            path=exchange.path,
            endpoint=None if matched is None else matched.endpoint.http.path,
            seconds=self._clock() - exchange.received_at,
            level=level,
        )


def _render(endpoint: Endpoint, reply: Reply) -> JsonResponse:
    """Encode a reply, with a `message` for people if it has none of its own."""
    response = reply.response
    content = encode(response)
    if "message" not in response.__struct_fields__:
        text = encode(response.http_message or endpoint.http.message or f"{endpoint.summary}.")
        content = b'%b,"message":%b}' % (content[:-1], text)  # every response has a field
    status = reply.status or response.http_status or endpoint.http.statuses[0]
    return JsonResponse(content=content, status=status, headers=reply.headers)
