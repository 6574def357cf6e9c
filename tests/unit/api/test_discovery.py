"""Information that needs no access token."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builders.configs import a_config, a_discovery, loaded
from ductile import __version__
from ductile.api.endpoint import ApiRequest, Reply
from ductile.api.handlers import About, show_links
from ductile.config.compile.compiler import compile_snapshot


@pytest.mark.parametrize(
    ("peer", "version"),
    [("127.0.0.1", __version__), ("::1", __version__), (None, __version__), ("192.0.2.2", None)],
)
async def test_the_version_is_for_this_machine(peer: str | None, version: str | None, tmp_path: Path) -> None:
    """As with /healthz, a peer that is not on loopback learns only that the daemon lives."""
    snapshot = compile_snapshot(loaded(a_config(tmp_path, "")), a_discovery(tmp_path))
    context: Any = SimpleNamespace(snapshot=lambda: snapshot)
    unused: Any = None
    request = ApiRequest(context=context, services=unused, values={}, headers={}, matched=unused, peer=peer)
    result = await show_links(request)
    assert isinstance(result, Reply)
    response = result.response
    assert isinstance(response, About)
    assert response.version == version
