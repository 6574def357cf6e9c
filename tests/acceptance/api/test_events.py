"""Server-sent events of the ledger: a stream is resumed without a gap, and ends with the daemon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from builders.http import EventReader, an_api, an_api_workspace, token_for
from ductile.core.jobs.model import LedgerKind


def succeeded(events: list[dict[str, Any]]) -> set[str]:
    """Return the ids of the jobs that succeeded."""
    return {
        event["data"]["job_id"] for event in events if event["data"].get("data", {}).get("to") == "succeeded"
    }


def test_events_are_streamed_after_they_are_on_disk(tmp_path: Path) -> None:
    """A job can be read as soon as its event is read."""
    with an_api(an_api_workspace(tmp_path)) as api, EventReader(api) as reader:
        job_id = api.post("/plugin/echo/poll")["job_id"]
        events = reader.wait_until(lambda events: job_id in succeeded(events))
        own = [event for event in events if event["data"]["job_id"] == job_id]
        assert [event["data"]["data"]["to"] for event in own] == ["queued", "running", "succeeded"]
        assert all(event["event"] == "job.transition" for event in own)
        assert [int(event["id"]) for event in events] == [event["data"]["seq"] for event in events]
        assert api.get(f"/job/{job_id}")["status"] == "succeeded"


def test_a_stream_is_resumed_under_load_without_a_gap(tmp_path: Path) -> None:
    """Readers that come and go while jobs run read every number once and in order."""
    with an_api(an_api_workspace(tmp_path)) as api, ThreadPoolExecutor(2) as workers:
        last_id = 0
        sequence: list[int] = []
        all_events: list[dict[str, Any]] = []
        submissions = workers.submit(lambda: [api.post("/plugin/echo/poll")["job_id"] for _ in range(60)])
        for target in range(15, 180, 15):  # each job makes three entries at least, so all of these come
            with EventReader(api, last_id=last_id) as reader:
                events = reader.wait_until(
                    lambda events, target=target: events and int(events[-1]["id"]) >= target
                )
            sequence += [int(event["id"]) for event in events]
            all_events += events
            last_id = sequence[-1]
        jobs = set(submissions.result())
        with EventReader(api, last_id=last_id) as reader:
            events = reader.wait_until(lambda new_events: jobs <= succeeded(all_events + new_events))
        sequence += [int(event["id"]) for event in events]
        assert sequence == list(range(1, sequence[-1] + 1))


def test_filters(tmp_path: Path) -> None:
    """A stream is filtered by kind and by job."""
    with an_api(an_api_workspace(tmp_path)) as api:
        first_job = api.post("/plugin/echo/poll")["job_id"]
        api.ended(first_job)
        second_job = api.post("/plugin/echo/poll")["job_id"]
        api.ended(second_job)
        with EventReader(api, query=f"?after=0&job_id={second_job}") as reader:
            events = reader.wait_until(lambda events: len(events) == 3)
        assert {event["data"]["job_id"] for event in events} == {second_job}
        with EventReader(api, query="?after=0&kind=config.loaded,breaker.changed") as reader:
            events = reader.wait_until(lambda events: len(events) == 1)
        assert events[0]["event"] == "config.loaded"


def test_a_filter_that_lets_nothing_through_is_refused(tmp_path: Path) -> None:
    """A stream that could never have an event is refused before it begins."""
    with an_api(an_api_workspace(tmp_path)) as api:
        response = api.ask("GET", "/events?kind=config.loaded,job.transitions")
        assert (response.status, response.code) == (400, "usage")
        assert response.body["message"] == "kind: unknown value 'job.transitions'"
        assert response.body["error"]["hint"] == f"one of {', '.join(LedgerKind)}"
        response = api.ask("GET", "/events?job_id=01a1e212-0000-7000-8000-000000000000")
        assert (response.status, response.code) == (404, "not_found")
        job_id = api.post("/plugin/echo/poll")["job_id"]
        api.ended(job_id)
        with EventReader(api, query=f"?after=0&kind=&job_id={job_id.upper()}") as reader:
            events = reader.wait_until(lambda events: len(events) == 3)
        assert {event["data"]["job_id"] for event in events} == {job_id}


def test_an_id_that_was_never_given_is_a_gap(tmp_path: Path) -> None:
    """A reader with an unknown last id, such as one of another store, gets a gap and then new events."""
    with an_api(an_api_workspace(tmp_path)) as api:
        api.ended(api.post("/plugin/echo/poll")["job_id"])
        with EventReader(api, last_id=10**9) as reader:
            (gap,) = reader.wait_until(lambda events: len(events) == 1)
            assert (gap["event"], gap["data"]["oldest"]) == ("gap", 1)
            job_id = api.post("/plugin/echo/poll")["job_id"]
            events = reader.wait_until(lambda events: job_id in succeeded(events))
        assert {event["data"]["job_id"] for event in events[1:]} == {job_id}
        assert int(events[1]["id"]) == int(gap["id"]) + 1


def test_streams_end_with_the_daemon(tmp_path: Path) -> None:
    """A stop does not wait for readers, and ends their streams."""
    with an_api(an_api_workspace(tmp_path)) as api, EventReader(api) as reader:
        assert api.daemon.end() == 0
        reader.wait_for_end()


def test_streams_are_counted_and_bounded(tmp_path: Path) -> None:
    """One stream too many is answered 503 with Retry-After; a reader that disconnects makes room."""
    with an_api(an_api_workspace(tmp_path)) as api:
        readers = [EventReader(api) for _ in range(64)]
        for reader in readers:
            reader.__enter__()
        response = api.ask("GET", "/events", token=token_for("events:ro"))
        assert (response.status, response.code, response.headers["retry-after"]) == (503, "too_busy", "1")
        assert b"ductile_event_streams 64.0" in api.ask("GET", "/metrics").content
        for reader in readers:
            reader.__exit__()
        api.daemon.wait_for("api.request", lambda line: line["path"] == "/events" and line["status"] == 200)
        with EventReader(api):
            pass


def test_a_new_reader_learns_where_it_joined(tmp_path: Path) -> None:
    """A reader that is cut off before its first event resumes from there and misses nothing."""
    with an_api(an_api_workspace(tmp_path)) as api:
        api.ended(api.post("/plugin/echo/poll")["job_id"])
        with api.connect() as reader, reader.makefile("rb") as lines:
            head = f"GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_for('*')}\r\n\r\n"
            reader.sendall(head.encode())
            joined_at = next(line for line in lines if line.startswith(b"id: "))
        job_id = api.post("/plugin/echo/poll")["job_id"]
        api.ended(job_id)
        with EventReader(api, last_id=int(joined_at.removeprefix(b"id: "))) as resumed:
            events = resumed.wait_until(lambda events: job_id in succeeded(events))
        assert {event["data"]["job_id"] for event in events} == {job_id}
