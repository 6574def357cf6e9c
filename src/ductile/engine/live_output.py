"""The output of running executions, in memory, for followers that read it while it is printed.

Nothing here is stored. The log gets the output of a process when it ends; the output of a process that still
runs is lost with the daemon. Each stream of a running execution keeps its latest `KEPT_BYTES`, so that a late
follower sees the beginning if it is short. A follower reads from a position on; one that is too slow
misses the oldest output and finds a gap in the offsets. Output of an ended execution is forgotten unless it
is followed.
"""

from __future__ import annotations

import asyncio
from codecs import utf_8_decode
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from ductile.core.jobs.model import Job
from ductile.runner.port import OutputCallback, OutputStream
from ductile.struct import Value

#: The most bytes that each stream of an execution keeps, apart from its last chunk.
KEPT_BYTES = 128 * 1024
#: A chunk that has not been read yet grows to this size, so that single characters do not become chunks.
_CHUNK_BYTES = 4 * 1024
#: How long a follower may stay away between two requests and still find all output, also of executions that
#: have ended meanwhile.
FOLLOWER_ABSENCE = timedelta(seconds=30)
#: The most ended executions that are kept for followers, and the most bytes of all of them together.
_ENDED_EXECUTIONS = 256
_ENDED_BYTES = 4 * 1024 * 1024
#: The most followers that are remembered while they are away.
_ABSENT_FOLLOWERS = 1024
#: A UTF-8 character has at most four bytes.
_LONGEST_INCOMPLETE = 3


