"""Artifact files: open them only under the configured roots, measure and hash them."""

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

#: The most bytes that are hashed for one response. A file beyond that gets its size only.
MAX_HASHED_BYTES = 1024**3
#: How long a job waits for its files to be read: a network file system may hang.
READ_TIMEOUT = timedelta(seconds=10)

_NOT_FOUND = "the file is not there, or not under artifacts.roots"
_CHUNK = 1024 * 1024


async def describe_artifacts(
    artifacts: Sequence[JsonValue], roots: Sequence[Path], clock: Clock
) -> tuple[JsonValue, ...]:
    """Return the artifacts with `size` and `sha256` of those that are files under a root.

    Values that the plugin gave are kept. Files that are not read in time stay as the plugin gave them.
    """
    if not roots or not any(_lacks_metadata(artifact) for artifact in artifacts):
        return tuple(artifacts)
    described = list(artifacts)
    loop, done, given_up = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def read() -> None:
        limit = MAX_HASHED_BYTES
        try:
            for index, artifact in enumerate(artifacts):
                if not given_up.is_set() and isinstance(artifact, dict) and _lacks_metadata(artifact):
                    metadata, hashed = _read_metadata(str(artifact["path"]), roots, limit, given_up)
                    limit -= hashed
                    missing = {name: value for name, value in metadata.items() if artifact.get(name) is None}
                    described[index] = {**artifact, **missing}
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

    # A separate thread that does not block the exit (`daemon`): a file system that hangs blocks it for ever.
    threading.Thread(target=read, name="ductile-artifacts", daemon=True).start()
    await clock.wait(clock.now() + READ_TIMEOUT, done)
    given_up.set()
    return tuple(described)


def _lacks_metadata(artifact: JsonValue) -> bool:
    return (
        isinstance(artifact, dict)
        and isinstance(artifact.get("path"), str)
        and (artifact.get("size") is None or artifact.get("sha256") is None)
    )


def _read_metadata(
    path: str, roots: Iterable[Path], limit: int, given_up: threading.Event
) -> tuple[JsonObject, int]:
    """Return size and hash of a file, and the number of bytes hashed.

    There is no hash of a file that is larger than `limit`, and nothing of a file that cannot be read.
    """
    try:
        descriptor = open_artifact_file(path, roots)
    except (NotFoundError, DeniedError, OSError, ValueError):
        return {}, 0
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            return {"size": size}, 0
        digest, read = hashlib.sha256(), 0
        while read <= size and not given_up.is_set() and (chunk := os.read(descriptor, _CHUNK)):
            digest.update(chunk)
            read += len(chunk)
    except OSError:
        return {}, 0
    finally:
        os.close(descriptor)
    if read != size or given_up.is_set():  # The file was changed meanwhile, or the time is over.
        return {"size": size}, 0
    return {"size": size, "sha256": digest.hexdigest()}, size


def open_artifact_file(path: str, roots: Iterable[Path]) -> int:
    """Open a file if its real path is under a root. Raises `NotFoundError` or `DeniedError`.

    The real path is found first and then opened step by step without following links, so that a link that is
    created meanwhile is refused.
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
    raise NotFoundError(_NOT_FOUND)


def _open_beneath(home: str, parts: tuple[str, ...]) -> int:
    """Open a regular file by the parts of its path below `home`, without following links."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = -1
    try:
        opened = os.open(home, flags | os.O_DIRECTORY)
        for depth, part in enumerate(parts, start=1):
            # Non-blocking: opening a pipe would wait for a writer.
            kind = os.O_NONBLOCK if depth == len(parts) else os.O_DIRECTORY
            above, opened = opened, os.open(part, flags | kind, dir_fd=opened)
            os.close(above)
    except OSError as error:
        if opened >= 0:
            os.close(opened)
        if error.errno in (errno.EACCES, errno.EPERM):
            hint = "Look at the permissions of the file."
            raise DeniedError("the daemon may not read this file", hint=hint) from error
        raise NotFoundError(_NOT_FOUND) from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise NotFoundError("the artifact is not a file")
    return opened
