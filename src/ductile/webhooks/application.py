"""One call from another service, from its first byte to its answer.

Raw ASGI: there is nothing to route but the paths of the configuration in force, so a reload switches them
by itself. Whoever calls is a stranger until the signature over the whole body says otherwise; until then
little is spent on them, and nothing is told.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ductile.errors import (
    DuctileError,
    MethodNotAllowedError,
    NotFoundError,
    TooBusyError,
    TooLargeError,
    TooSlowError,
)
from ductile.http.body import (
    BodyEvictedError,
    ClientDisconnectedError,
    UnauthenticatedBodies,
    content_length,
    read_unauthenticated_body,
    refuse_body,
)
from ductile.http.body_quota import BodyQuota
from ductile.http.host_check import headers_once, is_misdirected, misdirected
from ductile.http.log_sampling import LogSampler, described_counts
from ductile.http.responses import send_error, send_json, shutdown_error
from ductile.operations.system.probes import health, is_forwarded
from ductile.operations.webhooks.incoming import InvalidSignatureError, find_endpoint, receive
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

    from ductile.config.snapshot import WebhookEndpoint
    from ductile.core.json import JsonObject
    from ductile.operations.context import OperationContext

HEALTH = "/healthz"
#: Bodies that are read at once, and how much of them is held, before anybody knows whose they are.
UNSIGNED = 128
UNSIGNED_BYTES = 64 * 1024 * 1024
#: Signed requests that are stored at once. More are told to come back: the disk is for those inside.
AT_ONCE = 64
#: How long a body may take to arrive.
BODY_SECONDS = 10.0

_ACCEPTED, _OK = 202, 200
#: A refused body up to this size is not worth reading to its end.
_SMALL_BODY = 64 * 1024
#: Refusals that anybody on the network can cause by the thousand.
_QUIET = (NotFoundError, MethodNotAllowedError)
_LONGEST_PATH = 300


@dataclass(slots=True)
class _Exchange:
    scope: HTTPScope
    receive: ASGIReceiveCallable
    send: ASGISendCallable
    endpoint: str | None = None
    body_read: bool = False

    @property
    def peer(self) -> str | None:
        client = self.scope["client"]
        return None if client is None else client[0]


class WebhookApplication:
    def __init__(
        self,
        context: OperationContext,
        signals: SignalBus,
        *,
        body_seconds: float = BODY_SECONDS,
        strangers: UnauthenticatedBodies | None = None,
    ) -> None:
        self._desk = context
        self._signals = signals
        self._body_seconds = body_seconds
        self._strangers: UnauthenticatedBodies = strangers or BodyQuota(UNSIGNED, UNSIGNED_BYTES)
        self._inside = 0
        self._sampler = LogSampler(self._report_sampled)

    def close(self) -> None:
        """Report what has been counted and not logged yet."""
        self._sampler.close()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        exchange = _Exchange(cast("HTTPScope", scope), receive, send)
        try:
            status, body = await self._answer(exchange)
        except ClientDisconnectedError:
            return
        except BodyEvictedError:
            error = TooBusyError("too many requests at once", hint="Try again in a moment.")
            self._tell_refusal(exchange, error)
            await send_error(send, error, close=True)  # the rest of the body is waited for no longer
        except asyncio.CancelledError:
            # The listener closes and waits for nobody any longer. Even that is told in our own shape.
            error = shutdown_error(maybe_stored=exchange.body_read)
            self._tell_refusal(exchange, error)
            await send_error(send, error, close=True)
            raise
        except DuctileError as error:
            self._tell_refusal(exchange, error)
            await _refuse(exchange, error)
        except Exception as fault:  # noqa: BLE001 - the sender is told that it failed; what it held is for nobody
            self._tell_fault(exchange, fault)
            await _refuse(exchange, DuctileError("an unexpected fault in the daemon"))
        else:
            await send_json(send, status, body)

    async def _answer(self, exchange: _Exchange) -> tuple[int, JsonObject]:
        scope = exchange.scope
        if scope["path"] == HEALTH:
            _allow(scope, "GET", "HEAD")
            return _OK, await self._health(exchange)
        endpoint = find_endpoint(self._desk.snapshot(), scope["path"])
        exchange.endpoint = endpoint.name
        _allow(scope, "POST")
        self._desk.refuse_when_stopping()
        body = await read_unauthenticated_body(
            scope,
            exchange.receive,
            self._strangers,
            limit=endpoint.max_body_size,
            seconds=self._body_seconds,
        )
        exchange.body_read = True
        # A slow body may have outlasted the last moment for work, or the secret it was signed with.
        self._desk.refuse_when_stopping()
        endpoint = find_endpoint(self._desk.snapshot(), scope["path"])
        answer = await self._take_in(endpoint, _headers(scope), body)
        self._tell_accepted(exchange, answer)
        return _OK if "challenge" in answer else _ACCEPTED, answer

    async def _health(self, exchange: _Exchange) -> JsonObject:
        headers = headers_once(exchange.scope)
        listen = self._desk.snapshot().webhooks_listen
        if is_misdirected(listen, headers) and not is_forwarded(headers):
            raise misdirected(listen, token_helps=False)
        return await health(self._desk, exchange.peer, headers)

    async def _take_in(self, endpoint: WebhookEndpoint, headers: dict[str, str], body: bytes) -> JsonObject:
        if self._inside >= AT_ONCE:
            raise TooBusyError("too many requests at once", hint="Try again in a moment.")
        self._inside += 1
        try:
            return await receive(self._desk, endpoint, headers, body)
        finally:
            self._inside -= 1

    def _tell_accepted(self, exchange: _Exchange, answer: JsonObject) -> None:
        job_id = answer.get("job_id")
        data: JsonObject = {
            "endpoint": exchange.endpoint,
            "peer": exchange.peer,
            "deduplicated": bool(answer.get("deduplicated")),
        }
        known = job_id if isinstance(job_id, str) else None
        self._signals.emit(Signal.WEBHOOK_ACCEPTED, job_id=known, data=data)

    def _tell_refusal(self, exchange: _Exchange, error: DuctileError) -> None:
        data: JsonObject = {
            "endpoint": exchange.endpoint,
            "path": exchange.scope["path"][:_LONGEST_PATH],
            "status": error.http_status,
            "reason": error.why if isinstance(error, InvalidSignatureError) else error.message,
            "peer": exchange.peer,
        }
        level = SignalLevel.DEBUG if self._is_quiet(exchange, error) else None
        self._signals.emit(Signal.WEBHOOK_REFUSED, data=data, level=level)

    def _is_quiet(self, exchange: _Exchange, error: DuctileError) -> bool:
        """Whether the line is for debugging only. Refusals of signed requests are all logged; others can be
        caused by anybody, as fast as the network allows.
        """
        if isinstance(error, _QUIET):
            return True
        signed = exchange.body_read and not isinstance(error, InvalidSignatureError | TooBusyError)
        return not signed and not self._sampler.in_full(str(error.http_status), exchange.peer)

    def _report_sampled(self, counts: Mapping[str, int], peer: str | None) -> None:
        self._signals.emit(
            Signal.LISTENER_SAMPLED,
            f"The webhooks listener refused more requests: {described_counts(counts)}.",
            data={"listener": "webhooks", "requests": dict(counts), "peer": peer},
        )

    def _tell_fault(self, exchange: _Exchange, fault: Exception) -> None:
        """Where it happened, and not what was in its hands: that may be anybody's secret."""
        frames = traceback.extract_tb(fault.__traceback__)[-5:]
        places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        data: JsonObject = {
            "endpoint": exchange.endpoint,
            "fault": type(fault).__name__,
            "at": " < ".join(places[::-1]),
        }
        self._signals.emit(Signal.WEBHOOK_FAULT, data=data)


def _allow(scope: HTTPScope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise MethodNotAllowedError(
            f"{scope['method'][:20]} is not for this path", details={"allow": ", ".join(methods)}
        )


def _headers(scope: HTTPScope) -> dict[str, str]:
    """By lower-case name, which is how ASGI gives them; one that comes several times is joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


async def _refuse(exchange: _Exchange, error: DuctileError) -> None:
    if isinstance(error, TooLargeError | TooSlowError) or _is_sending_much(exchange):
        await refuse_body(exchange.receive, exchange.send, error)
        return
    await send_error(exchange.send, error)


def _is_sending_much(exchange: _Exchange) -> bool:
    if exchange.body_read or exchange.scope["method"] in ("GET", "HEAD"):
        return False
    chunked = any(name == b"transfer-encoding" for name, _ in exchange.scope["headers"])
    return chunked or (content_length(exchange.scope) or 0) > _SMALL_BODY
