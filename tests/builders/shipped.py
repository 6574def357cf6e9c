"""The shipped plugins, run as the daemon runs them."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ductile.admin.plugin_dev.run_once import PluginUnderTest, RunOnceResult, run_once
from ductile.config.snapshot import InstalledPlugin
from ductile.plugins.discovery import load_directory
from ductile.protocol.plugin_messages import PluginRequest, RequestEvent, carries_event, encode_request
from ductile.runner.process.spawn import SpawnRunner

ROOT = Path(__file__).parents[2] / "plugins"
NOW = datetime(2026, 2, 8, 10, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginResult:
    """The result of one request; `kind` is `ok`, `error`, `config` (exit 78), `timeout` or `broken`."""

    kind: str
    answer: dict[str, Any]
    stderr: str
    exit_code: int | None

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.answer.get("events", []))

    @property
    def event_types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.answer.get("state_updates", {}))

    def failed_for_good(self, words: str) -> bool:
        return self.kind == "error" and self.answer["retry"] is False and words in self.answer["error"]

    def may_be_tried_again(self, words: str) -> bool:
        return self.kind == "error" and self.answer["retry"] is True and words in self.answer["error"]


def plugin_module(plugin: str, name: str) -> Any:
    """Import a module of a plugin as the plugin does, and remove it from the imported modules."""
    directory = ROOT / plugin
    before = set(sys.modules)
    sys.path[:0] = [str(directory), str(ROOT / "lib")]
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[:2]
        for module in set(sys.modules) - before:
            file = getattr(sys.modules[module], "__file__", None)
            if file is not None and ROOT in Path(file).parents:
                del sys.modules[module]


def ask(
    plugin: str | Path,
    command: str,
    *,
    config: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    event: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> PluginResult:
    """Send one request to a plugin. `event` replaces fields of the event that goes with the payload."""
    payload_fields = dict(payload) if payload is not None else None
    event_fields = {"type": "test", "source": "test", "timestamp": NOW, "event_id": "e1", **(event or {})}
    request_event = RequestEvent(payload=payload_fields or {}, **event_fields)
    request = PluginRequest(
        job_id="j1",
        command=command,
        instance="it",
        config=dict(config or {}),
        state=dict(state or {}),
        context={"owner": "Ada", "ductile_plugin": "it"},
        deadline_at=datetime.now(UTC) + timedelta(seconds=seconds),
        payload=payload_fields,
        event=request_event if carries_event(command, has_payload=payload_fields is not None) else None,
    )
    return ask_raw(plugin, encode_request(request), environ=environ)


def ask_raw(plugin: str | Path, request: bytes, *, environ: Mapping[str, str] | None = None) -> PluginResult:
    installed = load_directory(ROOT / plugin)
    assert isinstance(installed, InstalledPlugin), installed
    return _result_of(asyncio.run(_run(installed, request, environ or {})))


async def _run(plugin: InstalledPlugin, request: bytes, environ: Mapping[str, str]) -> RunOnceResult:
    runner = SpawnRunner()
    subject = PluginUnderTest(name=plugin.name, plugin=plugin, config={}, passthrough=tuple(environ))
    try:
        return await run_once(runner, subject, request, {"PATH": os.environ["PATH"], **environ})
    finally:
        await runner.close()


def _result_of(trial: RunOnceResult) -> PluginResult:
    evidence = trial.interpretation.outcome.evidence
    has_response = trial.kind in ("ok", "error")
    return PluginResult(
        kind=trial.kind,
        answer=json.loads(evidence.stdout or "") if has_response else {},
        stderr=evidence.stderr or "",
        exit_code=evidence.exit_code,
    )
