"""What plugin discovery found, as values: the one thing that configuration learns from plugins.

Discovery itself reads directories and lives above this package; compiling a configuration only
needs its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ductile.errors import Problem
    from ductile.protocol.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugin:
    """A plugin that may be run: its manifest is valid and its files passed the trust checks.

    `directory` and `entrypoint` are absolute; `fingerprint` is over manifest and entrypoint bytes.
    """

    name: str
    version: str
    root: Path
    directory: Path
    entrypoint: Path
    manifest: Manifest
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPlugin:
    """A plugin that is there and must not be run; `reason` is for people, `code` for programs."""

    name: str
    directory: Path
    code: str
    reason: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    installed: Mapping[str, InstalledPlugin] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[str, RefusedPlugin] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[Problem, ...] = ()
