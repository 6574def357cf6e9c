"""The plugins that are part of Ductile. A configuration needs no plugin root to use them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ductile.protocol.manifest.model import MANIFEST_FILE

#: In an installed package, and beside `src` in a checkout of the source.
_POSSIBLE_ROOTS = (Path(__file__).parents[1] / "shipped_plugins", Path(__file__).parents[3] / "plugins")


@cache
def shipped_root() -> Path | None:
    """Return the directory of the shipped plugins; None if this installation lacks them."""
    return next(
        (directory for directory in _POSSIBLE_ROOTS if (directory / "echo" / MANIFEST_FILE).is_file()), None
    )


def shipped_names() -> tuple[str, ...]:
    """Return the names of all shipped plugins: the names of their directories."""
    root = shipped_root()
    if root is None:
        return ()
    return tuple(sorted(manifest.parent.name for manifest in root.glob(f"*/{MANIFEST_FILE}")))
