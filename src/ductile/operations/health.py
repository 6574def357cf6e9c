"""Whether the daemon is well, for probes that carry no token (SPEC 8, 9.2)."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from ductile import __version__
from ductile.core.breaker import BreakerState
from ductile.core.json_values import JsonObject
from ductile.errors import StoreError, TooBusyError
from ductile.operations.desk import Desk

_WELL = "All is well."
#: By these a proxy says that it asks for somebody else.
_OF_PROXIES = frozenset((b"forwarded", b"via", b"x-real-ip"))
_OF_PROXIES_BEGIN = b"x-forwarded-"


async def health(desk: Desk, peer: str | None, headers: Iterable[bytes] = ()) -> JsonObject:
    """What a probe is told; raises if the store is down. Strangers learn that we live, and no more.

    `headers` are the names of those that came with the question, in lower case.
    """
    here = is_here(peer, headers)
    try:
        counts = await desk.store.counts()
        breakers = await desk.store.breakers()
    except StoreError as error:
        if here:
            raise
        raise StoreError("the store is down") from error
    if not here:
        return {"status": "ok", "message": _WELL}
    status = {} if desk.engine is None else desk.engine.status()
    return {
        "status": "ok",
        "uptime_seconds": status.get("uptime_seconds"),
        "queue_depth": counts.depth,
        "plugins_loaded": sum(plugin.runnable for plugin in desk.snapshot().plugins.values()),
        "plugins_circuit_open": len(
            {row.plugin for row in breakers if row.breaker.state is BreakerState.OPEN}
        ),
        "version": __version__,
        "message": _WELL,
    }


async def ready(desk: Desk, peer: str | None, headers: Iterable[bytes] = ()) -> JsonObject:
    """As `health`, but not before recovery is done, nor on the way out: nobody should send it work then."""
    status = {} if desk.engine is None else desk.engine.status()
    if status.get("stopping"):
        raise TooBusyError("the daemon is stopping")
    if not status.get("ready", True):
        raise TooBusyError("the daemon is starting")
    return await health(desk, peer, headers)


def is_here(peer: str | None, headers: Iterable[bytes]) -> bool:
    """Whether who asks is on this machine. A proxy may be, and whoever it asks for is not."""
    passed_on = any(name in _OF_PROXIES or name.startswith(_OF_PROXIES_BEGIN) for name in headers)
    return is_loopback(peer) and not passed_on


def is_loopback(peer: str | None) -> bool:
    """Whether a caller is on this machine; one without an address came through a local socket."""
    if peer is None:
        return True
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
