"""Nodes: daemons of their own configurations on one PostgreSQL store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.daemons import Workspace, a_workspace
from builders.postgres import store_url

#: Writes a line to a record, and waits until the test creates a file.
WAITER = (
    '#!/bin/sh\ncat >/dev/null\nif [ "$DUCTILE_COMMAND" != health ]; then\necho started >>{record}\n'
    "while [ ! -e {go} ]; do sleep 0.05; done\nfi\n"
    'echo \'{{"status": "ok", "result": "done"}}\'\n'
)


@dataclass(frozen=True)
class Nodes:
    """Two nodes: `left` runs all plugins, `right` only `waiter`."""

    directory: Path
    left: Workspace
    right: Workspace

    @property
    def go(self) -> Path:
        return self.directory / "go"

    @property
    def starts(self) -> int:
        record = self.directory / "record"
        return len(record.read_text().splitlines()) if record.exists() else 0


def a_node(directory: Path, shared: Path, url: str, service: str) -> Workspace:
    directory.mkdir()
    workspace = a_workspace(directory, "  waiter: {timeout: 5m}\n  lefty: {timeout: 5m}\n")
    for name in ("waiter", "lefty"):
        workspace.plugin(name, WAITER.format(record=shared / "record", go=shared / "go"))
    config = workspace.config.read_text().replace(
        "service:\n", f"service:\n  tick_interval: 1s\n{service}", 1
    )
    workspace.config.write_text(f"state: {{url: '{url}'}}\n{config}")
    return workspace


def two_nodes(directory: Path, url_of_right: str | None = None) -> Nodes:
    url = store_url(directory)
    return Nodes(
        directory=directory,
        left=a_node(directory / "left", directory, url, "  node: left\n  run_only: [echo, lefty, waiter]\n"),
        right=a_node(
            directory / "right", directory, url_of_right or url, "  node: right\n  run_only: [waiter]\n"
        ),
    )


def submit(workspace: Workspace, *words: str) -> str:
    job_id: str = workspace.json("run", *words, "--no-wait")["job_id"]
    return job_id


def nodes_by_name(workspace: Workspace) -> dict[str, Any]:
    return {node["name"]: node for node in workspace.json("status")["nodes"]}
