"""`event explain` and its endpoint say what an event would start, what not, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace

CONFIG = """\
  shop: {notify_on_complete: true}
  asleep: {enabled: false}
routes:
  - {from: cli, event_type: order.placed, to: echo}
  - {from: shop, event_type: order.placed, to: asleep}
pipelines:
  - {name: large, on: order.placed, if: {path: payload.total, op: gte, value: 100}, steps: [{uses: echo}]}
  - name: keyed
    on: order.placed
    if: {path: payload.api_key, op: eq, value: canary-91}
    steps: [{uses: echo}]
  - {name: of-shop, on: order.placed, from_plugin: shop, steps: [{uses: echo}]}
  - {name: alarm, on-hook: job.failed, from_plugin: shop, steps: [{uses: echo}]}
"""
PAYLOAD = '{"total": 35, "api_key": "canary-92"}'


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = a_workspace(tmp_path, CONFIG)
    for name in ("shop", "asleep"):
        workspace.plugin(name, '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "sold"}\'\n')
    return workspace


def test_each_target_has_the_comparison_that_decided(workspace: Workspace) -> None:
    with a_daemon(workspace):
        before = workspace.json("event", "tail")["highest"]
        explanation = workspace.json("event", "explain", "order.placed", "--payload", PAYLOAD)
        assert (explanation["source"], explanation["would_start"]) == ("cli", ["echo.handle"])
        by_name = {(target["kind"], target["target"]): target for target in explanation["targets"]}
        assert len(by_name) == 6
        large = by_name["pipeline", "pipeline:large"]
        assert large["outcome"] == "condition"
        assert large["comparisons"] == [
            {"path": "payload.total", "op": "gte", "expected": "100", "found": "35", "holds": False}
        ]
        (masked,) = by_name["pipeline", "pipeline:keyed"]["comparisons"]
        assert (masked["expected"], masked["found"]) == ("***", "***")
        of_shop = by_name["pipeline", "pipeline:of-shop"]
        assert of_shop["outcome"] == "other_source"
        assert of_shop["comparisons"][0]["path"] == "event.source"
        assert by_name["hook", "pipeline:alarm"]["outcome"] == "other_type"
        result = workspace.ductile("event", "explain", "order.placed", "--payload", PAYLOAD)
        assert "Would start echo.handle: the route from cli takes order.placed." in result.out
        assert "payload.total gte 100 is false (found 35)" in result.out
        assert "canary" not in result.out + json.dumps(explanation)
        # Nothing was run or stored.
        assert workspace.json("job", "list")["jobs"] == []
        assert workspace.json("event", "tail")["highest"] == before
        planned = workspace.json("event", "send", "order.placed", "--payload", PAYLOAD, "--dry-run")
        assert (planned["targets"], planned["dry_run"]) == (explanation["targets"], True)
        response = workspace.json("event", "send", "order.placed", "--payload", PAYLOAD)
        assert [target["target"] for target in response["started"]] == explanation["would_start"]


def test_sources_hooks_and_hops(workspace: Workspace) -> None:
    """The command works without a daemon too."""
    explanation = workspace.json(
        "event", "explain", "order.placed", "--from", "shop", "--payload", '{"total": 100}'
    )
    assert explanation["would_start"] == ["asleep.handle", "pipeline:large", "pipeline:of-shop"]
    assert explanation["targets"][0]["warning"] == "the plugin asleep is disabled"
    assert explanation["hops"] == 1
    at_limit = workspace.json("event", "explain", "order.placed", "--from", "shop", "--hops", "20")
    assert at_limit["would_start"] == []
    assert "service.max_hops" in at_limit["targets"][0]["reason"]
    assert workspace.json("event", "explain", "job.failed", "--from", "shop")["would_start"] == [
        "pipeline:alarm"
    ]
    targets = workspace.json("event", "explain", "job.failed", "--from", "echo")["targets"]
    assert {target["target"]: target["outcome"] for target in targets}["pipeline:alarm"] == "other_source"
    unknown = workspace.json("event", "explain", "order.placed", "--from", "shp", status=1)
    assert unknown["error"]["hint"] == "did you mean shop?"
    output = workspace.ductile("event", "explain", "order.plcaed").out
    assert "No route or pipeline matches order.plcaed from `cli`." in output
