"""Liveness and readiness, for monitors that have no token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from ductile import __version__
from ductile.core.host_names import is_loopback_host, is_meant_for
from ductile.core.jobs.failures import BreakerState
from ductile.errors import StoreError, StoreFullError, TooBusyError
from ductile.operations.context import OperationContext
from ductile.operations.response import Response
from ductile.operations.system.nodes import list_nodes
from ductile.struct import about, replace

#: How long the store may take to answer. Monitors do not wait longer than a few seconds either.
_STORE_SECONDS = 5.0
_FULL = "The disk is full: new work is refused."
#: Headers that a proxy adds to the request of another client.
_PROXY_HEADERS = frozenset((b"forwarded", b"via", b"x-real-ip"))


class Health(Response):
    """Callers that are not on this machine learn `status` and `message` only."""

    status: Annotated[Literal["ok", "full"], about("`full`: the disk is, and new work is refused.")]
    message: str
    uptime_seconds: float | UnsetType | None = UNSET
    queue_depth: Annotated[int | UnsetType, about("Queued and running.")] = UNSET
    plugins_loaded: int | UnsetType = UNSET
    plugins_circuit_open: int | UnsetType = UNSET
    version: str | UnsetType = UNSET
    nodes: Annotated[int | UnsetType, about("Daemons that use the store.")] = UNSET

    @property
    def http_message(self) -> str:
        return self.message


async def health(context: OperationContext, peer: str | None, headers: Mapping[bytes, bytes]) -> Health:
    """Return the health of the daemon, in full for callers on this machine. Raises `StoreError`.

    `headers` are those of the request, with lower-case names.
    """
    local = is_local_caller(context, peer, headers)
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            await context.store.check_files()
            counts = await context.store.queue_counts()
            breakers = await context.store.list_breakers()
            is_full = await context.store.is_full()
    except (StoreError, TimeoutError) as error:
        if local and isinstance(error, StoreError):
            raise
        raise StoreError("the store does not answer" if local else "the store is down") from error
    report = Health(status="full", message=_FULL) if is_full else Health(status="ok", message="All is well.")
    if not local:
        return report
    return replace(
        report,
        uptime_seconds=None if context.engine is None else context.engine.status().uptime_seconds,
        queue_depth=counts.depth,
        plugins_loaded=sum(plugin.runnable for plugin in context.snapshot().plugins.values()),
        plugins_circuit_open=len({row.plugin for row in breakers if row.breaker.state is BreakerState.OPEN}),
        version=__version__,
        nodes=max(1, len(await list_nodes(context))),
    )


async def ready(context: OperationContext, peer: str | None, headers: Mapping[bytes, bytes]) -> Health:
    """Return the health as `health` does.

    Raises `TooBusyError` while the daemon starts or stops, and `StoreFullError` while the disk is full.
    """
    if context.engine is not None:
        status = context.engine.status()
        if status.stopping:
            raise TooBusyError("the daemon is stopping")
        if not status.ready:
            raise TooBusyError("the daemon is starting")
    report = await health(context, peer, headers)
    if report.status != "ok":
        raise StoreFullError(_FULL, hint="Free some space; new work is then accepted again.")
    return report


def is_local_caller(context: OperationContext, peer: str | None, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request comes from this machine.

    A request that a local proxy forwards does not, nor does that of a web page in a local browser.
    """
    # A caller without an address came through a local socket.
    is_loopback = peer is None or is_loopback_host(peer.partition("%")[0])
    if not is_loopback or is_forwarded(headers):
        return False
    snapshot = context.snapshot()
    host, origin = headers.get(b"host"), headers.get(b"origin")
    return is_meant_for(
        None if host is None else host.decode("latin-1"),
        None if origin is None else origin.decode("latin-1"),
        snapshot.api.listen,
        snapshot.webhooks_listen,
    )


def is_forwarded(headers: Iterable[bytes]) -> bool:
    """Return whether a proxy forwarded the request. Takes the lower-case names of its headers."""
    return any(name in _PROXY_HEADERS or name.startswith(b"x-forwarded-") for name in headers)
