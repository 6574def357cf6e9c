"""Plugins on disk for tests: real directories with real files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.protocol.manifest.read import FieldReader, read_command, read_manifest
from ductile.protocol.yaml_tree import MapNode, SourceLocation

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 1.0.0
protocol: 2
entrypoint: {entrypoint}
commands: [poll, handle, health]
"""

SCRIPT = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'


def manifest_keys() -> set[str]:
    """Return the keys of a manifest that Ductile reads."""
    fields = _empty_fields()
    read_manifest(fields)
    return fields.read_keys


def command_keys() -> set[str]:
    """Return the keys of a command in a manifest that Ductile reads."""
    fields = _empty_fields()
    read_command(fields, "poll")
    return fields.read_keys


def _empty_fields() -> FieldReader:
    return FieldReader(node=MapNode(entries=(), location=SourceLocation(file="m", line=1, column=1)))


def a_manifest(name: str = "echo", *, entrypoint: str = "run.sh", extra: str = "") -> str:
    return MANIFEST.format(name=name, entrypoint=entrypoint) + extra


def a_plugin(
    root: Path,
    name: str = "echo",
    *,
    directory: str | None = None,
    manifest: str | None = None,
    script: str | None = SCRIPT,
    mode: int = 0o755,
) -> Path:
    """Write a plugin into a root and return its directory. `script=None` leaves the entrypoint out."""
    plugin_directory = root / (directory or name)
    plugin_directory.mkdir(parents=True)
    plugin_directory.chmod(0o755)
    (plugin_directory / "manifest.yaml").write_text(manifest if manifest is not None else a_manifest(name))
    if script is not None:
        (plugin_directory / "run.sh").write_text(script)
        (plugin_directory / "run.sh").chmod(mode)
    return plugin_directory
