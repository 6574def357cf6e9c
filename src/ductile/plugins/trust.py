"""Decides whether a plugin may run. Each refusal has its own code, reason and hint.

Plugins run with the rights of the daemon. So their files must be under a plugin root, and only root and the
daemon's user (or a group) may be able to change them; `permissions` checks the latter. The checks read the
disk and change nothing.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class RefusalCode(StrEnum):
    """Why a plugin is not loaded; documented in `docs/reference/manifest.md`."""

    SYMLINK = "symlink"
    SYMLINK_ESCAPES = "symlink_escapes"
    ENTRYPOINT_OUTSIDE = "entrypoint_outside"
    ENTRYPOINT_MISSING = "entrypoint_missing"
    ENTRYPOINT_NOT_EXECUTABLE = "entrypoint_not_executable"
    WORLD_WRITABLE = "world_writable"
    FOREIGN_OWNER = "foreign_owner"
    PROTOCOL_UNSUPPORTED = "protocol_unsupported"
    MANIFEST_INVALID = "manifest_invalid"
    UNREADABLE = "unreadable"


@dataclass(eq=False)
class NotTrustedError(Exception):
    """Never leaves this package: discovery turns it into a `RefusedPlugin`."""

    refusal: RefusalCode
    reason: str
    hint: str

    def __str__(self) -> str:
        return self.reason


class TrustPolicy(Value):
    """The roots of plugins, and whether symbolic links are followed."""

    roots: Sequence[Path]
    allow_symlinks: bool = False


def check_symlinks(path: Path, *, root: Path, policy: TrustPolicy) -> None:
    """Raise NotTrustedError for a symbolic link from the root to the path that is not allowed.

    With `allow_symlinks` the target must be inside some root. A link is refused before its target is opened.
    """
    link = next(find_symlinks(path, root=root), None)
    if link is None:
        return
    if not policy.allow_symlinks:
        raise NotTrustedError(
            RefusalCode.SYMLINK,
            f"{link} is a symbolic link",
            "replace it by what it points to, or set service.allow_symlinks: true",
        )
    # Unlike `Path.resolve`, `realpath` accepts a link that leads in a circle.
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(os.path.realpath(allowed)) for allowed in policy.roots):
        raise NotTrustedError(
            RefusalCode.SYMLINK_ESCAPES,
            f"{link} leads to {target}, which is outside every plugin root",
            "move the target under a plugin root, or add its directory to plugin_roots",
        )


def find_symlinks(path: Path, *, root: Path) -> Iterator[Path]:
    """Yield the symbolic links from the root to the path, both included."""
    step = root
    for part in (".", *path.relative_to(root).parts):
        step /= part
        if step.is_symlink():
            yield step


def entrypoint_path(directory: Path, written: str) -> Path:
    """Return the entrypoint of a manifest as a path inside the plugin's directory. Raises NotTrustedError."""
    relative = PurePosixPath(written)
    if relative.is_absolute() or ".." in relative.parts or "\0" in written or relative == PurePosixPath():
        raise NotTrustedError(
            RefusalCode.ENTRYPOINT_OUTSIDE,
            f"the entrypoint {written!r} does not lie inside the plugin's directory",
            "write it relative to manifest.yaml and without .. , for example run.py",
        )
    return directory / relative


def check_entrypoint(entrypoint: Path) -> None:
    """Raise NotTrustedError unless it is a file that this program may execute."""
    try:
        mode = entrypoint.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        reason = f"the entrypoint {entrypoint} does not exist"
        hint = "put it there, or correct entrypoint in manifest.yaml"
        raise NotTrustedError(RefusalCode.ENTRYPOINT_MISSING, reason, hint) from None
    if not stat.S_ISREG(mode):
        reason = f"the entrypoint {entrypoint} is not a file"
        raise NotTrustedError(RefusalCode.ENTRYPOINT_MISSING, reason, "name the executable file itself")
    if not os.access(entrypoint, os.X_OK):
        reason = f"the entrypoint {entrypoint} is not executable"
        raise NotTrustedError(RefusalCode.ENTRYPOINT_NOT_EXECUTABLE, reason, f"chmod +x {entrypoint}")
