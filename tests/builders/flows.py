"""Daemons with pipelines: plugins that return their request, and gates that a test opens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.daemons import PATIENCE, Workspace
from builders.http import an_api_workspace
from builders.plugins import a_manifest

#: Adds the step to the trail in its payload and emits the configured events, or fails.
WORK = """#!/usr/bin/env python3
import json, sys

request = json.load(sys.stdin)
config, context = request["config"], request["context"]
payload = request.get("payload") or request.get("event", {}).get("payload", {})
trail = [*payload.get("trail", []), context.get("ductile_step_id", request["command"])]
if config.get("fails"):
    answer = {"status": "error", "error": "it is broken", "retry": False}
else:
    types = config.get("emits", ["made"])
    events = [{"type": kind, "payload": {**payload, "trail": trail}} for kind in types]
    answer = {"status": "ok", "result": {"trail": trail, "baggage": context.get("kept")}, "events": events}
json.dump(answer, sys.stdout)
"""
#: Succeeds and emits nothing.
PLAIN = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "plain"}\'\n'
#: Waits until the test writes to the gate, a pipe in the daemon's working directory.
GATED = (
    '#!/bin/sh\ncat >/dev/null\nread -r _ < gate\necho \'{"status": "ok", "result": "through the gate"}\'\n'
)
PLUGINS = """\
  work: {}
  twice: {uses: work, config: {emits: [made, made]}}
  sorted: {uses: work, config: {emits: [big, small]}}
  broken: {uses: work, config: {fails: true}}
  plain: {}
  gated: {}
"""


def a_flow_workspace(directory: Path, pipelines: str, *, plugins: str = "", **options: Any) -> Workspace:
    """Return a workspace with the plugins above, these pipelines and the API."""
    workspace = an_api_workspace(directory, PLUGINS + plugins + pipelines, **options)
    for name, script in (("work", WORK), ("plain", PLAIN), ("gated", GATED)):
        workspace.plugin(name, script)
    os.mkfifo(directory / "gate")
    return workspace


def give_commands(workspace: Workspace, plugin: str, *commands: str, extra: str = "") -> None:
    """Let a plugin declare these commands instead of the usual ones."""
    listed = f"commands: [{', '.join(commands)}]\n"
    manifest = a_manifest(plugin, extra=extra).replace("commands: [poll, handle, health]\n", listed)
    (workspace.directory / "demo" / "plugins" / plugin / "manifest.yaml").write_text(manifest)


def open_gate(workspace: Workspace) -> None:
    """Let one gated step go on. Wait until it reads from the gate, so that it runs by then."""
    with (workspace.directory / "gate").open("w") as gate:
        gate.write("go\n")


@dataclass(slots=True)
class BackgroundCall:
    """A blocking call in a thread; `result` waits for its return value."""

    function: Callable[[], Any]
    _results: list[Any] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> BackgroundCall:
        self._thread = threading.Thread(target=lambda: self._results.append(self.function()), daemon=True)
        self._thread.start()
        return self

    @property
    def result(self) -> Any:
        assert self._thread is not None
        self._thread.join(PATIENCE)
        assert self._results, "the call has returned nothing"
        return self._results[0]


def shape(tree: Mapping[str, Any]) -> Any:
    """Return a job and its descendants in order: plugin, command, step, status and reason of each."""
    below = sorted((shape(child) for child in tree["children"]), key=str)
    return (tree["plugin"], tree["command"], tree["step"], tree["status"], tree["reason"], *below)
