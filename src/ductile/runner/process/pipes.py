"""The three pipes of a process: the request is written to stdin, stdout and stderr are read up to a cap."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

from ductile.struct import Value

#: The default capacity of a pipe.
_CHUNK = 64 * 1024


class PipeEnds(Value):
    """Both ends of stdin, stdout and stderr. Ours do not block; none is inherited unless passed on."""

    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]

    def close_theirs(self) -> None:
        _close(self.theirs)

    def close(self) -> None:
        _close((*self.ours, *self.theirs))


def open_pipes() -> PipeEnds:
    """Raises `OSError` if there are not enough descriptors; then none is left open."""
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe()
    except OSError:
        _close(opened)
        raise
    stdin, into_stdin, from_stdout, stdout, from_stderr, stderr = opened
    ours = (into_stdin, from_stdout, from_stderr)
    for descriptor in ours:
        os.set_blocking(descriptor, False)
    return PipeEnds(ours=ours, theirs=(stdin, stdout, stderr))


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def write_request(descriptor: int, request: bytes | memoryview) -> memoryview:
    """Write as much as the pipe takes now, and close it if that was all. Returns the rest."""
    rest = memoryview(request)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BlockingIOError:
        return rest
    except OSError:
        # EPIPE: a plugin may close stdin without reading its request.
        rest = rest[:0]
    os.close(descriptor)
    return rest


class RequestWriter:
    """Writes the rest of a request whenever the plugin has read some of it."""

    __slots__ = ("_descriptor", "_loop", "_rest")

    def __init__(self, descriptor: int, rest: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        """`descriptor` is closed already if `rest` is empty."""
        self._descriptor: int | None = None
        self._rest = rest
        self._loop = loop
        if rest:
            self._watch(descriptor)

    def close(self) -> None:
        descriptor = self._stop_watching()
        if descriptor is not None:
            os.close(descriptor)

    def _write(self) -> None:
        # The loop must forget the descriptor before it is closed, since its number may be reused at once.
        descriptor = self._stop_watching()
        if descriptor is None:
            return
        self._rest = write_request(descriptor, self._rest)
        if self._rest:
            self._watch(descriptor)

    def _watch(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop.add_writer(descriptor, self._write)

    def _stop_watching(self) -> int | None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_writer(descriptor)
        return descriptor


class CappedReader:
    """Keeps the first `cap` bytes of a pipe. When watched it goes on reading beyond the cap, so that the
    process does not block.
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
        """`on_end` is called at the end of a watched pipe, `on_cut` when the cap is exceeded."""
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
        """Read whenever the pipe has data, from now on."""
        if self._descriptor is not None and not self._watched:
            self._watched = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._watched:
            self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def read_available(self) -> None:
        """Read what is in the pipe, up to the cap."""
        while self._kept < self._cap and self._read():
            pass

    def _on_readable(self) -> None:
        self._read()
        if self._descriptor is None:
            self._on_end()

    def _read(self) -> bool:
        """Read once, and close the pipe at its end. Returns whether there was data."""
        if self._descriptor is None:
            return False
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        room = self._cap - self._kept
        if room > 0:
            self._chunks.append(chunk[:room])
            self._kept += min(len(chunk), room)
        if len(chunk) > room and not self.cut:
            self.cut = True
            if self._on_cut is not None:
                self._on_cut()
        return True
