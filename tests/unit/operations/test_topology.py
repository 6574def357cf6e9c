"""The topology has emitters and listeners of events, with webhooks and hooks, and whether they can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from builders.snapshots import a_snapshot
from ductile.operations.plugins.topology import topology_of
from ductile.struct import to_builtins

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = "  poll: {values: {emit: [{event: made.it}]}}\n  handle: {}\n"
CONFIG = """\
plugins:
  maker: {notify_on_complete: true}
  taker: {}
  resting: {uses: maker, enabled: false, notify_on_complete: true}
  ghost: {}
routes:
  - {from: maker, event_type: made.it, to: taker}
  - {from: maker, event_type: made.it, to: resting.poll}
pipelines:
  - {name: onpush, on: gh.push, notify_on_complete: true, steps: [{uses: taker}, {uses: resting}]}
  - {name: alarm, on-hook: job.failed, from_plugin: maker, steps: [{uses: taker}]}
tokens: [{name: hook, key: a-shared-secret}]
webhooks:
  endpoints:
    - {name: gh, path: /gh, event: gh.push, secret_ref: hook}
    - {name: gp, path: /gp, plugin: taker, secret_ref: hook}
    - {name: gr, path: /gr, plugin: resting, command: poll, secret_ref: hook}
    - {name: gl, path: /gl, pipeline: onpush, secret_ref: hook}
"""


@pytest.fixture
def topology(tmp_path: Path) -> Any:
    return to_builtins(topology_of(a_snapshot(tmp_path, CONFIG, maker=COMMANDS, taker=COMMANDS)))


def target(plugin: str, command: str, standing: str) -> dict[str, str]:
    return {"plugin": plugin, "command": command, "standing": standing}


def test_webhooks_are_sources(topology: Any) -> None:
    """Each webhook has its target; one that publishes an event is among the emitters of the event."""
    absent = dict.fromkeys(("plugin", "command", "standing", "pipeline", "event"))
    assert topology["webhooks"] == [
        {**absent, "name": "gh", "path": "/gh", "event": "gh.push"},
        {**absent, "name": "gp", "path": "/gp", **target("taker", "handle", "active")},
        {**absent, "name": "gr", "path": "/gr", **target("resting", "poll", "disabled")},
        {**absent, "name": "gl", "path": "/gl", "pipeline": "onpush"},
    ]
    pushed = next(event for event in topology["events"] if event["type"] == "gh.push")
    assert pushed["emitted_by"] == ["webhook:gh"]
    assert pushed["heard_by"] == [{"pipeline": "onpush", "from": None}]


def test_hooks_name_their_source_and_their_target(topology: Any) -> None:
    """Hooks list the plugins and pipelines that notify, and the pipelines that they start."""
    hooks = {hook["hook"]: hook for hook in topology["hooks"]}
    assert hooks["job.failed"] == {
        "hook": "job.failed",
        "emitted_by": ["maker", "pipeline:onpush"],
        "heard_by": [{"pipeline": "alarm", "from": "maker"}],
    }
    assert hooks["job.completed"]["heard_by"] == []
    assert "job.failed" not in {event["type"] for event in topology["events"]}


def test_a_plugin_that_cannot_run_emits_nothing_and_is_marked_as_a_listener(topology: Any) -> None:
    """A disabled plugin emits no event, and its routes are marked."""
    made_event = next(event for event in topology["events"] if event["type"] == "made.it")
    assert made_event["emitted_by"] == ["maker.poll", "taker.poll"]
    assert made_event["heard_by"] == [
        {"route": "taker.handle", "from": "maker", "standing": "active"},
        {"route": "resting.poll", "from": "maker", "standing": "disabled"},
    ]
    pipelines = {pipeline["name"]: pipeline for pipeline in topology["pipelines"]}
    assert pipelines["onpush"]["cannot_run"] == ["resting.handle"]
    assert pipelines["alarm"]["cannot_run"] == []
    standing_of = {plugin["name"]: plugin["standing"] for plugin in topology["plugins"]}
    assert standing_of == {"maker": "active", "taker": "active", "resting": "disabled", "ghost": "refused"}


def test_without_hooks_there_are_no_hook_edges(tmp_path: Path) -> None:
    """The list of hooks is empty."""
    assert topology_of(a_snapshot(tmp_path, "plugins: {maker: {}}", maker=COMMANDS)).hooks == []


def test_no_secret_is_shown(topology: Any) -> None:
    assert "a-shared-secret" not in str(topology)
