"""What plugin discovery found, as values: the one thing that configuration learns from plugins.

Discovery itself reads directories and lives above this package; compiling a configuration only
needs its result.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.struct import Value, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ductile.errors import Problem
    from ductile.protocol.manifest.model import Manifest


class InstalledPlugin(Value):
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


class RefusedPlugin(Value):
    """A plugin that is there and must not be run; `reason` is for people, `code` for programs."""

    name: str
    directory: Path
    code: str
    reason: str
    hint: str | None = None


class Discovery(Value):
    installed: Mapping[str, InstalledPlugin] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[str, RefusedPlugin] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[Problem, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is there, whether it may be run or not."""
        return (*self.installed, *self.refused)
