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


class JobWaiter:
    """A caller that waits for the end of a job, at one of the nodes."""

    def __init__(self, workspace: Workspace, job_id: str) -> None:
        self._results: list[CommandResult] = []
        command = ("job", "wait", job_id, "--json")
        self._thread = Thread(target=lambda: self._results.append(workspace.ductile(*command)))
        self._thread.start()

    def ended(self) -> dict[str, Any]:
        self._thread.join(PATIENCE)
        (result,) = self._results
        job: dict[str, Any] = json.loads(result.out)
        return job


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Daemon, Daemon]]:
    cluster = two_nodes(tmp_path_factory.mktemp("nodes"))
    with a_daemon(cluster.left) as left, a_daemon(cluster.right) as right:
        yield cluster, left, right


def test_every_node_shows_all_of_them(nodes: tuple[Nodes, Daemon, Daemon]) -> None:
    cluster, _left, _right = nodes
    listed = nodes_by_name(cluster.right)
    assert (listed["left"]["leader"], listed["right"]["leader"]) == (True, False)
    assert [node["alive"] for node in listed.values()] == [True, True]
    assert listed["right"]["plugins"] == ["waiter"]
    text = cluster.left.ductile("status").out
    assert "NODE" in text
    assert "differs" not in text, "what a node is called is no difference of the configuration"
    (finding,) = [
        finding for finding in cluster.left.json("doctor")["findings"] if finding["check"] == "nodes"
    ]
    assert (finding["level"], finding["message"]) == ("ok", "2 nodes share the store")


def test_a_caller_gets_the_result_of_another_node(nodes: tuple[Nodes, Daemon, Daemon]) -> None:
    """`right` may not run the job: it is claimed elsewhere, and its end wakes the caller."""
    cluster, left, _right = nodes
    job = cluster.right.json("run", "echo")
    assert job["status"] == "succeeded"
    left.wait_for("job.started", lambda line: line["job_id"] == job["job_id"])


def test_a_name_is_for_one_node(nodes: tuple[Nodes, Daemon, Daemon], tmp_path: Path) -> None:
    cluster, _left, _right = nodes
    duplicate = a_node(tmp_path / "twin", tmp_path, store_url(cluster.directory), "  node: left\n")
    result = duplicate.ductile("system", "start")
    assert result.status == 1
    assert "a node named left is running already" in result.err
    assert "service.node" in result.err


def test_a_job_is_cancelled_from_another_node(nodes: tuple[Nodes, Daemon, Daemon]) -> None:
    """Only `left` may run the job, and `right` is asked to cancel it."""
    cluster, left, _right = nodes
    job_id = submit(cluster.right, "lefty")
    left.wait_until_started(job_id)
    waiter = JobWaiter(cluster.right, job_id)
    assert cluster.right.ductile("job", "cancel", job_id).status == 0
    job = waiter.ended()
    assert (job["status"], job["reason"]) == ("dead", "cancelled")


def take_over(cluster: Nodes, stack: ExitStack, number: int) -> tuple[Daemon, Daemon, str]:
    """Run a job on `right`, send `right` a signal, and return when `left` has recovered the job."""
    right = stack.enter_context(a_daemon(cluster.right))
    job_id = submit(cluster.right, "waiter")
    right.wait_until_started(job_id)
    left = stack.enter_context(a_daemon(cluster.left))
    right.process.send_signal(number)
    left.wait_for("node.lost", lambda line: line["node"] == "right")
    left.wait_until_started(job_id)
    return left, right, job_id


def test_the_jobs_of_a_killed_node_run_elsewhere(tmp_path: Path) -> None:
    cluster = two_nodes(tmp_path)
    with ExitStack() as stack:
        left, _right, job_id = take_over(cluster, stack, signal.SIGKILL)
        waiter = JobWaiter(cluster.left, job_id)
        cluster.go.touch()
        assert waiter.ended()["status"] == "succeeded"
        assert list(nodes_by_name(cluster.left)) == ["left"]
        left.wait_for("node.leading")


def test_a_node_that_was_stopped_for_too_long_changes_nothing_and_comes_back(tmp_path: Path) -> None:
    """The result of the stopped node comes too late; the node joins again and runs jobs."""
    cluster = two_nodes(tmp_path)
    with ExitStack() as stack:
        left, right, job_id = take_over(cluster, stack, signal.SIGSTOP)
        waiter = JobWaiter(cluster.left, job_id)
        right.process.send_signal(signal.SIGCONT)
        right.wait_for("node.fenced")
        right.wait_for("node.renewed")
        cluster.go.touch()
        job = waiter.ended()
        assert job["status"] == "succeeded"
        assert [node["alive"] for node in nodes_by_name(cluster.left).values()] == [True, True]
        explanation = cluster.left.json("job", "explain", job_id)
        assert explanation["status"] == "succeeded"
        assert left.end() == 0
        second_id = submit(cluster.right, "waiter")
        right.wait_for("job.succeeded", lambda line: line["job_id"] == second_id)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[CuttingProxy]:
    proxy = start_proxy(tmp_path)
    yield proxy
    proxy.close()


def test_a_node_that_is_cut_off_kills_its_processes_before_another_takes_over(
    tmp_path: Path, proxy: CuttingProxy
) -> None:
    cluster = two_nodes(tmp_path, store_url(tmp_path, proxied=True))
    with ExitStack() as stack:
        right = stack.enter_context(a_daemon(cluster.right))
        job_id = submit(cluster.right, "waiter")
        right.wait_until_started(job_id)
        left = stack.enter_context(a_daemon(cluster.left))
        proxy.is_down = True
        proxy.cut_all()
        right.wait_for("node.fenced")
        right.wait_for("job.exited", lambda line: line["job_id"] == job_id)
        assert not any(line["signal"] == "node.lost" for line in left.lines), "the process is gone before"
        left.wait_until_started(job_id)
        proxy.is_down = False
        right.wait_for("node.renewed")
        cluster.go.touch()
        waiter = JobWaiter(cluster.left, job_id)
        assert waiter.ended()["status"] == "succeeded"
        assert cluster.starts == 2


def test_schedules_go_on_when_the_leader_is_gone(tmp_path: Path) -> None:
    """Each occurrence runs once, whichever node plans it."""
    cluster = two_nodes(tmp_path)
    for workspace in (cluster.left, cluster.right):
        workspace.append("  clock: {schedule: {every: 1s}}\n")
        workspace.plugin("clock", answering({"status": "ok", "result": "tick"}))
        workspace.config.write_text(workspace.config.read_text().replace("run_only: [", "run_only: [clock, "))
    with a_daemon(cluster.left) as left:
        left.wait_for("job.succeeded", lambda line: line["plugin"] == "clock")
        with a_daemon(cluster.right) as right:
            left.process.kill()
            right.wait_for("node.leading")
            right.wait_for("job.succeeded", lambda line: line["plugin"] == "clock")
            explanation = cluster.right.json("schedule", "explain", "clock")
            assert explanation
            assert cluster.right.json("system", "selfcheck")["sound"] is True
