"""`ductile job export`: everything about a chain of jobs, as one JSON document."""

from __future__ import annotations

from ductile.cli.client import request
from ductile.cli.console import format as fmt
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import JOB, Example, Option, action


@action(
    "export",
    "write a job, what led to it and what it led to as one JSON document",
    "job.export",
    arguments=(JOB,),
    options=(Option("-o, --output FILE", "write it to this file, readable by its owner only"),),
    about="Has the inputs and outputs of every job as they are, so treat the document as you treat those: "
    "only the URLs of state webhooks are shortened. At most 10,000 jobs and 64 MiB.",
    examples=(
        Example("ductile job export last:failed --output incident.json", "for a report about a failure"),
        Example("ductile job export 8000a1b2c3d4 --below", "without the jobs that led to it"),
    ),
)
def export(invocation: Invocation) -> CommandResult:
    document = request(invocation, timeout=None)
    target = invocation.optional("output")
    if target is None:
        return CommandResult(document, fmt.to_json(document))
    size = _write_private(target, f"{fmt.to_json(document)}\n".encode())
    count = len(document["jobs"])
    summary = {"output": target, "jobs": count, "bytes": size, "root_job_id": document["root_job_id"]}
    return CommandResult(summary, f"Wrote {count} {'job' if count == 1 else 'jobs'} to {target}.")


def _write_private(target: str, content: bytes) -> int:
    """Write a file that only its owner can read, and return its size. After a UsageError there is no file."""
    import os
    import tempfile
    from contextlib import suppress
    from pathlib import Path

    from ductile.errors import UsageError

    path = Path(target)
    temporary: str | None = None
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    return len(content)
