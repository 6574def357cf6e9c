"""Files that jobs left behind: found by name, opened under the configured roots only (SPEC 9.4)."""

from __future__ import annotations

import errno
import mimetypes
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from ductile.core.json_values import JsonObject, JsonValue
from ductile.errors import DeniedError, NotFoundError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.job_ids import named_job
from ductile.value import Value

ANY_TYPE = "application/octet-stream"
_MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9_-]+=[A-Za-z0-9_.+-]+)*", re.ASCII
)
_NOT_THERE = "the file is not there, or not under artifacts.roots"


class OpenedArtifact(Value):
    """A file that is open for reading. Whoever gets it closes `descriptor`."""

    name: str
    descriptor: int
    size: int
    media_type: str


async def open_artifact(desk: Desk, given: JsonObject) -> OpenedArtifact:
    job = await named_job(desk, given)
    name = read.text(given, "name")
    found = _named(job.artifacts, name)
    path = found.get("path")
    if not isinstance(path, str):
        raise NotFoundError(
            f"the artifact {name} is not a file here", hint="It has a url.", details={"url": found.get("url")}
        )
    descriptor = _open(path, desk.snapshot().artifact_roots)
    declared = found.get("media_type")
    return OpenedArtifact(
        name=Path(path).name,
        descriptor=descriptor,
        size=os.fstat(descriptor).st_size,
        media_type=_media_type(declared if isinstance(declared, str) else None, path),
    )


def _named(artifacts: Iterable[JsonValue], name: str) -> JsonObject:
    known = [each for each in artifacts if isinstance(each, dict)]
    for artifact in known:
        if artifact.get("name") == name:
            return artifact
    names = ", ".join(str(each.get("name")) for each in known)
    raise NotFoundError(f"the job has no artifact {name}", hint=f"It has {names}." if names else None)


def _media_type(declared: str | None, path: str) -> str:
    """As the plugin says, if that can stand in a header; else by the name; never by looking inside."""
    if declared is not None and _MEDIA_TYPE.fullmatch(declared):
        return declared
    return mimetypes.guess_type(path)[0] or ANY_TYPE


def _open(path: str, roots: Iterable[Path]) -> int:
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
