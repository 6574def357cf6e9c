"""Jobs that no live node may run: they are shown, go on when such a node is there, and end if none comes."""

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
    """Only `left` may run them. Every surface says so while it is away."""
    found = two_nodes(tmp_path)
    found.go.touch()
    with ExitStack() as stack:
        right = stack.enter_context(a_daemon(found.right))
        job_id = submit(found.right, "lefty")
        line = right.wait_for("jobs.without_node", lambda line: line["plugin"] == "lefty")
        assert (line["level"], line["jobs"]) == ("warn", 1)
        shown = found.right.json("job", "show", job_id)
        assert (shown["status"], shown["hold"]) == ("queued", "no_node")
        assert shown["held_since"] is not None
        assert "no_node" in found.right.ductile("job", "list").out
        explained = found.right.ductile("job", "explain", job_id).out
        assert "no live node runs lefty" in explained
        assert "service.dedupe_ttl" in explained
        status = found.right.json("status")
        (waiting,) = status["without_node"]
        assert (waiting["plugin"], waiting["node"], waiting["jobs"]) == ("lefty", None, 1)
        assert "no live node runs lefty" in found.right.ductile("status").out
        messages = [each["message"] for each in found.right.json("doctor")["findings"]]
        assert "1 job waits for a node that runs lefty; none is alive" in messages

        left = stack.enter_context(a_daemon(found.left))
        left.wait_until_started(job_id)
        left.wait_for("job.succeeded", lambda line: line["job_id"] == job_id)
        assert found.right.json("status")["without_node"] == []
        assert found.right.json("system", "selfcheck")["sound"] is True


def test_jobs_end_with_an_error_if_no_node_comes(tmp_path: Path) -> None:
    """After `service.dedupe_ttl`. A pipeline run ends as with any failed step."""
    url = store_url(tmp_path)
    service = "  node: right\n  run_only: [echo, waiter]\n  dedupe_ttl: 1s\n"
    workspace = a_node(tmp_path / "right", tmp_path, url, service)
    workspace.append(PIPELINE)
    with a_daemon(workspace) as daemon:
        alone, run = (
            submit(workspace, "lefty"),
            workspace.json("pipeline", "run", "flow", "--no-wait")["job_id"],
        )
        ends = ("job.dead", "job.failed")
        for job_id in (alone, run):
            daemon.wait_for_any(ends, partial(_is_about, job_id))
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
    """`ductile exec` at one node. If that node is away, the command waits for it, and runs nowhere else."""
    found = two_nodes(tmp_path)
    with ExitStack() as stack:
        left = stack.enter_context(a_daemon(found.left))
        with a_daemon(found.right) as right:
            words = ("sh", "-c", f"while [ ! -e {found.go} ]; do sleep 0.05; done; pwd")
            ran = found.right.terminal.ductile(
                "exec", "--no-wait", "--json", "--config", "demo", "--", *words
            )
            job_id = json.loads(ran.out)["job_id"]
            right.wait_until_started(job_id)
            assert found.right.json("job", "show", job_id)["node"] == "right"
            assert "runs only on  right" in found.left.ductile("job", "show", job_id).out
            assert right.end() == 0
        left.wait_for("jobs.without_node", lambda line: line["node"] == "right")
        explained = found.left.ductile("job", "explain", job_id).out
        assert "it belongs to the node right, where it was submitted" in explained
        assert "for the node right, which is not running" in found.left.ductile("status").out
        found.go.touch()
        right = stack.enter_context(a_daemon(found.right))
        right.wait_for("job.succeeded", lambda line: line["job_id"] == job_id)
        shown = found.left.json("job", "show", job_id)
        assert shown["result"]["result"] == str(found.right.directory)
        assert not any(line["signal"] == "job.started" and line["job_id"] == job_id for line in left.lines)
