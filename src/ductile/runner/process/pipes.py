"""The three pipes of a process, on the event loop: the request goes in, output comes out under caps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ductile.struct import Value

#: What a pipe holds, unless somebody has changed that.
_CHUNK = 64 * 1024


class PipeEnds(Value):
    """Both ends of stdin, stdout and stderr. Ours do not block; none is inherited by accident."""

    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]

    def close_theirs(self) -> None:
        _close(self.theirs)

    def close(self) -> None:
        _close((*self.ours, *self.theirs))


def open_pipes() -> PipeEnds:
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        _close(made)
        raise
    stdin, into_stdin, from_stdout, stdout, from_stderr, stderr = made
    ours = (into_stdin, from_stdout, from_stderr)
    for descriptor in ours:
        os.set_blocking(descriptor, False)
    return PipeEnds(ours=ours, theirs=(stdin, stdout, stderr))


def _close(descriptors: tuple[int, ...] | list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def write_request(descriptor: int, request: bytes | memoryview) -> memoryview:
    """Write what the pipe takes now, and close it when that was all; returns what is left."""
    rest = memoryview(request)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BlockingIOError:
        return rest
    except OSError:
        # EPIPE: the plugin does not want its request, which is its right.
        rest = rest[:0]
    os.close(descriptor)
    return rest


class RequestWriter:
    """Writes the rest of a request without ever waiting for a plugin that does not read."""

    __slots__ = ("_descriptor", "_loop", "_rest")

    def __init__(self, descriptor: int, rest: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        """If nothing is left, the pipe has been closed."""
        self._descriptor: int | None = None
        self._rest = rest
        self._loop = loop
        if rest:
            self._descriptor = descriptor
            loop.add_writer(descriptor, self._write)

    def close(self) -> None:
        descriptor = self._forget()
        if descriptor is not None:
            os.close(descriptor)

    def _write(self) -> None:
        descriptor = self._descriptor
        if descriptor is None:
            return
        # The loop forgets a descriptor before it is closed and its number can be used again.
        self._forget()
        self._rest = write_request(descriptor, self._rest)
        if self._rest:
            self._descriptor = descriptor
            self._loop.add_writer(descriptor, self._write)

    def _forget(self) -> int | None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_writer(descriptor)
        return descriptor


class CappedReader:
    """Keeps the first `cap` bytes of a pipe, and goes on reading so that nobody blocks on it.

    Reads when it is told to; watched, it reads whenever there is something.
    """

    __slots__ = ("_cap", "_chunks", "_descriptor", "_kept", "_loop", "_on_cut", "_on_end", "_watched", "cut")

    def __init__(
        self,
        descriptor: int,
        *,
        cap: int,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[], None],
        on_cut: Callable[[], None] | None = None,
    ) -> None:
        self._descriptor: int | None = descriptor
        self._cap = cap
        self._loop = loop
        self._on_end = on_end
        self._on_cut = on_cut
        self._chunks: list[bytes] = []
        self._kept = 0
        self._watched = False
        self.cut = False

    @property
    def ended(self) -> bool:
        return self._descriptor is None

    @property
    def content(self) -> bytes:
        return b"".join(self._chunks)

    def watch(self) -> None:
        """From now on read whatever comes, and tell `on_end` when the pipe has ended."""
        if self._descriptor is not None and not self._watched:
            self._watched = True
            self._loop.add_reader(self._descriptor, self._came)

    def close(self) -> None:
        """Stop reading. The loop forgets the descriptor before its number can be used again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._watched:
            self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def take_rest(self) -> None:
        """Read what is already in the pipe: for the last words of a process that is gone."""
        while self._kept < self._cap and self._read():
            pass

    def _came(self) -> None:
        self._read()
        if self._descriptor is None:
            self._on_end()

    def _read(self) -> bool:
        """Read once; whether something came. A pipe that has ended is closed."""
        if self._descriptor is None:
            return False
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            self._keep(chunk)
        else:
            self.close()
        return bool(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = self._cap - self._kept
        if room > 0:
            self._chunks.append(chunk[:room])
            self._kept += min(len(chunk), room)
        if len(chunk) > room and not self.cut:
            self.cut = True
            if self._on_cut is not None:
                self._on_cut()
