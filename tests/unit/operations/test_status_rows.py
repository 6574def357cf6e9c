"""The rows of `status`: plugins in trouble come first, disabled ones last."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ductile.operations.system.status_rows import troubled_first

WELL: dict[str, Any] = {
    "enabled": True,
    "refused": None,
    "unhealthy": None,
    "health": None,
    "last_run": {"status": "succeeded"},
    "breakers": {"poll": {"state": "closed"}},
}
KINDS: dict[str, dict[str, Any]] = {
    "refused": WELL | {"refused": "its entrypoint is not executable"},
    "unhealthy": WELL | {"unhealthy": {"error": "init failed"}},
    "open": WELL | {"breakers": {"poll": {"state": "open"}}},
    "failed": WELL | {"last_run": {"status": "timed_out"}},
    "ill": WELL | {"health": "failed"},
    "well": WELL,
    "new": WELL | {"last_run": None, "breakers": {}},
    "disabled": WELL | {"enabled": False, "refused": "it is gone", "last_run": {"status": "failed"}},
}
ORDER = [{"refused", "unhealthy", "open"}, {"failed", "ill"}, {"well", "new"}, {"disabled"}]


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=10))
def test_plugins_in_trouble_come_first(kinds: list[str]) -> None:
    plugins = [KINDS[kind] | {"name": f"{kind}-{number}"} for number, kind in enumerate(kinds)]
    names = [str(plugin["name"]) for plugin in troubled_first(plugins) if isinstance(plugin, dict)]
    wanted = [f"{kind}-{number}" for group in ORDER for number, kind in enumerate(kinds) if kind in group]
    assert names == wanted
