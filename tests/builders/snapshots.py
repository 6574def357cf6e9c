"""Compiled configurations of real plugins, without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.configs import a_config, loaded
from builders.plugins import a_plugin
from ductile.config.compile.compiler import compile_snapshot
from ductile.plugins.discovery import discover

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.config.snapshot import Snapshot

HEAD = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 1.0.0
protocol: 2
entrypoint: run.sh
description: {name} of the tests.
commands:
"""


def a_snapshot(directory: Path, config: str, **commands: str) -> Snapshot:
    """Return the snapshot of a configuration with plugins. Each value is `commands` of the manifest."""
    for name, written in commands.items():
        a_plugin(directory / "plugins", name, manifest=HEAD.format(name=name) + written)
    configuration = loaded(a_config(directory, config))
    return compile_snapshot(configuration, discover(configuration.plugin_roots))
