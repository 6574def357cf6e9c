"""Calls of clients that do not know tasks: one that waits for a job sends progress until it is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from ductile.core.json import JsonObject
from ductile.errors import DuctileError
from ductile.mcp.tasks import Context

WAIT_TOOL = "job_wait"
#: Below the progress of any job: the first answer comes after a moment.
_NONE_YET = 0


class CallTool(Protocol):
    """Calls a tool. Returns the response of the operation `tool.call`. Raises `DuctileError`."""

    def __call__(
        self, context: Context, tool: str, arguments: JsonObject, **options: Any
    ) -> Awaitable[dict[str, Any]]: ...


#: Sends how far a job is, its total and a message to a client that has asked for it.
Report: TypeAlias = Callable[[float, float | None, str], Awaitable[None]]


async def call_and_report(
    call: CallTool, report: Report, context: Context, tool: str, arguments: JsonObject
) -> dict[str, Any]:
    """Call a tool, and report progress while it waits for a job. Returns its answer.

    The waiting is done in parts, so that a call which its client has cancelled soon takes up nothing. If the
    daemon is lost meanwhile, the error names the job. Raises `DuctileError`.
    """
    response = await call(context, tool, arguments, progress_after=_NONE_YET)
    started: dict[str, Any] = response["answer"]
    done: int = _NONE_YET
    while (progress := response.get("progress")) is not None:
        if progress["done"] > done:
            done = progress["done"]
            total = progress["total"]
            # The operation counts from 1 the starts and ends of steps. Clients show steps.
            await report((done - 1) / 2, None if total is None else (total - 1) / 2, progress["message"])
        following = {"job_id": started["job_id"], "wait": progress["wait_left"]}
        try:
            response = await call(context, WAIT_TOOL, following, progress_after=done)
        except DuctileError as error:
            raise _naming_the_job(error, started["job_id"]) from error.__cause__
    answer: dict[str, Any] = response["answer"]
    if started.get("deduplicated"):
        answer["deduplicated"] = True
    return answer


def _naming_the_job(error: DuctileError, job_id: str) -> DuctileError:
    """The error of a wait for a job that was accepted before."""
    error.details = {**error.details, "job_id": job_id}
    error.hint = f"The job {job_id} was accepted. Ask again with {WAIT_TOOL}; do not start it a second time."
    return error
