"""The API server: composes its parts, starts and stops listening."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.api.application import ApiApplication
from ductile.api.endpoint import ApiServices
from ductile.api.endpoints import ENDPOINTS
from ductile.api.events import EventStreams
from ductile.api.router import Router
from ductile.http.application import LogRateLimiter, MountedApplications, describe_counts
from ductile.http.authentication import Authenticator
from ductile.http.server import Listener, ListenerLimits
from ductile.operations.context import OperationContext
from ductile.store.notifier import SessionEnded
from ductile.telemetry.metrics import Metrics
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

#: How long requests in progress may take when the listener closes.
_CLOSE_SECONDS = 5.0
#: The kind under which the log limiter counts unknown tokens.
_UNKNOWN_TOKEN = "unknown_token"  # noqa: S105 - the name of a count
#: Unknown tokens that are logged one by one; after ten from one address, further ones get a 429.
_MAX_LOGGED_TOKENS = 10


class ApiServer:
    """Implements `ductile.listeners.ListenerServer`."""

    def __init__(
        self,
        context: OperationContext,
        listen: str,
        signals: SignalBus,
        metrics: Metrics,
        mounts: Mapping[bytes, Callable[[Authenticator], ASGI3Application]] = MappingProxyType({}),
    ) -> None:
        """`mounts` are the applications of other surfaces, by the first segment of their paths."""
        self._signals = signals
        self._sign_in_links = context.sign_in_links
        self._request_log_limiter = LogRateLimiter(self._report_unlogged)
        self._token_log_limiter = LogRateLimiter(self._report_unlogged, max_logged=_MAX_LOGGED_TOKENS)
        self._streams = EventStreams(
            context.store, None if context.engine is None else context.engine.live_output
        )
        authenticator = Authenticator(
            context.snapshot, time.monotonic, context.now, self._report_unknown_token
        )
        self._store, self._sessions = context.store, authenticator.sessions
        self._unsubscribe = context.store.notifier.subscribe(
            SessionEnded, lambda change: self._sessions.ended.add(change.session_id)
        )
        services = ApiServices(authenticator=authenticator, streams=self._streams, metrics=metrics)
        application = ApiApplication(
            context,
            services,
            Router(ENDPOINTS),
            signals,
            time.perf_counter,
            request_log_limiter=self._request_log_limiter,
        )
        mounted = MountedApplications(
            application, {prefix: create(authenticator) for prefix, create in mounts.items()}
        )
        self._listener = Listener("api", listen, mounted, ListenerLimits(), signals)

    async def bind(self) -> None:
        """Take the address. Raises `ConflictError` if it is in use, and other errors for the operator."""
        self._sessions.ended |= await self._store.ended_sessions()
        await self._listener.bind()

    async def start(self) -> None:
        for address in await self._listener.start():
            self._signals.emit(Signal.API_LISTENING, data={"address": address})
            if self._sign_in_links is not None:
                self._sign_in_links.address = address

    async def stop(self) -> None:
        self._unsubscribe()
        self._streams.close()
        await self._listener.stop(_CLOSE_SECONDS)
        self._request_log_limiter.close()
        self._token_log_limiter.close()

    def on_switched(self) -> None:
        self._streams.end_refused()

    def _report_unknown_token(self, peer: str, too_many: bool) -> None:
        """Count every unknown token; log the first ones only, so that a flood does not fill the log."""
        should_log = not too_many and self._token_log_limiter.should_log(_UNKNOWN_TOKEN, peer)
        level = None if should_log else SignalLevel.DEBUG
        self._signals.emit(Signal.API_UNAUTHORIZED, data={"peer": peer}, level=level)

    def _report_unlogged(self, counts: Mapping[str, int], peer: str | None) -> None:
        """Log how many requests were counted and not logged one by one."""
        # Both limiters report here: one counts statuses, the other unknown tokens only.
        if (unknown := counts.get(_UNKNOWN_TOKEN)) is not None:
            requests, level = f"{unknown} more requests with an unknown token", SignalLevel.WARN
        else:
            requests = f"more requests without a token: {describe_counts(counts)}"
            level = SignalLevel.INFO
        self._signals.emit(
            Signal.LISTENER_SAMPLED,
            f"The api listener answered {requests}.",
            data={"listener": "api", "requests": dict(counts), "peer": peer},
            level=level,
        )
