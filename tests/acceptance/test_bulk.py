"""Many jobs at once: retry, cancel and resend by filter; search, sorting and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import BROKEN, SLOW, Daemon, Workspace, a_daemon, a_workspace
from builders.http import Api, an_api, an_api_workspace

ONCE = "    retry: {max_attempts: 1}\n"


def wait_for_end(daemon: Daemon, signal_name: str, job_id: str) -> None:
    daemon.wait_for(signal_name, lambda line: line["job_id"] == job_id)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = a_workspace(tmp_path, f"  broken:\n{ONCE}  slow: {{parallelism: 1}}\n")
    workspace.plugin("broken", BROKEN)
    workspace.plugin("slow", SLOW)
    return workspace


def test_a_retry_by_filter_counts_first_and_continues(workspace: Workspace) -> None:
    """A dry run lists ids, plugins, times and reasons; `--limit` leaves the other jobs for the next call."""
    with a_daemon(workspace) as daemon:
        ids = {workspace.json("run", "broken", status=1)["job_id"] for _ in range(3)}
        workspace.json("run", "echo")
        dry_run = workspace.json("job", "retry", "--plugin", "broken", "--dry-run")
        assert (dry_run["matched"], dry_run["changed"], dry_run["refused"]) == (3, 3, 0)
        assert {job["job_id"] for job in dry_run["jobs"]} == ids
        assert {(job["plugin"], job["reason"]) for job in dry_run["jobs"]} == {
            ("broken", "attempts_exhausted")
        }
        output = workspace.ductile("job", "retry", "--plugin", "broken", "--dry-run").out
        assert "Would put back on the queue: 3 of 3." in output
        assert "it is broken" in output
        (workspace.directory / "demo" / "plugins" / "broken" / "mended").touch()
        first = workspace.json("job", "retry", "--plugin", "broken", "--since", "1h", "--limit", "2")
        assert (first["matched"], first["changed"], first["remaining"]) == (3, 2, 1)
        second = workspace.json("job", "retry", "--reason", "attempts_exhausted")
        assert (second["matched"], second["changed"], second["remaining"]) == (1, 1, 0)
        for job_id in ids:
            wait_for_end(daemon, "job.succeeded", job_id)
        assert "Nothing matches." in workspace.ductile("job", "retry", "--plugin", "broken").out


def test_what_survives_a_kill_is_retried_by_the_next_request(workspace: Workspace) -> None:
    """Nothing is lost and nothing runs twice, because a job that was put back no longer matches."""
    with a_daemon(workspace) as daemon:
        ids = {workspace.json("run", "broken", status=1)["job_id"] for _ in range(3)}
        workspace.json("job", "retry", "--plugin", "broken", "--limit", "1")
        daemon.process.kill()
        daemon.process.wait()
    (workspace.directory / "demo" / "plugins" / "broken" / "mended").touch()
    with a_daemon(workspace) as daemon:
        workspace.json("job", "retry", "--plugin", "broken", "--status", "dead")
        for job_id in ids:
            wait_for_end(daemon, "job.succeeded", job_id)
        jobs = workspace.json("job", "list", "--plugin", "broken")["jobs"]
        assert {job["job_id"] for job in jobs} == ids
        assert {job["status"] for job in jobs} == {"succeeded"}


def test_a_cancel_by_filter_ends_what_runs_and_waits(workspace: Workspace) -> None:
    with a_daemon(workspace) as daemon:
        ids = [workspace.json("run", "slow", "--no-wait")["job_id"] for _ in range(3)]
        daemon.wait_until_started(ids[0])
        queued = workspace.json("job", "cancel", "--plugin", "slow", "--status", "queued")
        assert (queued["matched"], queued["changed"]) == (2, 2)
        running = workspace.json("job", "cancel", "--plugin", "slow")
        assert (running["matched"], running["changed"]) == (1, 1)
        assert workspace.json("job", "wait", ids[0], status=1)["reason"] == "cancelled"


def test_mistakes_are_refused_before_anything_is_changed(workspace: Workspace) -> None:
    with a_daemon(workspace):
        for words, message in (
            ((), "no filter was given"),
            (("--plugin", "brokn"), "did you mean broken?"),
            (("--status", "queued"), "only jobs that are failed or dead"),
            (("--pipeline", "nowhere"), "there is no pipeline nowhere"),
            (("0123456789ab", "--plugin", "broken"), "contradict each other"),
            (("--since", "soon"), "'soon' is not a time"),
            (("--since", "1h", "--until", "2h"), "until is before since"),
        ):
            result = workspace.ductile("job", "retry", *words)
            assert result.status != 0
            assert message in result.err, words


def test_jobs_are_found_by_words_reason_and_time_and_sorted(workspace: Workspace) -> None:
    with a_daemon(workspace):
        failed = workspace.json("run", "broken", "--payload", '{"to": "Ada", "api_key": "hush"}', status=1)[
            "job_id"
        ]
        succeeded = workspace.json("run", "echo")["job_id"]
        for words in (("--query", "no paper"), ("--reason", "attempts_exhausted")):
            assert [job["job_id"] for job in workspace.json("job", "list", *words)["jobs"]] == [failed], words
        assert workspace.json("job", "list", "--until", "1h")["jobs"] == []
        first_page = workspace.json("job", "list", "--sort", "duration", "-n", "1")
        second_page = workspace.json(
            "job", "list", "--sort", "duration", "--cursor", first_page["next_cursor"]
        )
        assert {first_page["jobs"][0]["job_id"], second_page["jobs"][0]["job_id"]} == {
            failed,
            succeeded,
        }
        (job,) = workspace.json("job", "list", "--plugin", "broken", "--payload")["jobs"]
        assert "Ada" in job["payload_excerpt"]
        assert "hush" not in job["payload_excerpt"]
        assert "Ada" in workspace.ductile("job", "list", "--plugin", "broken", "--payload").out
        logs = workspace.json("logs", "--sort", "stderr", "-n", "1")
        assert logs["logs"][0]["job_id"] == failed
        assert logs["logs"][0]["stderr_bytes"] == len("no paper\n")
        assert workspace.json("logs", "--query", "no paper")["logs"][0]["job_id"] == failed
        assert workspace.ductile("logs", "--follow", "--query", "x").status == 2


def test_figures_of_plugins(workspace: Workspace) -> None:
    with a_daemon(workspace):
        workspace.json("run", "broken", status=1)
        workspace.json("run", "echo")
        (row,) = workspace.json("plugin", "stats", "broken")["plugins"]
        assert (row["executions"], row["failures"], row["stderr_bytes"]) == (1, 1, len("no paper\n"))
        assert row["run_ms"]["p50"] == row["run_ms"]["p99"] > 0
        assert row["wait_ms"]["p50"] >= 0
        assert {
            plugin["plugin"] for plugin in workspace.json("plugin", "stats", "--since", "1h")["plugins"]
        } == {
            "broken",
            "echo",
        }
        assert "run time p50" in workspace.ductile("plugin", "show", "echo").out
        assert workspace.ductile("plugin", "stats", "brokn").status == 1


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    workspace = an_api_workspace(tmp_path, f"  broken:\n{ONCE}")
    workspace.plugin("broken", BROKEN)
    with an_api(workspace) as api:
        yield api


def test_the_same_over_http(api: Api) -> None:
    ids = {api.post("/plugin/broken/poll")["job_id"] for _ in range(2)}
    for job_id in ids:
        wait_for_end(api.daemon, "job.dead", job_id)
    dry_run = api.post("/jobs/retry", {"plugin": "broken", "dry_run": True}, status=200)
    assert {job["job_id"] for job in dry_run["jobs"]} == ids
    assert dry_run["message"] == "This was a dry run: nothing was changed."
    response = api.post("/jobs/retry", {"plugin": "broken", "since": "1h"}, status=200)
    assert (response["changed"], response["matched"]) == (2, 2)
    assert response["message"] == "2 of 2 were changed."
    assert api.post("/jobs/cancel", {"plugin": "echo"}, status=200)["matched"] == 0
    assert api.post("/deliveries/resend", {"status": "dropped"}, status=200)["matched"] == 0
    figures = api.get("/analytics/plugins?plugin=broken&since=1h")
    assert figures["plugins"][0]["run_ms"]["p95"] > 0
