"""Whether the daemon is well, for probes that carry no token (SPEC 8, 9.2)."""

from __future__ import annotations

from ipaddress import ip_address

from ductile import __version__
from ductile.core.breaker import BreakerState
from ductile.core.json_values import JsonObject
from ductile.errors import StoreError, TooBusyError
from ductile.operations.desk import Desk

_WELL = "All is well."


async def health(desk: Desk, peer: str | None) -> JsonObject:
    """What a probe is told; raises if the store is down. Strangers learn that we live, and no more."""
    try:
        counts = await desk.store.counts()
        breakers = await desk.store.breakers()
    except StoreError as error:
        if is_loopback(peer):
            raise
        raise StoreError("the store is down") from error
    if not is_loopback(peer):
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


async def ready(desk: Desk, peer: str | None) -> JsonObject:
    """As `health`, but not before recovery is done, nor on the way out: nobody should send it work then."""
    status = {} if desk.engine is None else desk.engine.status()
    if status.get("stopping"):
        raise TooBusyError("the daemon is stopping")
    if not status.get("ready", True):
        raise TooBusyError("the daemon is starting")
    return await health(desk, peer)


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
