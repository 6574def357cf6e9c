"""Many at once: retry, cancel and resend by filter; searching, sorting and figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import BROKEN, SLOW, Daemon, Place, a_daemon, a_place
from builders.http import Api, an_api, an_api_place

ONCE = "    retry: {max_attempts: 1}\n"


def wait_for_end(daemon: Daemon, signal_name: str, job_id: str) -> None:
    daemon.wait_for(signal_name, lambda line: line["job_id"] == job_id)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = a_place(tmp_path, f"  broken:\n{ONCE}  slow: {{parallelism: 1}}\n")
    found.plugin("broken", BROKEN)
    found.plugin("slow", SLOW)
    return found


def test_a_retry_by_filter_counts_first_and_continues(place: Place) -> None:
    """A dry run lists ids, plugin, time and reason; `--limit` leaves the rest for the next call."""
    with a_daemon(place) as daemon:
        ids = {place.said("run", "broken", status=1)["job_id"] for _ in range(3)}
        place.said("run", "echo")
        tried = place.said("job", "retry", "--plugin", "broken", "--dry-run")
        assert (tried["matched"], tried["changed"], tried["refused"]) == (3, 3, 0)
        assert {job["job_id"] for job in tried["jobs"]} == ids
        assert {(job["plugin"], job["reason"]) for job in tried["jobs"]} == {("broken", "attempts_exhausted")}
        shown = place.ductile("job", "retry", "--plugin", "broken", "--dry-run").out
        assert "Would put back on the queue: 3 of 3." in shown
        assert "it is broken" in shown
        (place.directory / "demo" / "plugins" / "broken" / "mended").touch()
        first = place.said("job", "retry", "--plugin", "broken", "--since", "1h", "--limit", "2")
        assert (first["matched"], first["changed"], first["remaining"]) == (3, 2, 1)
        second = place.said("job", "retry", "--reason", "attempts_exhausted")
        assert (second["matched"], second["changed"], second["remaining"]) == (1, 1, 0)
        for job_id in ids:
            wait_for_end(daemon, "job.succeeded", job_id)
        assert "Nothing matches." in place.ductile("job", "retry", "--plugin", "broken").out


def test_what_survives_a_kill_is_retried_by_the_next_request(place: Place) -> None:
    """Nothing is lost and nothing runs twice: what was put back no longer matches."""
    with a_daemon(place) as daemon:
        ids = {place.said("run", "broken", status=1)["job_id"] for _ in range(3)}
        place.said("job", "retry", "--plugin", "broken", "--limit", "1")
        daemon.process.kill()
        daemon.process.wait()
    (place.directory / "demo" / "plugins" / "broken" / "mended").touch()
    with a_daemon(place) as daemon:
        place.said("job", "retry", "--plugin", "broken", "--status", "dead")
        for job_id in ids:
            wait_for_end(daemon, "job.succeeded", job_id)
        jobs = place.said("job", "list", "--plugin", "broken")["jobs"]
        assert {job["job_id"] for job in jobs} == ids
        assert {job["status"] for job in jobs} == {"succeeded"}


def test_a_cancel_by_filter_ends_what_runs_and_waits(place: Place) -> None:
    with a_daemon(place) as daemon:
        ids = [place.said("run", "slow", "--no-wait")["job_id"] for _ in range(3)]
        daemon.wait_until_started(ids[0])
        queued = place.said("job", "cancel", "--plugin", "slow", "--status", "queued")
        assert (queued["matched"], queued["changed"]) == (2, 2)
        running = place.said("job", "cancel", "--plugin", "slow")
        assert (running["matched"], running["changed"]) == (1, 1)
        assert place.said("job", "wait", ids[0], status=1)["reason"] == "cancelled"


def test_mistakes_are_refused_before_anything_is_changed(place: Place) -> None:
    with a_daemon(place):
        for words, complaint in (
            ((), "no filter was given"),
            (("--plugin", "brokn"), "did you mean broken?"),
            (("--status", "queued"), "only jobs that are failed or dead"),
            (("--pipeline", "nowhere"), "there is no pipeline nowhere"),
            (("0123456789ab", "--plugin", "broken"), "contradict each other"),
            (("--since", "soon"), "'soon' is not a time"),
            (("--since", "1h", "--until", "2h"), "until is before since"),
        ):
            ran = place.ductile("job", "retry", *words)
            assert ran.status != 0
            assert complaint in ran.err, words


def test_jobs_are_found_by_words_reason_and_time_and_sorted(place: Place) -> None:
    with a_daemon(place):
        bad = place.said("run", "broken", "--payload", '{"to": "Ada", "api_key": "hush"}', status=1)["job_id"]
        good = place.said("run", "echo")["job_id"]
        for words in (("--query", "no paper"), ("--reason", "attempts_exhausted")):
            assert [job["job_id"] for job in place.said("job", "list", *words)["jobs"]] == [bad], words
        assert place.said("job", "list", "--until", "1h")["jobs"] == []
        by_time = place.said("job", "list", "--sort", "duration", "-n", "1")
        after = place.said("job", "list", "--sort", "duration", "--cursor", by_time["next_cursor"])
        assert {by_time["jobs"][0]["job_id"], after["jobs"][0]["job_id"]} == {bad, good}
        (listed,) = place.said("job", "list", "--plugin", "broken", "--payload")["jobs"]
        assert "Ada" in listed["payload_excerpt"]
        assert "hush" not in listed["payload_excerpt"]
        assert "Ada" in place.ductile("job", "list", "--plugin", "broken", "--payload").out
        logs = place.said("logs", "--sort", "stderr", "-n", "1")
        assert logs["logs"][0]["job_id"] == bad
        assert logs["logs"][0]["stderr_bytes"] == len("no paper\n")
        assert place.said("logs", "--query", "no paper")["logs"][0]["job_id"] == bad
        assert place.ductile("logs", "--follow", "--query", "x").status == 2


def test_figures_of_plugins(place: Place) -> None:
    with a_daemon(place):
        place.said("run", "broken", status=1)
        place.said("run", "echo")
        (row,) = place.said("plugin", "stats", "broken")["plugins"]
        assert (row["executions"], row["failures"], row["stderr_bytes"]) == (1, 1, len("no paper\n"))
        assert row["run_ms"]["p50"] == row["run_ms"]["p99"] > 0
        assert row["wait_ms"]["p50"] >= 0
        assert {each["plugin"] for each in place.said("plugin", "stats", "--since", "1h")["plugins"]} == {
            "broken",
            "echo",
        }
        assert "run time p50" in place.ductile("plugin", "show", "echo").out
        assert place.ductile("plugin", "stats", "brokn").status == 1


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    place = an_api_place(tmp_path, f"  broken:\n{ONCE}")
    place.plugin("broken", BROKEN)
    with an_api(place) as running:
        yield running


def test_the_same_over_http(api: Api) -> None:
    ids = {api.post("/plugin/broken/poll")["job_id"] for _ in range(2)}
    for job_id in ids:
        wait_for_end(api.daemon, "job.dead", job_id)
    tried = api.post("/jobs/retry", {"plugin": "broken", "dry_run": True}, status=200)
    assert {job["job_id"] for job in tried["jobs"]} == ids
    assert tried["message"] == "This was a dry run: nothing was changed."
    done = api.post("/jobs/retry", {"plugin": "broken", "since": "1h"}, status=200)
    assert (done["changed"], done["matched"]) == (2, 2)
    assert done["message"] == "2 of 2 were changed."
    assert api.post("/jobs/cancel", {"plugin": "echo"}, status=200)["matched"] == 0
    assert api.post("/deliveries/resend", {"status": "dropped"}, status=200)["matched"] == 0
    figures = api.get("/analytics/plugins?plugin=broken&since=1h")
    assert figures["plugins"][0]["run_ms"]["p95"] > 0
