"""The ledger as a stream of events: resumed without a gap, ended with the daemon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from builders.http import EventReader, an_api, an_api_workspace, token_for
from ductile.core.jobs.model import LedgerKind


def succeeded(events: list[dict[str, Any]]) -> set[str]:
    return {
        event["data"]["job_id"] for event in events if event["data"].get("data", {}).get("to") == "succeeded"
    }


def test_events_are_streamed_after_they_are_on_disk(tmp_path: Path) -> None:
    """When an event is read, its job can be read too."""
    with an_api(an_api_workspace(tmp_path)) as api, EventReader(api) as reader:
        job_id = api.post("/plugin/echo/poll")["job_id"]
        events = reader.wait_until(lambda seen: job_id in succeeded(seen))
        own = [event for event in events if event["data"]["job_id"] == job_id]
        assert [event["data"]["data"]["to"] for event in own] == ["queued", "running", "succeeded"]
        assert all(event["event"] == "job.transition" for event in own)
        assert [int(event["id"]) for event in events] == [event["data"]["seq"] for event in events]
        assert api.get(f"/job/{job_id}")["status"] == "succeeded"


def test_a_stream_is_resumed_under_load_without_a_gap(tmp_path: Path) -> None:
    """Readers that come and go while jobs run see every number once, in order, all of them."""
    with an_api(an_api_workspace(tmp_path)) as api, ThreadPoolExecutor(2) as workers:
        last = 0
        seen: list[int] = []
        kinds: list[dict[str, Any]] = []
        submitting = workers.submit(lambda: [api.post("/plugin/echo/poll")["job_id"] for _ in range(60)])
        for target in range(15, 180, 15):  # each job makes three entries at least, so all of these come
            with EventReader(api, last_id=last) as reader:
                events = reader.wait_until(lambda seen, target=target: seen and int(seen[-1]["id"]) >= target)
            seen += [int(event["id"]) for event in events]
            kinds += events
            last = seen[-1]
        jobs = set(submitting.result())
        with EventReader(api, last_id=last) as reader:
            events = reader.wait_until(lambda more: jobs <= succeeded(kinds + more))
        seen += [int(event["id"]) for event in events]
        assert seen == list(range(1, seen[-1] + 1))


def test_filters(tmp_path: Path) -> None:
    """By kind and by job."""
    with an_api(an_api_workspace(tmp_path)) as api:
        one = api.post("/plugin/echo/poll")["job_id"]
        api.ended(one)
        two = api.post("/plugin/echo/poll")["job_id"]
        api.ended(two)
        with EventReader(api, query=f"?after=0&job_id={two}") as reader:
            events = reader.wait_until(lambda seen: len(seen) == 3)
        assert {event["data"]["job_id"] for event in events} == {two}
        with EventReader(api, query="?after=0&kind=config.loaded,breaker.changed") as reader:
            events = reader.wait_until(lambda seen: len(seen) == 1)
        assert events[0]["event"] == "config.loaded"


def test_a_filter_that_lets_nothing_through_is_refused(tmp_path: Path) -> None:
    """A stream that could only be silent says so before it begins."""
    with an_api(an_api_workspace(tmp_path)) as api:
        said = api.ask("GET", "/events?kind=config.loaded,job.transitions")
        assert (said.status, said.code) == (400, "usage")
        assert said.body["message"] == "kind: unknown value 'job.transitions'"
        assert said.body["error"]["hint"] == f"one of {', '.join(LedgerKind)}"
        said = api.ask("GET", "/events?job_id=01a1e212-0000-7000-8000-000000000000")
        assert (said.status, said.code) == (404, "not_found")
        job_id = api.post("/plugin/echo/poll")["job_id"]
        api.ended(job_id)
        with EventReader(api, query=f"?after=0&kind=&job_id={job_id.upper()}") as reader:
            events = reader.wait_until(lambda seen: len(seen) == 3)
        assert {event["data"]["job_id"] for event in events} == {job_id}


def test_an_id_that_was_never_given_is_a_gap(tmp_path: Path) -> None:
    """An id of another store, or made up: the reader gets a gap and then new events."""
    with an_api(an_api_workspace(tmp_path)) as api:
        api.ended(api.post("/plugin/echo/poll")["job_id"])
        with EventReader(api, last_id=10**9) as reader:
            (gap,) = reader.wait_until(lambda seen: len(seen) == 1)
            assert (gap["event"], gap["data"]["oldest"]) == ("gap", 1)
            job_id = api.post("/plugin/echo/poll")["job_id"]
            events = reader.wait_until(lambda seen: job_id in succeeded(seen))
        assert {event["data"]["job_id"] for event in events[1:]} == {job_id}
        assert int(events[1]["id"]) == int(gap["id"]) + 1


def test_streams_end_with_the_daemon(tmp_path: Path) -> None:
    """A stop does not wait for readers, and readers see an end rather than a silence."""
    with an_api(an_api_workspace(tmp_path)) as api, EventReader(api) as reader:
        assert api.daemon.end() == 0
        reader.wait_for_end()


def test_streams_are_counted_and_bounded(tmp_path: Path) -> None:
    """503 with Retry-After instead of one more; a reader that disconnects makes room."""
    with an_api(an_api_workspace(tmp_path)) as api:
        readers = [EventReader(api) for _ in range(64)]
        for reader in readers:
            reader.__enter__()
        said = api.ask("GET", "/events", token=token_for("events:ro"))
        assert (said.status, said.code, said.headers["retry-after"]) == (503, "too_busy", "1")
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
            place = next(line for line in lines if line.startswith(b"id: "))
        missed = api.post("/plugin/echo/poll")["job_id"]
        api.ended(missed)
        with EventReader(api, last_id=int(place.removeprefix(b"id: "))) as resumed:
            events = resumed.wait_until(lambda seen: missed in succeeded(seen))
        assert {event["data"]["job_id"] for event in events} == {missed}
