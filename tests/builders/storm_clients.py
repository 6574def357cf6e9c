"""Clients of several nodes, which remember what they were told, and readers of their event streams."""

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
from builders.storm_nodes import TOKEN, StormGround

#: A stopped node does not answer, and its clients ask another one.
ANSWER_SECONDS = 8
#: Jobs of one client that are not known to have ended.
PENDING = 10
#: So many jobs run for so long that a node that is cut off has to kill them before others run them again.
LONG_JOBS = 5
LONG_SECONDS = 50
ENDED = ("succeeded", "failed", "dead")


class Answer(Enum):
    NONE = auto()
    ACCEPTED = auto()
    #: Told so by a node, and not asked again.
    REFUSED = auto()
    #: The connection was lost or the answer late, and it was not asked again.
    UNKNOWN = auto()


@dataclass(slots=True)
class Submission:
    key: str
    path: str
    body: dict[str, Any]
    answer: Answer = Answer.NONE
    job_id: str | None = None


@dataclass(slots=True)
class StormClient:
    """Works on jobs of its own, one request after the other."""

    name: str
    ground: StormGround
    rng: Random
    submissions: list[Submission] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    #: Cancels that were acknowledged, and after which nothing was asked of the job.
    cancelled: set[str] = field(default_factory=set)
    #: Jobs that were asked to run again, whether that was acknowledged or not.
    retried: set[str] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)

    @property
    def accepted(self) -> list[str]:
        return [each.job_id for each in self.submissions if each.job_id is not None]

    def work(self, over: threading.Event) -> None:
        actions = (*[self._submit] * 6, self._cancel, self._retry)
        try:
            while not over.is_set():
                self._wait_for_pending(over)
                self.rng.choice(actions)()
        except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
            self.faults.append(error)

    def _wait_for_pending(self, over: threading.Event) -> None:
        while len(self.pending) > PENDING and not over.is_set():
            self._wait_for(self.pending[0], over)

    def _wait_for(self, job_id: str, over: threading.Event) -> None:
        """Wait for a while."""
        asked = self._ask("GET", f"/job/{job_id}/wait?timeout=3s")
        if asked is None:
            over.wait(0.2)
        elif asked[0] == 200 and asked[1]["status"] in ENDED:
            self.pending.remove(job_id)
        else:
            assert asked[0] in (200, 503), asked

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
            body["state_webhook_url"] = self.ground.receiver.url(f"/{self.name}")
        submission = Submission(f"{self.name}-{len(self.submissions)}", path, body)
        self.submissions.append(submission)
        while not self._try(submission) and rng.random() > 0.1:
            pass

    def _try(self, submission: Submission) -> bool:
        """Return whether it is accepted."""
        headers = {"Idempotency-Key": submission.key}
        asked = self._ask("POST", submission.path, submission.body, headers)
        if asked is None:
            submission.answer = Answer.UNKNOWN
            return False
        status, body = asked
        if status == 503:
            # A refusal says nothing about an attempt before it whose answer was lost.
            if submission.answer is not Answer.UNKNOWN:
                submission.answer = Answer.REFUSED
            return False
        assert status in (200, 202), (submission, asked)
        submission.answer, submission.job_id = Answer.ACCEPTED, body["job_id"]
        self.pending.append(body["job_id"])
        return True

    def _cancel(self) -> None:
        if (job_id := self._recent()) is None:
            return
        asked = self._ask("POST", f"/job/{job_id}/cancel")
        if asked is not None and asked[0] == 200:
            self.cancelled.add(job_id)
        assert asked is None or asked[0] in (200, 409, 503), (job_id, asked)

    def _retry(self) -> None:
        if (job_id := self._recent()) is None:
            return
        self.cancelled.discard(job_id)  # an answer that is lost leaves open whether it runs again
        self.retried.add(job_id)
        asked = self._ask("POST", f"/job/{job_id}/retry")
        assert asked is None or asked[0] in (200, 202, 409, 503), (job_id, asked)

    def _recent(self) -> str | None:
        return self.rng.choice(self.accepted[-6:]) if self.accepted else None

    def _ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Ask any node. None if it is not known whether the request has arrived."""
        node = self.rng.choice(self.ground.nodes)
        if node.port is None:
            node.life.wait_a_moment(0.2)
            return None
        return ask(node.port, method, path, body, headers)


def ask(
    port: int,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    *,
    seconds: float = ANSWER_SECONDS,
) -> tuple[int, dict[str, Any]] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(
            method, path, body=content, headers={"Authorization": f"Bearer {TOKEN}", **(headers or {})}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@dataclass(slots=True)
class LongStormClient(StormClient):
    """Keeps long jobs on the nodes, as many as one node has workers, and cancels them in the end."""

    def work(self, over: threading.Event) -> None:
        try:
            while not over.is_set():
                if len(self.pending) < LONG_JOBS:
                    self._send("/plugin/worker/handle", {"payload": {"seconds": LONG_SECONDS}})
                else:
                    self._wait_for(self.pending[0], over)
        except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
            self.faults.append(error)

    def cancel_pending(self) -> None:
        """Cancel each at any node; one whose end was not seen yet may have ended."""
        deadline = time.monotonic() + PATIENCE
        for job_id in self.pending:
            while (asked := self._ask("POST", f"/job/{job_id}/cancel")) is None or asked[0] == 503:
                assert time.monotonic() < deadline, asked
            assert asked[0] in (200, 409), asked
            if asked[0] == 200:
                self.cancelled.add(job_id)


@dataclass(slots=True)
class StormFollower:
    """Reads the event stream of one node after the other, and resumes after the last event that it saw."""

    ground: StormGround
    rng: Random
    seen: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def work(self, over: threading.Event) -> None:
        while not over.is_set():
            port = self.rng.choice(self.ground.nodes).port
            if port is None:
                over.wait(0.1)
                continue
            with suppress(OSError, http.client.HTTPException, ValueError):
                self._follow(port, over)

    def _follow(self, port: int, over: threading.Event) -> None:
        """Until the stream ends, or it is time for another node."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if self.seen:
            headers["Last-Event-ID"] = str(self.seen[-1])
        until = time.monotonic() + self.rng.uniform(1, 8)
        try:
            connection.request("GET", "/events", headers=headers)
            answer = connection.getresponse()
            block: dict[str, str] = {}
            while not over.is_set() and time.monotonic() < until and (line := answer.readline()):
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
            self.faults.append(f"a gap was reported after {self.seen[-1:]}: {block}")
        elif "event" in block and "id" in block:
            number = int(block["id"])
            if self.seen and number <= self.seen[-1]:
                self.faults.append(f"{number} came after {self.seen[-1]}")
            with self._changed:
                self.seen.append(number)
                self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            enough: Callable[[], bool] = lambda: bool(self.seen) and self.seen[-1] >= number  # noqa: E731
            assert self._changed.wait_for(enough, timeout=PATIENCE), (number, self.seen[-3:])
