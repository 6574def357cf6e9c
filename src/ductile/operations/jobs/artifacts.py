"""Files that jobs left behind: found by name, opened under the configured roots only."""

from __future__ import annotations

import mimetypes
import os
import re
from pathlib import Path
from typing import Annotated

from ductile.engine.artifact_files import open_artifact_file
from ductile.errors import NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import OneJob, resolve_job
from ductile.struct import Value, about

ANY_TYPE = "application/octet-stream"
_MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9_-]+=[A-Za-z0-9_.+-]+)*", re.ASCII
)


class OpenedArtifact(Value):
    """A file that is open for reading. The caller closes `descriptor`."""

    name: str
    descriptor: int
    size: int
    media_type: str


class OpenArtifact(OneJob, kw_only=True):
    name: Annotated[str, about("The artifact's name.")]


async def open_artifact(context: OperationContext, request: OpenArtifact) -> OpenedArtifact:
    """Open a file that a job left behind. Raises `NotFoundError`, also outside of the configured roots."""
    job = await resolve_job(context, request.job_id)
    name = request.name
    known = [each for each in job.artifacts if isinstance(each, dict)]
    found = next((each for each in known if each.get("name") == name), None)
    if found is None:
        names = ", ".join(str(each.get("name")) for each in known)
        raise NotFoundError(f"the job has no artifact {name}", hint=f"It has {names}." if names else None)
    path = found.get("path")
    if not isinstance(path, str):
        raise NotFoundError(
            f"the artifact {name} is not a file here", hint="It has a url.", details={"url": found.get("url")}
        )
    descriptor = open_artifact_file(path, context.snapshot().artifact_roots)
    media_type = found.get("media_type")
    if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):  # not valid in a header
        media_type = mimetypes.guess_type(path)[0] or ANY_TYPE
    size = os.fstat(descriptor).st_size
    return OpenedArtifact(name=Path(path).name, descriptor=descriptor, size=size, media_type=media_type)
