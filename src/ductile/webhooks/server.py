"""Incoming webhooks: one request from another service becomes a job, a run or an event.

Paths are looked up in the configuration in force, so a reload takes effect by itself. A sender is
unauthenticated until the signature over its whole body is verified. Until then, responses give nothing away,
and the use of memory and log is limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from msgspec import UNSET

from ductile.core.webhooks.signatures import SignatureForm
from ductile.errors import DuctileError, MethodNotAllowedError, NotFoundError, TooBusyError
from ductile.http.application import (
    Exchange,
    HttpApplication,
    LogRateLimiter,
    describe_counts,
    headers_by_name,
)
from ductile.http.authentication import host_mismatch_error, is_host_mismatch
from ductile.http.body import BodyBudget, read_body
from ductile.http.responses import JsonResponse, encode
from ductile.http.server import Listener, ListenerLimits
from ductile.operations.system.probes import health, is_forwarded
from ductile.operations.webhooks.incoming import InvalidSignatureError, check_signature, receive_webhook
from ductile.operations.webhooks.manage import find_endpoint
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel, describe_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

    from ductile.core.json import JsonObject
    from ductile.operations.context import OperationContext

HEALTH_PATH = "/healthz"
MAX_CONNECTIONS = 256
#: Memory for the bodies of all requests whose signature is not verified yet.
UNVERIFIED_BYTES = 64 * 1024 * 1024
BODY_SECONDS = 10.0
#: Seconds for requests in progress when the listener closes.
CLOSING_SECONDS = 5.0

_ACCEPTED, _OK = 202, 200
_MAX_LOGGED_PATH = 300


class WebhookExchange(Exchange):
    #: The name of the endpoint in the configuration.
    endpoint: str | None = None


class WebhookApplication(HttpApplication[WebhookExchange]):
    def __init__(
        self,
        context: OperationContext,
        signals: SignalBus,
        *,
        body_seconds: float = BODY_SECONDS,
        unverified_bytes: int = UNVERIFIED_BYTES,
    ) -> None:
        self._context = context
        self._signals = signals
        self._body_seconds = body_seconds
        self._budget = BodyBudget(unverified_bytes)
        self._log_limiter = LogRateLimiter(self._report_unlogged)

    def close(self) -> None:
        """Log the counts of requests that were not logged one by one."""
        self._log_limiter.close()

    def new_exchange(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> WebhookExchange:
        return WebhookExchange(scope, receive, send)

    async def respond(self, exchange: WebhookExchange) -> JsonResponse:
        """Accept a signed request, or respond to a health check. Raises `DuctileError` for a refusal."""
        scope = exchange.scope
        if scope["path"] == HEALTH_PATH:
            _require_method(scope, "GET", "HEAD")
            headers = headers_by_name(scope)
            listen = self._context.snapshot().webhooks_listen
            if is_host_mismatch(listen, headers) and not is_forwarded(headers):
                raise host_mismatch_error(listen, suggests_token=False)
            return JsonResponse(content=encode(await health(self._context, exchange.peer, headers)))
        endpoint = find_endpoint(self._context.snapshot(), scope["path"])
        exchange.endpoint = endpoint.name
        # A browser that is redirected to an endpoint sends GET, which can only have a token in its address.
        is_url_token = endpoint.scheme.form is SignatureForm.URL_TOKEN
        _require_method(scope, "POST", *(("GET", "HEAD") if is_url_token else ()))
        self._context.refuse_when_stopping()
        body = await read_body(
            scope,
            exchange.receive,
            limit=endpoint.max_body_size,
            seconds=self._body_seconds,
            budget=self._budget,
        )
        exchange.body_read = True
        # While a slow body arrived, the daemon may have begun to stop, or a reload changed the secret.
        self._context.refuse_when_stopping()
        endpoint = find_endpoint(self._context.snapshot(), scope["path"])
        request_headers = _joined_headers(scope)
        if endpoint.scheme.form is SignatureForm.URL_TOKEN:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            request_headers[endpoint.scheme.header] = query.pop("token", "")
            if scope["method"] == "HEAD":
                # Some senders check that the address exists before they use it.
                check_signature(endpoint, request_headers, b"", self._context.now())
                return JsonResponse(content=b"")
            if scope["method"] == "GET":
                body = encode(query)
        result = await receive_webhook(self._context, endpoint, request_headers, body)
        self._signals.emit(
            Signal.WEBHOOK_ACCEPTED,
            job_id=result.job_id or None,
            data={
                "endpoint": endpoint.name,
                "peer": exchange.peer,
                "deduplicated": bool(result.deduplicated),
            },
        )
        return JsonResponse(content=encode(result), status=_ACCEPTED if result.challenge is UNSET else _OK)

    def maybe_stored(self, exchange: WebhookExchange) -> bool:
        return exchange.body_read

    def on_error(self, exchange: WebhookExchange, error: Exception) -> DuctileError:
        data: JsonObject = {"endpoint": exchange.endpoint, **describe_error(error)}
        self._signals.emit(Signal.WEBHOOK_FAULT, data=data)
        return DuctileError("an unexpected error in the daemon")

    def on_client_error(self, exchange: WebhookExchange, error: DuctileError) -> None:
        reason = error.why if isinstance(error, InvalidSignatureError) else error.message
        if exchange.endpoint is not None and self._context.webhook_refusals is not None:
            self._context.webhook_refusals.add(exchange.endpoint, reason, self._context.now())
        data: JsonObject = {
            "endpoint": exchange.endpoint,
            "path": exchange.scope["path"][:_MAX_LOGGED_PATH],
            "status": error.http_status,
            "reason": reason,
            "peer": exchange.peer,
        }
        # Refusals of signed requests are all logged in full. Anyone can cause the others, as fast as the
        # network allows.
        if isinstance(error, NotFoundError | MethodNotAllowedError):
            should_log = False
        elif exchange.body_read and not isinstance(error, InvalidSignatureError | TooBusyError):
            should_log = True
        else:
            should_log = self._log_limiter.should_log(str(error.http_status), exchange.peer)
        level = None if should_log else SignalLevel.DEBUG
        self._signals.emit(Signal.WEBHOOK_REFUSED, data=data, level=level)

    def _report_unlogged(self, counts: Mapping[str, int], peer: str | None) -> None:
        """Log how many refusals were counted and not logged one by one."""
        self._signals.emit(
            Signal.LISTENER_SAMPLED,
            f"The webhooks listener refused more requests: {describe_counts(counts)}.",
            data={"listener": "webhooks", "requests": dict(counts), "peer": peer},
        )


def _require_method(scope: HTTPScope, *methods: str) -> None:
    """Raise `MethodNotAllowedError` for another method than these."""
    if scope["method"] not in methods:
        raise MethodNotAllowedError(
            f"{scope['method'][:20]} is not for this path", details={"allow": ", ".join(methods)}
        )


def _joined_headers(scope: HTTPScope) -> dict[str, str]:
    """Return the headers by lower-case name; the values of one that occurs several times are joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class WebhookServer:
    """Implements `ductile.listeners.ListenerServer`."""

    def __init__(self, context: OperationContext, listen: str, signals: SignalBus) -> None:
        self._signals = signals
        self._application = WebhookApplication(context, signals)
        limits = ListenerLimits(connections=MAX_CONNECTIONS, probe_paths=frozenset((HEALTH_PATH,)))
        self._listener = Listener("webhooks", listen, self._application, limits, signals)

    async def bind(self) -> None:
        await self._listener.bind()

    async def start(self) -> None:
        for address in await self._listener.start():
            self._signals.emit(Signal.WEBHOOK_LISTENING, data={"address": address})

    def on_switched(self) -> None:
        """Nothing to do: the configuration is read for each request, and no response is a stream."""

    async def stop(self) -> None:
        await self._listener.stop(CLOSING_SECONDS)
        self._application.close()
