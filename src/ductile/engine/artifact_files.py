"""Files that plugins name as artifacts: opened under the configured roots only, measured and hashed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from ductile.core.json import JsonObject, JsonValue
from ductile.engine.clock import Clock
from ductile.errors import DeniedError, NotFoundError

#: So many bytes of the files of one answer are hashed. A file that would go beyond it has its size only.
MOST_HASHED = 1024**3
#: A job waits so long for its files to be read, on a disk that is slow or does not answer, and no longer.
LONGEST = timedelta(seconds=10)

_NOT_THERE = "the file is not there, or not under artifacts.roots"
_CHUNK = 1024 * 1024


async def describe_artifacts(
    artifacts: Sequence[JsonValue], roots: Sequence[Path], clock: Clock
) -> tuple[JsonValue, ...]:
    """Return the artifacts with the `size` and `sha256` of those that are files under a root.

    What a plugin has said itself is kept. The files are read in a thread; what is not read in time stays as
    the plugin gave it.
    """
    if not roots or not any(_lacks_facts(artifact) for artifact in artifacts):
        return tuple(artifacts)
    described = list(artifacts)
    loop, done, given_up = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def read() -> None:
        left = MOST_HASHED
        try:
            for index, artifact in enumerate(artifacts):
                if not given_up.is_set() and isinstance(artifact, dict) and _lacks_facts(artifact):
                    facts, hashed = _read_facts(str(artifact["path"]), roots, left, given_up)
                    left -= hashed
                    described[index] = {**artifact, **_missing(artifact, facts)}
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

    # A thread of its own that nothing waits for at exit: a file system that hangs keeps it for ever.
    threading.Thread(target=read, name="ductile-artifacts", daemon=True).start()
    await clock.wait(clock.now() + LONGEST, done)
    given_up.set()
    return tuple(described)


def _lacks_facts(artifact: JsonValue) -> bool:
    return (
        isinstance(artifact, dict)
        and isinstance(artifact.get("path"), str)
        and (artifact.get("size") is None or artifact.get("sha256") is None)
    )


def _missing(artifact: JsonObject, facts: JsonObject) -> JsonObject:
    return {name: value for name, value in facts.items() if artifact.get(name) is None}


def _read_facts(
    path: str, roots: Iterable[Path], most: int, given_up: threading.Event
) -> tuple[JsonObject, int]:
    """The facts of one file, and how many bytes were hashed. Nothing of a file that cannot be read."""
    try:
        descriptor = open_artifact_file(path, roots)
    except (NotFoundError, DeniedError, OSError, ValueError):
        return {}, 0
    try:
        size = os.fstat(descriptor).st_size
        digest = _digest(descriptor, size, given_up) if size <= most else None
    except OSError:
        return {}, 0
    finally:
        os.close(descriptor)
    if digest is None:
        return {"size": size}, 0
    return {"size": size, "sha256": digest}, size


def _digest(descriptor: int, size: int, given_up: threading.Event) -> str | None:
    """The SHA-256 of a file of this size; None if it has another size meanwhile, or time is up."""
    digest, read = hashlib.sha256(), 0
    while chunk := os.read(descriptor, _CHUNK):
        digest.update(chunk)
        read += len(chunk)
        if read > size or given_up.is_set():
            return None
    return digest.hexdigest() if read == size else None


def open_artifact_file(path: str, roots: Iterable[Path]) -> int:
    """Open the file if it really lies under a root, all links followed.

    Where it lies is found out first, and then that place is opened step by step without following any
    link: one that is put in the way meanwhile is refused.
    """
    for root in roots:
        home = os.path.realpath(root)
        try:
            real = os.path.realpath(os.path.join(home, path))  # noqa: PTH118 - an absolute path stays itself
        except (OSError, ValueError):
            continue
        parts = Path(os.path.relpath(real, home)).parts
        if parts and parts[0] != os.pardir:
            return _open_beneath(home, parts)
    raise NotFoundError(_NOT_THERE)


def _open_beneath(home: str, parts: tuple[str, ...]) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = -1
    try:
        opened = os.open(home, flags | os.O_DIRECTORY)
        for part in parts[:-1]:
            opened = _step(opened, part, flags | os.O_DIRECTORY)
        # Without waiting: opening a pipe would, until somebody writes to it.
        opened = _step(opened, parts[-1], flags | os.O_NONBLOCK)
    except OSError as error:
        if opened >= 0:
            os.close(opened)
        raise _explained(error) from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise NotFoundError("the artifact is not a file")
    return opened


def _step(directory: int, name: str, flags: int) -> int:
    following = os.open(name, flags, dir_fd=directory)
    os.close(directory)
    return following


def _explained(error: OSError) -> NotFoundError | DeniedError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError("the daemon may not read this file", hint="Look at the permissions of the file.")
    return NotFoundError(_NOT_THERE)
