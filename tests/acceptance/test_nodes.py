"""Several daemons on one PostgreSQL store: a job runs on one of them, and elsewhere when that one is gone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from builders.cut_connections import CuttingProxy
from builders.daemons import PATIENCE, Daemon, Workspace, a_daemon, answering
from builders.nodes import Nodes, a_node, nodes_by_name, submit, two_nodes
from builders.postgres import start_proxy, store_url
from builders.terminal import CommandResult


class Waiting:
    """A caller that waits for the end of a job, at one of the nodes."""

    def __init__(self, workspace: Workspace, job_id: str) -> None:
        self._ran: list[CommandResult] = []
        command = ("job", "wait", job_id, "--json")
        self._thread = Thread(target=lambda: self._ran.append(workspace.ductile(*command)))
        self._thread.start()

    def ended(self) -> dict[str, Any]:
        self._thread.join(PATIENCE)
        (ran,) = self._ran
        answer: dict[str, Any] = json.loads(ran.out)
        return answer


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Daemon, Daemon]]:
    found = two_nodes(tmp_path_factory.mktemp("nodes"))
    with a_daemon(found.left) as left, a_daemon(found.right) as right:
        yield found, left, right


def test_every_node_shows_all_of_them(nodes: tuple[Nodes, Daemon, Daemon]) -> None:
    found, _left, _right = nodes
    shown = nodes_by_name(found.right)
    assert (shown["left"]["leader"], shown["right"]["leader"]) == (True, False)
    assert [node["alive"] for node in shown.values()] == [True, True]
    assert shown["right"]["plugins"] == ["waiter"]
    text = found.left.ductile("status").out
    assert "NODE" in text
    assert "differs" not in text, "what a node is called is no difference of the configuration"
    (finding,) = [each for each in found.left.json("doctor")["findings"] if each["check"] == "nodes"]
    assert (finding["level"], finding["message"]) == ("ok", "2 nodes share the store")


def test_a_caller_gets_the_result_of_another_node(nodes: tuple[Nodes, Daemon, Daemon]) -> None:
    """`right` may not run it: the job is claimed elsewhere, and its end wakes the caller."""
    found, left, _right = nodes
    ran = found.right.json("run", "echo")
    assert ran["status"] == "succeeded"
    left.wait_for("job.started", lambda line: line["job_id"] == ran["job_id"])


def test_a_name_is_for_one_node(nodes: tuple[Nodes, Daemon, Daemon], tmp_path: Path) -> None:
    found, _left, _right = nodes
    twin = a_node(tmp_path / "twin", tmp_path, store_url(found.directory), "  node: left\n")
    refused = twin.ductile("system", "start")
    assert refused.status == 1
    assert "a node named left is running already" in refused.err
    assert "service.node" in refused.err


def test_a_job_is_cancelled_from_another_node(nodes: tuple[Nodes, Daemon, Daemon]) -> None:
    """Only `left` may run it, and `right` is asked to cancel it."""
    found, left, _right = nodes
    job_id = submit(found.right, "lefty")
    left.wait_until_started(job_id)
    waiting = Waiting(found.right, job_id)
    assert found.right.ductile("job", "cancel", job_id).status == 0
    ended = waiting.ended()
    assert (ended["status"], ended["reason"]) == ("dead", "cancelled")


def taken_over(found: Nodes, stack: ExitStack, by: int) -> tuple[Daemon, Daemon, str]:
    """A job that ran on `right`, after `right` got a signal and `left` has recovered the job."""
    right = stack.enter_context(a_daemon(found.right))
    job_id = submit(found.right, "waiter")
    right.wait_until_started(job_id)
    left = stack.enter_context(a_daemon(found.left))
    right.process.send_signal(by)
    left.wait_for("node.lost", lambda line: line["node"] == "right")
    left.wait_until_started(job_id)
    return left, right, job_id


def test_the_jobs_of_a_killed_node_run_elsewhere(tmp_path: Path) -> None:
    found = two_nodes(tmp_path)
    with ExitStack() as stack:
        left, _right, job_id = taken_over(found, stack, signal.SIGKILL)
        waiting = Waiting(found.left, job_id)
        found.go.touch()
        assert waiting.ended()["status"] == "succeeded"
        assert list(nodes_by_name(found.left)) == ["left"]
        left.wait_for("node.leading")


def test_a_node_that_was_stopped_for_too_long_changes_nothing_and_comes_back(tmp_path: Path) -> None:
    """Its result comes too late. It joins again and runs jobs."""
    found = two_nodes(tmp_path)
    with ExitStack() as stack:
        left, right, job_id = taken_over(found, stack, signal.SIGSTOP)
        waiting = Waiting(found.left, job_id)
        right.process.send_signal(signal.SIGCONT)
        right.wait_for("node.fenced")
        right.wait_for("node.renewed")
        found.go.touch()
        ended = waiting.ended()
        assert ended["status"] == "succeeded"
        assert [node["alive"] for node in nodes_by_name(found.left).values()] == [True, True]
        executions = found.left.json("job", "explain", job_id)
        assert executions["status"] == "succeeded"
        assert left.end() == 0
        again = submit(found.right, "waiter")
        right.wait_for("job.succeeded", lambda line: line["job_id"] == again)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[CuttingProxy]:
    proxy = start_proxy(tmp_path)
    yield proxy
    proxy.close()


def test_a_node_that_is_cut_off_kills_its_processes_before_another_takes_over(
    tmp_path: Path, proxy: CuttingProxy
) -> None:
    found = two_nodes(tmp_path, store_url(tmp_path, proxied=True))
    with ExitStack() as stack:
        right = stack.enter_context(a_daemon(found.right))
        job_id = submit(found.right, "waiter")
        right.wait_until_started(job_id)
        left = stack.enter_context(a_daemon(found.left))
        proxy.is_down = True
        proxy.cut_all()
        right.wait_for("node.fenced")
        right.wait_for("job.exited", lambda line: line["job_id"] == job_id)
        assert not any(line["signal"] == "node.lost" for line in left.lines), "the process is gone before"
        left.wait_until_started(job_id)
        proxy.is_down = False
        right.wait_for("node.renewed")
        found.go.touch()
        waiting = Waiting(found.left, job_id)
        assert waiting.ended()["status"] == "succeeded"
        assert found.starts == 2


def test_schedules_go_on_when_the_leader_is_gone(tmp_path: Path) -> None:
    """Each occurrence once, whichever node plans it."""
    found = two_nodes(tmp_path)
    for place in (found.left, found.right):
        place.append("  clock: {schedule: {every: 1s}}\n")
        place.plugin("clock", answering({"status": "ok", "result": "tick"}))
        place.config.write_text(place.config.read_text().replace("run_only: [", "run_only: [clock, "))
    with a_daemon(found.left) as left:
        left.wait_for("job.succeeded", lambda line: line["plugin"] == "clock")
        with a_daemon(found.right) as right:
            left.process.kill()
            right.wait_for("node.leading")
            right.wait_for("job.succeeded", lambda line: line["plugin"] == "clock")
            occurrences = found.right.json("schedule", "explain", "clock")
            assert occurrences
            assert found.right.json("system", "selfcheck")["sound"] is True
