"""May this plugin run? Every way in which the answer is no has its own code, reason and hint.

Plugins run with the rights of the daemon. So its files must lie where the operator said plugins lie, and
nobody but root and the daemon's user (or a group) may be able to change them (`permissions` looks at that).
The checks look at the disk and change nothing.
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
    """Raised inside this package only: discovery turns it into a `RefusedPlugin`."""

    refusal: RefusalCode
    reason: str
    hint: str

    def __str__(self) -> str:
        return self.reason


class TrustPolicy(Value):
    """Where plugins may lie."""

    roots: Sequence[Path]
    allow_symlinks: bool = False


def check_path(path: Path, *, root: Path, ground: TrustPolicy) -> None:
    """Nothing on the way from the root to the path leads elsewhere, or symlinks are allowed and all of
    it ends inside some root. A symlink is refused before what it points to is opened.
    """
    links = [place for place in _way(root, path) if place.is_symlink()]
    if not links:
        return
    if not ground.allow_symlinks:
        raise NotTrustedError(
            RefusalCode.SYMLINK,
            f"{links[0]} is a symbolic link",
            "replace it by what it points to, or set service.allow_symlinks: true",
        )
    target = _resolved(path)
    if not any(target.is_relative_to(_resolved(allowed)) for allowed in ground.roots):
        raise NotTrustedError(
            RefusalCode.SYMLINK_ESCAPES,
            f"{links[0]} leads to {target}, which is outside every plugin root",
            "move the target under a plugin root, or add its directory to plugin_roots",
        )


def find_symlink(path: Path, *, root: Path) -> Path | None:
    """The first symlink on the way, for a warning where they are allowed."""
    return next((place for place in _way(root, path) if place.is_symlink()), None)


def entrypoint_path(directory: Path, written: str) -> Path:
    """The entrypoint of a manifest as a path inside the plugin's directory."""
    relative = PurePosixPath(written)
    if relative.is_absolute() or ".." in relative.parts or "\0" in written or relative == PurePosixPath():
        raise NotTrustedError(
            RefusalCode.ENTRYPOINT_OUTSIDE,
            f"the entrypoint {written!r} does not lie inside the plugin's directory",
            "write it relative to manifest.yaml and without .. , for example run.py",
        )
    return directory / relative


def check_entrypoint(entrypoint: Path) -> None:
    """It is a file that this program may execute."""
    try:
        mode = entrypoint.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(entrypoint) from None
    if not stat.S_ISREG(mode):
        raise NotTrustedError(
            RefusalCode.ENTRYPOINT_MISSING,
            f"the entrypoint {entrypoint} is not a file",
            "name the executable file itself",
        )
    if not os.access(entrypoint, os.X_OK):
        raise NotTrustedError(
            RefusalCode.ENTRYPOINT_NOT_EXECUTABLE,
            f"the entrypoint {entrypoint} is not executable",
            f"chmod +x {entrypoint}",
        )


def _resolved(path: Path) -> Path:
    """Unlike `Path.resolve` this goes as far as it can with a link that leads round in a circle."""
    return Path(os.path.realpath(path))


def _missing(entrypoint: Path) -> NotTrustedError:
    return NotTrustedError(
        RefusalCode.ENTRYPOINT_MISSING,
        f"the entrypoint {entrypoint} does not exist",
        "put it there, or correct entrypoint in manifest.yaml",
    )


def _way(start: Path, end: Path) -> Iterator[Path]:
    """From the start to the end, both included."""
    yield start
    step = start
    for part in end.relative_to(start).parts:
        step /= part
        yield step
