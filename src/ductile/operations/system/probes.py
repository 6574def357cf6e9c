"""Whether the daemon is well, for probes that carry no token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ductile import __version__
from ductile.core.host_names import is_loopback_host, is_meant_for
from ductile.core.jobs.breaker import BreakerState
from ductile.core.json import JsonObject
from ductile.errors import StoreError, StoreFullError, TooBusyError
from ductile.operations.context import OperationContext

_WELL = "All is well."
_FULL = "The disk is full: new work is refused."
#: By these a proxy says that it asks for somebody else.
_OF_PROXIES = frozenset((b"forwarded", b"via", b"x-real-ip"))
_OF_PROXIES_BEGIN = b"x-forwarded-"
_NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})


async def health(
    context: OperationContext, peer: str | None, headers: Mapping[bytes, bytes] = _NO_HEADERS
) -> JsonObject:
    """What a probe is told; raises if the store is down. Strangers learn `status`, and no more.

    `headers` are those that came with the question, by their names in lower case.
    """
    here = is_local_caller(context, peer, headers)
    try:
        await context.store.check_files()
        counts = await context.store.counts()
        breakers = await context.store.breakers()
        is_full = await context.store.is_full()
    except StoreError as error:
        if here:
            raise
        raise StoreError("the store is down") from error
    standing: JsonObject = {"status": "ok", "message": _WELL}
    if is_full:
        standing = {"status": "full", "message": _FULL}
    if not here:
        return standing
    status = None if context.engine is None else context.engine.status()
    return {
        **standing,
        "uptime_seconds": None if status is None else status.uptime_seconds,
        "queue_depth": counts.depth,
        "plugins_loaded": sum(plugin.runnable for plugin in context.snapshot().plugins.values()),
        "plugins_circuit_open": len(
            {row.plugin for row in breakers if row.breaker.state is BreakerState.OPEN}
        ),
        "version": __version__,
    }


async def ready(
    context: OperationContext, peer: str | None, headers: Mapping[bytes, bytes] = _NO_HEADERS
) -> JsonObject:
    """As `health`, but an error while it takes no work: before recovery is done, on the way out, and while
    the last write was refused because the disk is full.
    """
    status = None if context.engine is None else context.engine.status()
    if status is not None and status.stopping:
        raise TooBusyError("the daemon is stopping")
    if status is not None and not status.ready:
        raise TooBusyError("the daemon is starting")
    standing = await health(context, peer, headers)
    if standing["status"] != "ok":
        raise StoreFullError(_FULL, hint="Free some space; new work is then accepted again.")
    return standing


def is_local_caller(context: OperationContext, peer: str | None, headers: Mapping[bytes, bytes]) -> bool:
    """Whether who asks is on this machine. A proxy may be, and whoever it asks for is not; nor is a web page
    that a browser on this machine shows.
    """
    if not is_loopback(peer) or is_forwarded(headers):
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
    """Whether a proxy says that it asks for somebody else. Takes the names of headers."""
    return any(name in _OF_PROXIES or name.startswith(_OF_PROXIES_BEGIN) for name in headers)


def is_loopback(peer: str | None) -> bool:
    """Whether a caller is on this machine; one without an address came through a local socket."""
    return peer is None or is_loopback_host(peer.partition("%")[0])
