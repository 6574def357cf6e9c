"""Clients of several nodes, which record the responses, and readers of their event streams."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any

from builders.daemons import PATIENCE
from builders.storm_nodes import TOKEN, StormCluster

#: A stopped node does not respond, and its clients ask another one.
RESPONSE_SECONDS = 8
#: Jobs of one client that are not known to have ended.
PENDING = 10
#: These jobs take long: a node that is cut off has to kill them before other nodes run them again.
LONG_JOBS = 5
LONG_SECONDS = 50
ENDED = ("succeeded", "failed", "dead")


class SubmissionResult(Enum):
    NONE = auto()
    ACCEPTED = auto()
    #: The last response of a node is a refusal.
    REFUSED = auto()
    #: The connection was lost or the response was late, and there was no further attempt.
    UNKNOWN = auto()


@dataclass(slots=True)
class Submission:
    key: str
    path: str
    body: dict[str, Any]
    result: SubmissionResult = SubmissionResult.NONE
    job_id: str | None = None


@dataclass(slots=True)
class StormClient:
    """Works on jobs of its own, one request after the other."""

    name: str
    cluster: StormCluster
    rng: Random
    submissions: list[Submission] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    #: Jobs with an acknowledged cancel and no later request.
    cancelled: set[str] = field(default_factory=set)
    #: Jobs with a retry request, acknowledged or not.
    retried: set[str] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)

    @property
    def accepted(self) -> list[str]:
        return [submission.job_id for submission in self.submissions if submission.job_id is not None]

    def work(self, stop: threading.Event) -> None:
        actions = (*[self._submit] * 6, self._cancel, self._retry)
        try:
            while not stop.is_set():
                self._wait_for_pending(stop)
                self.rng.choice(actions)()
        except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
            self.faults.append(error)

    def _wait_for_pending(self, stop: threading.Event) -> None:
        while len(self.pending) > PENDING and not stop.is_set():
            self._wait_for(self.pending[0], stop)

    def _wait_for(self, job_id: str, stop: threading.Event) -> None:
        """Wait for the end of a job, for a few seconds."""
        response = self._ask("GET", f"/job/{job_id}/wait?timeout=3s")
        if response is None:
            stop.wait(0.2)
        elif response[0] == 200 and response[1]["status"] in ENDED:
            self.pending.remove(job_id)
        else:
            assert response[0] in (200, 503), response

    def _submit(self) -> None:
        rng = self.rng
        path = rng.choice(
            ["/plugin/worker/handle", "/plugin/alone/handle", "/pipeline/flow", "/pipeline/fan"]
        )
        payload: dict[str, Any] = {"seconds": rng.choice([0, 0.02, 0.3, 1.5, 4])}
        if "plugin" in path and (fails := rng.choice([None, "once", "twice", "for good"])) is not None:
            payload["fails"] = fails
        self._send(path, {"payload": payload})

    def _send(self, path: str, body: dict[str, Any]) -> None:
        rng = self.rng
        if rng.random() < 0.6:
            body["state_webhook_url"] = self.cluster.receiver.url(f"/{self.name}")
        submission = Submission(f"{self.name}-{len(self.submissions)}", path, body)
        self.submissions.append(submission)
        while not self._try(submission) and rng.random() > 0.1:
            pass

    def _try(self, submission: Submission) -> bool:
        """Return whether it is accepted."""
        headers = {"Idempotency-Key": submission.key}
        response = self._ask("POST", submission.path, submission.body, headers)
        if response is None:
            submission.result = SubmissionResult.UNKNOWN
            return False
        status, body = response
        if status == 503:
            # A refusal says nothing about an earlier attempt whose response was lost.
            if submission.result is not SubmissionResult.UNKNOWN:
                submission.result = SubmissionResult.REFUSED
            return False
        assert status in (200, 202), (submission, response)
        submission.result, submission.job_id = SubmissionResult.ACCEPTED, body["job_id"]
        self.pending.append(body["job_id"])
        return True

    def _cancel(self) -> None:
        if (job_id := self._recent()) is None:
            return
        response = self._ask("POST", f"/job/{job_id}/cancel")
        if response is not None and response[0] == 200:
            self.cancelled.add(job_id)
        assert response is None or response[0] in (200, 409, 503), (job_id, response)

    def _retry(self) -> None:
        if (job_id := self._recent()) is None:
            return
        self.cancelled.discard(job_id)  # if the response is lost, the job may run again or not
        self.retried.add(job_id)
        response = self._ask("POST", f"/job/{job_id}/retry")
        assert response is None or response[0] in (200, 202, 409, 503), (job_id, response)

    def _recent(self) -> str | None:
        return self.rng.choice(self.accepted[-6:]) if self.accepted else None

    def _ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Send a request to any node. Return None if it may not have arrived."""
        node = self.rng.choice(self.cluster.nodes)
        if node.port is None:
            node.daemon.wait_for_change(0.2)
            return None
        return ask(node.port, method, path, body, headers)


