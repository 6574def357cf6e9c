"""Common mistakes in a configuration: each has one message with a remedy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builders.daemons import Workspace, a_workspace, answering
from builders.plugins import a_plugin

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 1.0.0
protocol: 2
entrypoint: run.sh
commands:
  poll: {{type: write, values: {{emit: [{{event: {name}.done}}]}}}}
  handle: {{type: write, values: {{emit: [{{event: {name}.handled}}, "{name}.kind.*"]}}}}
"""


def a_checked_workspace(tmp_path: Path, more: str) -> Workspace:
    """Return a workspace with the plugin `tells`, whose manifest declares its events."""
    workspace = a_workspace(tmp_path)
    plugins = tmp_path / "demo" / "plugins"
    a_plugin(plugins, "tells", manifest=MANIFEST.format(name="tells"), script=answering({"status": "ok"}))
    workspace.config.write_text(workspace.config.read_text().replace("  echo: {}\n", "  tells: {}\n") + more)
    return workspace


def findings_of(workspace: Workspace) -> list[dict[str, Any]]:
    """Return every finding of `config check` except the missing seal."""
    workspace.ductile("config", "lock")
    result = workspace.ductile("config", "check", "--json")
    report = json.loads(result.out)
    assert report["refused"] == []
    return [*report["problems"], *report["warnings"]]


STEP = "pipelines:\n  - name: p\n    steps:\n      - uses: tells\n"
FIRST = "pipelines[0].steps[0]"
SCHEDULE = "  other:\n    uses: tells\n    schedule:\n"
EXISTS = "{path: payload.x, op: exists}"


def pipeline(more: str, step: str = "uses: tells") -> str:
    return f"pipelines: [{{name: p, {more}, steps: [{{{step}}}]}}]\n"


@pytest.mark.parametrize(
    ("more", "key", "text"),
    [
        (f"{STEP}        with: {{message: {{payload.x}}}}\n", f"{FIRST}.with.message", '"{payload.x}"'),
        (f"{STEP}        with:\n          a: [{{context.x}}]\n", f"{FIRST}.with.a[0]", '"{context.x}"'),
        (f"{STEP}        baggage: {{a: {{payload.x}}}}\n", f"{FIRST}.baggage.a", '"{payload.x}"'),
        (f"{STEP}        if: {{path: {{payload.x}}, op: exists}}\n", f"{FIRST}.if.path", '"{payload.x}"'),
        (f"{STEP}        with:\n          a: {{payload.x}} and\n", None, "quotes"),
        (f"{SCHEDULE}      cron: '1'\n", "plugins.other.schedule.cron", "cron"),
        (f"{SCHEDULE}      cron: */5 * * * *\n", None, 'quote it: "*/5 * * * *"'),
        (f"{SCHEDULE}      cron: @hourly\n", None, 'quote it: "@hourly"'),
        ("routes: [{from: tells, event_type: '*', to: tells}]\n", "routes[0].event_type", "exactly"),
        ("routes: [{from: tells, event_type: 'tells.*', to: tells}]\n", "routes[0].event_type", "exactly"),
        (pipeline("on: '*'"), "pipelines[0].on", "exactly"),
        (pipeline("on: tells.doen"), "pipelines[0].on", "tells.done"),
        (pipeline("on: tells.doen, from_plugin: tells"), "pipelines[0].on", "tells.done"),
        (pipeline("on: order.placed"), "pipelines[0].on", "event send"),
        (pipeline("on: tells.handled"), "pipelines[0].on", "each run starts the next"),
        (
            f"{STEP}        with: {{a: '{{context.order}}'}}\n",
            f"{FIRST}.with.a",
            "no step claims context.order",
        ),
    ],
)
def test_one_mistake_one_message(tmp_path: Path, more: str, key: str | None, text: str) -> None:
    findings = findings_of(a_checked_workspace(tmp_path, more))
    assert len(findings) == 1, findings
    assert findings[0]["key"] == key
    assert text in f"{findings[0]['message']} {findings[0]['hint']} {findings[0]['expected']}"
    assert findings[0]["line"] is not None


CLAIMING = f"""\
{STEP}        baggage: {{order: payload.order}}
      - uses: tells
        with: {{a: "{{context.order}}", b: "{{context.order.id}} x"}}
"""
CLAIMING_ALL = f"""\
{STEP}        baggage: {{from: payload.order, namespace: orders.latest}}
      - uses: tells
        with: {{a: "{{context.orders}}", b: "{{context.orders.latest.id}}"}}
"""
CLAIMING_ELSEWHERE = f"""\
pipelines:
  - {{name: a, on: tells.done, steps: [{{uses: tells, baggage: {{x: payload.x}}}}]}}
  - {{name: b, on: tells.handled, if: {EXISTS}, steps: [{{uses: tells, with: {{x: "{{context.x}}"}}}}]}}
"""


@pytest.mark.parametrize(
    "more",
    [
        pipeline("on: tells.done"),
        pipeline("on: tells.kind.new"),
        pipeline("on: tells.handle"),  # POST /trigger/tells/handle
        pipeline("execution_mode: sync"),
        pipeline("on: order.placed, from_plugin: cli"),
        pipeline("on: order.placed, from_plugin: api"),
        "routes: [{from: api, event_type: order.placed, to: tells}]\n" + pipeline("on: order.placed"),
        # A plugin that does not say what it emits may emit anything.
        "  echo: {}\n" + pipeline("on: order.placed"),
        pipeline(f"on: tells.handled, if: {EXISTS}"),
        pipeline("on: tells.handled", f"uses: tells, if: {EXISTS}"),
        pipeline("on: tells.handled", f"if: {EXISTS}, steps: [{{uses: tells}}]"),
        "  other: {uses: tells}\n" + pipeline("on: tells.handled, from_plugin: other"),
        CLAIMING,
        CLAIMING_ALL,
        CLAIMING_ELSEWHERE,
    ],
)
def test_no_false_alarm(tmp_path: Path, more: str) -> None:
    assert findings_of(a_checked_workspace(tmp_path, more)) == []


def test_sync_is_synchronous(tmp_path: Path) -> None:
    workspace = a_checked_workspace(tmp_path, pipeline("execution_mode: sync"))
    assert workspace.json("pipeline", "show", "p")["execution_mode"] == "synchronous"
