"""What anybody may know without a token (SPEC 8)."""

from __future__ import annotations

from typing import Any

import pytest

from ductile import __version__
from ductile.api.endpoint import Asked
from ductile.api.handlers import discover


@pytest.mark.parametrize(
    ("peer", "version"),
    [("127.0.0.1", __version__), ("::1", __version__), (None, __version__), ("192.0.2.2", None)],
)
async def test_the_version_is_for_this_machine(peer: str | None, version: str | None) -> None:
    """SPEC 8: as with /healthz, a peer that is not on loopback learns that we live, and no more."""
    nothing: Any = None
    asked = Asked(desk=nothing, services=nothing, given={}, headers={}, route=nothing, peer=peer)
    assert (await discover(asked)).body["version"] == version
