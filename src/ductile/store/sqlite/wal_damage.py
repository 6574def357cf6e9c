"""Damage in the write-ahead log of a dead process, found before SQLite opens it.

SQLite reads a log up to the first frame with a wrong checksum, and overwrites the rest. That is right for
the last transaction of a process that died while it wrote, and drops accepted work if a frame in the middle
is damaged. Frames are written in order and every commit is synced, so a complete transaction behind a
broken frame means damage.

The format is described in https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from ductile.struct import Value

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
#: The last bit is the byte order of the checksums.
_MAGIC = 0x377F0682
#: The bytes of each header that its checksum covers.
_SUMMED_HEADER = 24
_SUMMED_FRAME = 8
_MASK = 0xFFFFFFFF
#: Used if the header is broken: the page size of all our stores.
_USUAL_PAGE = 4096
_LARGEST_PAGE = 65536


class WalDamage(Value):
    """Transactions in a log that SQLite will not read."""

    transactions: int
    #: Identifies the log.
    salt_id: str


class _WalFrame(NamedTuple):
    commits: bool
    salts: tuple[int, int]
    sums: tuple[int, int]
    #: The bytes that the checksum covers.
    content: bytes


def find_wal_damage(log: Path) -> WalDamage | None:
    """Return the damage by which SQLite would lose transactions; None if it loses none, or has no log."""
    try:
        with log.open("rb") as stream:
            return _find_damage(stream)
    except FileNotFoundError:
        return None


def _find_damage(stream: IO[bytes]) -> WalDamage | None:
    raw = stream.read(_HEADER.size)
    if len(raw) < _HEADER.size:
        return None
    magic, _, page, _, *salts, first, second = _HEADER.unpack(raw)
    little, sums = magic == _MAGIC, (first, second)
    if magic | 1 != _MAGIC | 1 or _checksum(raw[:_SUMMED_HEADER], (0, 0), little=little) != sums:
        # A header is synced before the first frame, so the frames behind a broken one were readable.
        frames = _frames(stream, _USUAL_PAGE)
        frame = next(frames, None)
        if frame is None or frame.salts == (0, 0):
            return None
        generation, lost = frame.salts, int(frame.commits)
    else:
        frames, generation, lost = _frames(stream, page), (salts[0], salts[1]), 0
        for frame in frames:
            if frame.salts != generation:
                break
            sums = _checksum(frame.content, sums, little=little)
            if sums != frame.sums:
                break  # not counted: it may be the frame that the process died in
    lost += sum(frame.commits for frame in frames if frame.salts == generation)
    return WalDamage(transactions=lost, salt_id="%08x%08x" % generation) if lost else None  # noqa: UP031 - a pair


def _frames(stream: IO[bytes], page: int) -> Iterator[_WalFrame]:
    if not 0 < page <= _LARGEST_PAGE:
        return
    while len(raw := stream.read(_FRAME.size + page)) == _FRAME.size + page:
        _, size, salt, other_salt, first, second = _FRAME.unpack_from(raw)
        content = raw[:_SUMMED_FRAME] + raw[_FRAME.size :]
        yield _WalFrame(bool(size), (salt, other_salt), (first, second), content)


def _checksum(content: bytes, sums: tuple[int, int], *, little: bool) -> tuple[int, int]:
    """Return the checksum of the content, which continues the checksum `sums` of the content before it."""
    words = array("I", content)
    if little != (sys.byteorder == "little"):
        words.byteswap()
    first, second = sums
    remaining = iter(words)
    for even_word, odd_word in zip(remaining, remaining, strict=True):
        first = (first + even_word + second) & _MASK
        second = (second + odd_word + first) & _MASK
    return first, second


def copy_damaged_wal(log: Path, damage: WalDamage) -> Path:
    """Copy a damaged log beside itself and sync it, once for each log. Returns the path."""
    copy = log.with_name(f"{log.name}.damaged-{damage.salt_id}")
    if copy.exists():
        return copy
    unfinished = log.with_name(f"{copy.name}.part")
    descriptor = os.open(
        unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with log.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    unfinished.rename(copy)
    return copy


def damaged_wal_copies(database: Path) -> tuple[Path, ...]:
    """Return the copies of damaged logs beside a store."""
    return tuple(sorted(database.parent.glob(f"{database.name}-wal.damaged-*")))
