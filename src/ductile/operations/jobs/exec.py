"""Running any command once as a job, without a plugin for it.

Over HTTP this would let every token that may run a plugin execute anything. So it has no route, and its
plugin is not in the configuration: only the control socket and processes of the same user reach it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import PurePath
from typing import Annotated

from msgspec import Meta

from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.jobs.model import JobStatus, NewJob
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.json import JsonValue
from ductile.core.scripts import EXEC_PLUGIN, ExecCommand
from ductile.operations.context import OperationContext
from ductile.operations.request import DryRun, refused
from ductile.operations.submission import PlannedSubmission, Submitted
from ductile.operations.system.nodes import own_node
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.jobs import Submission
from ductile.struct import Value, about

#: The default timeout, and the longest: a command that hangs must not occupy a worker for ever.
MAX_TIMEOUT = timedelta(hours=24)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)


def _decode_argv(name: str, value: JsonValue) -> tuple[str, ...]:
    words = value if isinstance(value, list) else []
    texts = tuple(word for word in words if isinstance(word, str))
    if not texts or len(texts) != len(words) or not texts[0] or any("\0" in word for word in texts):
        raise refused(name, f"{name} has to be a program and its arguments, as a list of texts")
    return texts


class ExecuteCommand(Value):
    argv: Annotated[
        tuple[str, ...],
        Meta(
            description="The program and its arguments.",
            extra={"decode": _decode_argv},
            extra_json_schema={"type": "array", "items": {"type": "string"}, "minItems": 1},
        ),
    ]
    cwd: Annotated[str, about("The directory it runs in, absolute.")]
    name: Annotated[str | None, about("Its name in lists; that of the program if it is absent.")] = None
    timeout: Annotated[timedelta | None, about("End it after this long, such as 30m (default 24h).")] = None
    retry: Annotated[bool, about("Retry it if it fails, up to 4 attempts.")] = False
    dry_run: DryRun = False


async def execute_command(
    context: OperationContext, request: ExecuteCommand
) -> Submitted | PlannedSubmission:
    """Put one job on the queue that runs a command."""
    if not PurePath(request.cwd).is_absolute() or "\0" in request.cwd:
        raise refused("cwd", "cwd has to be an absolute path")
    if request.timeout is not None and request.timeout <= timedelta():
        raise refused("timeout", "timeout must be greater than 0")
    name = request.name
    if name is None:
        program = PurePath(request.argv[0]).name
        name = program if _is_name(program) else "run"
    elif not _is_name(name):
        hint = "Use letters, digits, _, - and dots; `health` and `init` have a meaning of their own."
        raise refused("name", f"name {name[:100]!r} cannot be used", hint)
    if request.dry_run:
        return PlannedSubmission(plugin=EXEC_PLUGIN, command=name)
    timeout = min(request.timeout or MAX_TIMEOUT, MAX_TIMEOUT)
    command = ExecCommand(argv=request.argv, cwd=request.cwd, timeout=timeout.total_seconds())
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=EXEC_PLUGIN,
        command=name,
        submitted_by=context.source.submitted_by,
        submitted_detail=context.source.detail,
        max_attempts=RetryPolicy().max_attempts if request.retry else 1,
        payload=command.as_payload(),
        trace_id=make_trace_id(context.rng),
        # Other machines do not have the directory, and perhaps not the program.
        node=own_node(context),
    )
    (result,) = await context.enqueue(Submission(jobs=(job,)))
    return Submitted(
        job_id=result.job_id,
        status=JobStatus.QUEUED,
        execution_mode=ExecutionMode.ASYNC,
        plugin=EXEC_PLUGIN,
        command=name,
        deduplicated=False,
    )


def _is_name(text: str) -> bool:
    """Return whether the text can be the command of a job."""
    return _NAME.fullmatch(text) is not None and text not in SYSTEM_COMMANDS