def ask(
    port: int,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    *,
    seconds: float = RESPONSE_SECONDS,
) -> tuple[int, dict[str, Any]] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(
            method, path, body=content, headers={"Authorization": f"Bearer {TOKEN}", **(headers or {})}
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@dataclass(slots=True)
class LongStormClient(StormClient):
    """Keeps long jobs running on the nodes, and cancels them in the end."""

    def work(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                if len(self.pending) < LONG_JOBS:
                    self._send("/plugin/worker/handle", {"payload": {"seconds": LONG_SECONDS}})
                else:
                    self._wait_for(self.pending[0], stop)
        except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
            self.faults.append(error)

    def cancel_pending(self) -> None:
        """Cancel each pending job at any node. It may have ended meanwhile."""
        deadline = time.monotonic() + PATIENCE
        for job_id in self.pending:
            while (response := self._ask("POST", f"/job/{job_id}/cancel")) is None or response[0] == 503:
                assert time.monotonic() < deadline, response
            assert response[0] in (200, 409), response
            if response[0] == 200:
                self.cancelled.add(job_id)


@dataclass(slots=True)
class StormFollower:
    """Reads the event stream of one node after the other, from the last received event on."""

    cluster: StormCluster
    rng: Random
    numbers: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            port = self.rng.choice(self.cluster.nodes).port
            if port is None:
                stop.wait(0.1)
                continue
            with suppress(OSError, http.client.HTTPException, ValueError):
                self._follow(port, stop)

    def _follow(self, port: int, stop: threading.Event) -> None:
        """Read the stream until it ends, or for a few seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if self.numbers:
            headers["Last-Event-ID"] = str(self.numbers[-1])
        until = time.monotonic() + self.rng.uniform(1, 8)
        try:
            connection.request("GET", "/events", headers=headers)
            response = connection.getresponse()
            block: dict[str, str] = {}
            while not stop.is_set() and time.monotonic() < until and (line := response.readline()):
                name, separator, value = line.decode().rstrip("\n").partition(": ")
                if separator:
                    block[name] = value
                elif not name:
                    self._take(block)
                    block = {}
        finally:
            connection.close()

    def _take(self, block: dict[str, str]) -> None:
        if block.get("event") == "gap":
            self.faults.append(f"a gap was reported after {self.numbers[-1:]}: {block}")
        elif "event" in block and "id" in block:
            number = int(block["id"])
            if self.numbers and number <= self.numbers[-1]:
                self.faults.append(f"{number} came after {self.numbers[-1]}")
            with self._changed:
                self.numbers.append(number)
                self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            has_seen_it: Callable[[], bool] = lambda: bool(self.numbers) and self.numbers[-1] >= number  # noqa: E731
            assert self._changed.wait_for(has_seen_it, timeout=PATIENCE), (number, self.numbers[-3:])