def incomplete_suffix(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a UTF-8 character that is not complete."""
    tail = data[-_LONGEST_INCOMPLETE:]
    return len(tail) - utf_8_decode(tail, "replace", False)[1]


class OutputPiece(Value):
    """Some output of one stream."""

    job_id: str
    run_id: str | None
    step: str | None
    plugin: str
    command: str
    execution: int
    stream: OutputStream
    #: Bytes of the stream before this text. If it is larger than the `end` of the piece before, the output
    #: between the two was dropped.
    offset: int
    #: Bytes of the stream up to the end of this text.
    end: int
    text: str


class LiveOutputRead(Value):
    pieces: tuple[OutputPiece, ...]
    #: The position to continue reading from.
    position: int


NOTHING_READ = LiveOutputRead(pieces=(), position=0)


@dataclass(slots=True)
class _Chunk:
    #: Bytes of all streams together up to the end of this chunk.
    position: int
    offset: int
    data: bytes


@dataclass(slots=True)
class _Stream:
    """Chunks end between characters, so that each can be decoded by itself."""

    chunks: deque[_Chunk] = field(default_factory=deque)
    written: int = 0
    retained: int = 0
    #: The beginning of a character that is not complete yet.
    incomplete: bytes = b""


class _Source(NamedTuple):
    """The execution that prints. The job itself is not kept here, because its payload may be large."""

    job_id: str
    run_id: str | None
    step: str | None
    plugin: str
    command: str
    execution: int

    @property
    def topics(self) -> tuple[str | None, ...]:
        """The topics that its followers may follow: the job, its run, everything (None)."""
        return (self.job_id, None) if self.run_id is None else (self.job_id, self.run_id, None)


@dataclass(slots=True)
class _Execution:
    source: _Source
    streams: dict[OutputStream, _Stream] = field(default_factory=dict)
    ended: bool = False

    @property
    def retained(self) -> int:
        return sum(stream.retained for stream in self.streams.values())


class LiveOutput:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._position = 0
        #: Chunks up to here may have been read, and do not grow any more.
        self._read_position = 0
        #: By job and number of the execution.
        self._executions: dict[tuple[str, int], _Execution] = {}
        #: The keys of executions that have ended, oldest first.
        self._ended: deque[tuple[str, int]] = deque()
        #: Events of followers by the job or run they follow; None: everything.
        self._followers: dict[str | None, list[asyncio.Event]] = {}
        #: When a follower was last seen, the latest at the end.
        self._last_seen: dict[str | None, datetime] = {}
        self._subscribers: list[Callable[[OutputPiece], None]] = []

    # -- for the executor

    def callback_for(self, job: Job) -> OutputCallback:
        """Return the function that takes the output of this execution."""
        return partial(self._publish, job)

    def end(self, job: Job) -> None:
        """End the execution. Its output is retained for a while if it is followed, and dropped otherwise."""
        key = (job.id, job.execution)
        execution = self._executions.get(key)
        if execution is None:
            return
        for name, stream in execution.streams.items():
            if stream.incomplete:
                self._append(execution, name, stream, stream.incomplete)
                stream.incomplete = b""
        execution.ended = True
        oldest = self._now() - FOLLOWER_ABSENCE
        if not any(
            topic in self._followers or self._last_seen.get(topic, oldest) > oldest
            for topic in execution.source.topics
        ):
            del self._executions[key]
            return
        self._ended.append(key)
        retained = sum(self._executions[ended].retained for ended in self._ended)
        while len(self._ended) > _ENDED_EXECUTIONS or retained > _ENDED_BYTES:
            retained -= self._executions.pop(self._ended.popleft()).retained
        self._wake(execution.source)

    def _publish(self, job: Job, name: OutputStream, data: bytes) -> None:
        key = (job.id, job.execution)
        execution = self._executions.get(key)
        if execution is None:
            source = _Source(job.id, job.run_id, job.step_path, job.plugin, job.command, job.execution)
            execution = self._executions[key] = _Execution(source)
        stream = execution.streams.get(name)
        if stream is None:
            stream = execution.streams[name] = _Stream()
        data = stream.incomplete + data
        cut = len(data) - incomplete_suffix(data)
        stream.incomplete = data[cut:]
        if cut:
            self._append(execution, name, stream, data[:cut])
            self._wake(execution.source)

    def _append(self, execution: _Execution, name: OutputStream, stream: _Stream, data: bytes) -> None:
        for subscriber in self._subscribers:
            subscriber(_piece(execution.source, name, stream.written, data))
        self._position += len(data)
        last = stream.chunks[-1] if stream.chunks else None
        if (
            last is not None
            and last.position > self._read_position
            and len(last.data) + len(data) <= _CHUNK_BYTES
        ):
            last.data += data
            last.position = self._position
        else:
            stream.chunks.append(_Chunk(self._position, stream.written, data))
        stream.written += len(data)
        stream.retained += len(data)
        while stream.retained > KEPT_BYTES and len(stream.chunks) > 1:
            stream.retained -= len(stream.chunks.popleft().data)

    # -- for followers

    def subscribe(self, subscriber: Callable[[OutputPiece], None]) -> None:
        """Call the subscriber with each piece of output as soon as it is printed."""
        self._subscribers.append(subscriber)

    def expect_follower(self, job_id: str) -> None:
        """Keep the output of this job for a follower that comes within `FOLLOWER_ABSENCE`."""
        self._mark_seen(job_id)

    @contextmanager
    def following(self, job_id: str | None, changed: asyncio.Event) -> Iterator[None]:
        """Set the event whenever there is output of this job, or of a step of this run; None: of any job."""
        self._mark_seen(job_id)
        events = self._followers.setdefault(job_id, [])
        events.append(changed)
        try:
            yield
        finally:
            events.remove(changed)
            if not events:
                self._followers.pop(job_id, None)
            self._mark_seen(job_id)

    def read(self, job_id: str | None, after: int | None) -> LiveOutputRead:
        """Return the output of a job, or of the steps of a run, after a position, in the order it came.

        With None as the position, return the retained output of the executions that run now.
        """
        pieces: list[tuple[int, OutputPiece]] = []
        for execution in self._executions.values():
            if job_id not in execution.source.topics or (after is None and execution.ended):
                continue
            for name, stream in execution.streams.items():
                pieces += [
                    (chunk.position, _piece(execution.source, name, chunk.offset, chunk.data))
                    for chunk in stream.chunks
                    if chunk.position > (after or 0)
                ]
        self._read_position = self._position
        pieces.sort(key=itemgetter(0))
        return LiveOutputRead(pieces=tuple(piece for _, piece in pieces), position=self._position)

    def _mark_seen(self, topic: str | None) -> None:
        self._last_seen.pop(topic, None)
        self._last_seen[topic] = self._now()
        if len(self._last_seen) > _ABSENT_FOLLOWERS:
            del self._last_seen[next(iter(self._last_seen))]

    def _wake(self, source: _Source) -> None:
        if not self._followers:
            return
        for topic in source.topics:
            for changed in self._followers.get(topic, ()):
                changed.set()


def _piece(source: _Source, name: OutputStream, offset: int, data: bytes) -> OutputPiece:
    return OutputPiece(
        job_id=source.job_id,
        run_id=source.run_id,
        step=source.step,
        plugin=source.plugin,
        command=source.command,
        execution=source.execution,
        stream=name,
        offset=offset,
        end=offset + len(data),
        text=data.decode("utf-8", errors="replace"),
    )
