"""Checks after a storm: the store against responses to clients, records of plugins and received events."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg

from builders.receivers import ReceivedRequest
from builders.storm_clients import ENDED, StormClient, StormFollower, Submission, SubmissionResult
from builders.storm_nodes import PIPELINES, SCHEDULES, DaemonProcess, StormCluster

#: A node renews its lease every 5 s and is ended after 15 s of silence: shorter stops excuse nothing.
SHORTEST_EXCUSE = 8.0
#: Within these seconds, a continued daemon kills the processes that it should not have.
LATEST_EXCUSE = 60.0


@dataclass(frozen=True)
class Rows:
    """The rows of the store, read without a node."""

    url: str

    def all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(sql.encode(), values or None).fetchall()


def faults_of_clients(rows: Rows, clients: Sequence[StormClient]) -> Iterator[str]:
    """Every accepted job is stored once, and every acknowledged cancel holds."""
    stored = {
        job_id: (status, key, created, completed)
        for job_id, status, key, created, completed in rows.all(
            "SELECT id, status, dedupe_key, created_at, completed_at FROM job_queue ORDER BY seq"
        )
    }
    by_key: dict[str, list[str]] = defaultdict(list)
    for job_id, (_, key, _, _) in stored.items():
        if key is not None:
            by_key[key.rpartition(":")[2]].append(job_id)
    for client in clients:
        for submission in client.submissions:
            yield from _faults_of(submission, by_key[submission.key], stored)
        for job_id in client.cancelled:
            if stored[job_id][0] != "dead":
                yield f"{job_id} was cancelled and is {stored[job_id][0]}"


def _faults_of(
    submission: Submission, job_ids: list[str], stored: dict[str, tuple[str, str, str, str | None]]
) -> Iterator[str]:
    if submission.result is SubmissionResult.ACCEPTED:
        if submission.job_id not in stored:
            yield f"accepted and lost: {submission}"
        elif stored[submission.job_id][0] not in ENDED:
            yield f"accepted and not ended: {submission}, {stored[submission.job_id]}"
    if submission.result is SubmissionResult.REFUSED and job_ids:
        yield f"refused and there: {submission}, {job_ids}"
    for before, after in pairwise(job_ids):
        # The same key runs again where the job before it has failed.
        status, _, _, completed = stored[before]
        if status == "succeeded" or completed is None or completed > stored[after][2]:
            yield f"there twice: {submission}, {before} {stored[before]}, {after} {stored[after]}"


def faults_of_executions(cluster: StormCluster, rows: Rows) -> Iterator[str]:
    """No job runs twice at once, no execution is started twice, and each was claimed."""
    starts: Counter[str] = Counter()
    for line in cluster.executions():
        if line["kind"] == "start":
            starts[line["job"]] += 1
        elif line["kind"] in ("overlap", "crowded") and not _is_excused(cluster, line):
            holder = cluster.daemon_of(line["holder"])
            yield f"{line['kind']}: {line}, stops of the holder {holder.stops}"
    executions = dict(rows.all("SELECT id, execution FROM job_queue"))
    for job_id, count in starts.items():
        if count > executions.get(job_id, 0):
            yield f"{job_id} was started {count} times in {executions.get(job_id)} executions"
    started: Counter[tuple[str, int]] = Counter(
        (line["job_id"], line["execution"])
        for node in cluster.nodes
        for daemon in node.daemons
        for line in daemon.lines
        if line["signal"] == "job.started"
    )
    yield from (
        f"execution {execution} was started {count} times"
        for execution, count in started.items()
        if count > 1
    )


def _is_excused(cluster: StormCluster, line: dict[str, Any]) -> bool:
    """Return whether one of the two daemons could not act because it was stopped with SIGSTOP."""
    if line["holder"] == line["owner"]:
        return False
    daemons: list[DaemonProcess] = [cluster.daemon_of(line["holder"]), cluster.daemon_of(line["owner"])]
    return any(
        until - since >= SHORTEST_EXCUSE and since < line["at"] < until + LATEST_EXCUSE
        for daemon in daemons
        for since, until in daemon.stops
    )


def faults_of_runs(rows: Rows, retried: set[str]) -> Iterator[str]:
    """Every run has ended, and a succeeded run has each step as often as its pipeline says."""
    steps: dict[str, Counter[str]] = defaultdict(Counter)
    for run_id, path, status in rows.all(
        "SELECT run_id, step_path, status FROM job_queue WHERE run_id IS NOT NULL"
    ):
        steps[run_id][path] += 1
        if status not in ENDED:
            yield f"a step of {run_id} is {status}"
    for run_id, pipeline, status in rows.all(
        "SELECT id, pipeline, status FROM pipeline_runs JOIN job_queue ON id = pipeline_runs.run_id"
    ):
        expected = PIPELINES[pipeline]
        if status not in ENDED:
            yield f"the run {run_id} is {status}"
        if any(count > expected[path] for path, count in steps[run_id].items()):
            yield f"a step of {run_id} is there twice: {steps[run_id]}"
        if status == "succeeded" and run_id not in retried and dict(steps[run_id]) != dict(expected):
            yield f"a step of {run_id} is missing: {steps[run_id]}"


def faults_of_deliveries(rows: Rows, received: Sequence[ReceivedRequest]) -> Iterator[str]:
    """Every event arrives, with one id and one body, and those of a job are numbered without a gap."""
    arrived: dict[tuple[str, int], set[tuple[str, bytes]]] = defaultdict(set)
    for request in received:
        arrived[event_of(request)].add((request.headers["webhook-id"], request.raw))
    yield from (
        f"event {event} arrived as {versions}" for event, versions in arrived.items() if len(versions) > 1
    )
    numbers: dict[str, list[int]] = defaultdict(list)
    for job_id, number in sorted(arrived):
        numbers[job_id].append(number)
    for job_id, last, status in rows.all(
        "SELECT id, callback_sequence, status FROM job_queue WHERE callback_url IS NOT NULL"
    ):
        if numbers[job_id] != list(range(1, last + 1)):
            yield f"of {job_id}, which is {status} and has {last} events, {numbers[job_id]} arrived"


def expected_events(rows: Rows) -> set[tuple[str, int]]:
    """Return every event of each job that reports its states, by its number."""
    last = rows.all("SELECT id, callback_sequence FROM job_queue WHERE callback_url IS NOT NULL")
    return {(job_id, number) for job_id, count in last for number in range(1, count + 1)}


def event_of(request: ReceivedRequest) -> tuple[str, int]:
    return request.body["job_id"], int(request.headers["x-ductile-sequence"])


def faults_of_followers(rows: Rows, followers: Sequence[StormFollower]) -> Iterator[str]:
    """A reader of events has received every number between its first and its last, in order."""
    all_numbers = [seq for (seq,) in rows.all("SELECT seq FROM ledger ORDER BY seq")]
    for follower in followers:
        yield from follower.faults
        numbers = follower.numbers
        expected = [number for number in all_numbers if numbers[0] <= number <= numbers[-1]]
        if missed := set(expected) - set(numbers):
            yield f"a reader has missed {sorted(missed)[:5]} of {len(expected)}"
        if invented := set(numbers) - set(expected):
            yield f"a reader has seen {sorted(invented)[:5]}, which are not there"


def faults_of_schedules(cluster: StormCluster, rows: Rows) -> Iterator[str]:
    """Each occurrence has run or was skipped for a reason, once, by the rows and by the audit."""
    occurrences = rows.all(
        "SELECT schedule_id, nominal_at, until_at, reason, job_id FROM occurrences ORDER BY 1, 2"
    )
    for before, after in pairwise(occurrences):
        if before[0] == after[0] and before[2] >= after[1]:
            yield f"an occurrence is there twice: {before}, {after}"
    jobs: Counter[str] = Counter(row[4] for row in occurrences if row[4] is not None)
    yield from (f"job {job_id} is of {count} occurrences" for job_id, count in jobs.items() if count > 1)
    yield from (f"skipped without a reason: {row}" for row in occurrences if row[4] is None and not row[3])
    for (job_id,) in rows.all("SELECT id FROM job_queue WHERE submitted_by = 'scheduler'"):
        if not jobs[job_id]:
            yield f"the scheduled job {job_id} is of no occurrence"
    for schedule in SCHEDULES:
        command = ("schedule", "history", "worker", schedule, "--limit", "200", "--json")
        result = cluster.nodes[0].workspace.ductile(*command)
        account = json.loads(result.out)["account"]
        if account["complete"] is False or account["gaps"]:
            yield f"the account of {schedule} is {account}"


def takeovers(cluster: StormCluster, kills: Sequence[tuple[float, DaemonProcess]]) -> list[float]:
    """Return the seconds from each kill until another node started a job of the killed daemon again."""
    lines = cluster.executions()
    ended = {(line["job"], line["pid"]) for line in lines if line["kind"] == "end"}
    delays = []
    for at, daemon in kills:
        for line in lines:
            if line["kind"] != "start" or line["at"] > at or cluster.daemon_of(line["owner"]) is not daemon:
                continue
            if (line["job"], line["pid"]) in ended:
                continue
            later = [
                other["at"]
                for other in lines
                if other["kind"] == "start" and other["job"] == line["job"] and other["at"] > at
            ]
            delays += [min(later) - at] if later else []
    return sorted(delays)
