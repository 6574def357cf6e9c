"""Jobs that no live node may run are shown, run when such a node is there, and end if none comes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from builders.daemons import a_daemon
from builders.nodes import a_node, submit, two_nodes
from builders.postgres import store_url

PIPELINE = "\npipelines:\n  - {name: flow, steps: [{id: first, uses: echo}, {id: second, uses: lefty}]}\n"


def _is_about(job_id: str, line: dict[str, Any]) -> bool:
    return line.get("job_id") == job_id


def test_jobs_wait_visibly_for_a_node_and_go_on_when_it_is_there(tmp_path: Path) -> None:
    """Only the node `left` may run the jobs. Every surface says so while that node is away."""
    nodes = two_nodes(tmp_path)
    nodes.go.touch()
    with ExitStack() as stack:
        right = stack.enter_context(a_daemon(nodes.right))
        job_id = submit(nodes.right, "lefty")
        line = right.wait_for("jobs.without_node", lambda line: line["plugin"] == "lefty")
        assert (line["level"], line["jobs"]) == ("warn", 1)
        job = nodes.right.json("job", "show", job_id)
        assert (job["status"], job["hold"]) == ("queued", "no_node")
        assert job["held_since"] is not None
        assert "no_node" in nodes.right.ductile("job", "list").out
        explanation = nodes.right.ductile("job", "explain", job_id).out
        assert "no live node runs lefty" in explanation
        assert "service.dedupe_ttl" in explanation
        status = nodes.right.json("status")
        (waiting,) = status["without_node"]
        assert (waiting["plugin"], waiting["node"], waiting["jobs"]) == ("lefty", None, 1)
        assert "no live node runs lefty" in nodes.right.ductile("status").out
        messages = [finding["message"] for finding in nodes.right.json("doctor")["findings"]]
        assert "1 job waits for a node that runs lefty; none is alive" in messages

        left = stack.enter_context(a_daemon(nodes.left))
        left.wait_until_started(job_id)
        left.wait_for("job.succeeded", lambda line: line["job_id"] == job_id)
        assert nodes.right.json("status")["without_node"] == []
        assert nodes.right.json("system", "selfcheck")["sound"] is True


def test_jobs_end_with_an_error_if_no_node_comes(tmp_path: Path) -> None:
    """The jobs end after `service.dedupe_ttl`. A pipeline run ends as with any failed step."""
    url = store_url(tmp_path)
    service = "  node: right\n  run_only: [echo, waiter]\n  dedupe_ttl: 1s\n"
    workspace = a_node(tmp_path / "right", tmp_path, url, service)
    workspace.append(PIPELINE)
    with a_daemon(workspace) as daemon:
        alone, run = (
            submit(workspace, "lefty"),
            workspace.json("pipeline", "run", "flow", "--no-wait")["job_id"],
        )
        end_signals = ("job.dead", "job.failed")
        for job_id in (alone, run):
            daemon.wait_for_any(end_signals, partial(_is_about, job_id))
        ended = workspace.json("job", "show", alone)
        assert (ended["status"], ended["reason"]) == ("dead", "no_node")
        assert ended["last_error"] == "no live node may run lefty, and none has come within 1s"
        failed = workspace.json("job", "show", run)
        assert (failed["status"], failed["reason"]) == ("failed", "step_failed")
        steps = [
            (job["step"], job["reason"]) for job in workspace.json("job", "list", "--plugin", "lefty")["jobs"]
        ]
        assert steps == [("second", "no_node"), (None, "no_node")]
        assert workspace.json("system", "selfcheck")["sound"] is True


def test_a_command_runs_on_the_machine_of_its_caller(tmp_path: Path) -> None:
    """A command of `ductile exec` belongs to one node. While that node is away, the command waits."""
    nodes = two_nodes(tmp_path)
    with ExitStack() as stack:
        left = stack.enter_context(a_daemon(nodes.left))
        with a_daemon(nodes.right) as right:
            words = ("sh", "-c", f"while [ ! -e {nodes.go} ]; do sleep 0.05; done; pwd")
            result = nodes.right.terminal.ductile(
                "exec", "--no-wait", "--json", "--config", "demo", "--", *words
            )
            job_id = json.loads(result.out)["job_id"]
            right.wait_until_started(job_id)
            assert nodes.right.json("job", "show", job_id)["node"] == "right"
            assert "runs only on  right" in nodes.left.ductile("job", "show", job_id).out
            assert right.end() == 0
        left.wait_for("jobs.without_node", lambda line: line["node"] == "right")
        explanation = nodes.left.ductile("job", "explain", job_id).out
        assert "it belongs to the node right, where it was submitted" in explanation
        assert "for the node right, which is not running" in nodes.left.ductile("status").out
        nodes.go.touch()
        right = stack.enter_context(a_daemon(nodes.right))
        right.wait_for("job.succeeded", lambda line: line["job_id"] == job_id)
        job = nodes.left.json("job", "show", job_id)
        assert job["result"]["result"] == str(nodes.right.directory)
        assert not any(line["signal"] == "job.started" and line["job_id"] == job_id for line in left.lines)
