"""What anybody may know without a token (SPEC 8)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builders.configs import a_config, a_discovery, loaded
from ductile import __version__
from ductile.api.endpoint import Asked
from ductile.api.handlers import discover
from ductile.config.compile import compile_snapshot


@pytest.mark.parametrize(
    ("peer", "version"),
    [("127.0.0.1", __version__), ("::1", __version__), (None, __version__), ("192.0.2.2", None)],
)
async def test_the_version_is_for_this_machine(peer: str | None, version: str | None, tmp_path: Path) -> None:
    """SPEC 8: as with /healthz, a peer that is not on loopback learns that we live, and no more."""
    snapshot = compile_snapshot(loaded(a_config(tmp_path, "")), a_discovery(tmp_path))
    desk: Any = SimpleNamespace(snapshot=lambda: snapshot)
    nothing: Any = None
    asked = Asked(desk=desk, services=nothing, given={}, headers={}, route=nothing, peer=peer)
    assert (await discover(asked)).body["version"] == version
