"""The Tasks extension of the protocol: a job that takes longer than a moment is a task with the job's id.

Each method calls a tool, so it needs the rights for that tool, and no state is kept here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ductile.core.json import JsonObject
from ductile.errors import ConflictError, DuctileError

EXTENSION = "io.modelcontextprotocol/tasks"
Context: TypeAlias = ServerRequestContext[Any, Any]
#: Calls a tool as a task. Returns the response of the operation `tool.call`. Raises `DuctileError`.
CallAsTask: TypeAlias = Callable[[Context, str, JsonObject], Awaitable[dict[str, Any]]]
#: Makes the result of a tool call from the answer of the tool.
MakeResult: TypeAlias = Callable[[dict[str, Any]], types.CallToolResult]

_WORKING, _COMPLETED = "working", "completed"
#: The names that the protocol has for the fields of a task.
_PROTOCOL_NAMES = {
    "task_id": "taskId",
    "status": "status",
    "status_message": "statusMessage",
    "created_at": "createdAt",
    "last_updated_at": "lastUpdatedAt",
    "ttl_ms": "ttlMs",
    "poll_interval_ms": "pollIntervalMs",
}


class TaskParams(types.RequestParams):
    task_id: str


class UpdateTaskParams(TaskParams):
    input_responses: dict[str, Any]


def declares_tasks(context: Context) -> bool:
    """Return whether the client of this request understands tasks. Each request declares it."""
    capabilities = context.session.client_capabilities
    extensions = (capabilities.extensions or {}) if capabilities is not None else {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in extensions


def created_task(task: JsonObject | None) -> dict[str, Any] | None:
    """Return the result of a call whose job has not ended; None if it has, or there is no job."""
    if task is None or task["status"] != _WORKING:
        return None
    return {"resultType": "task", **_with_protocol_names(task)}


class TaskMethods:
    """The methods of the extension: `tasks/get`, `tasks/update` and `tasks/cancel`."""

    def __init__(
        self, call: CallAsTask, result_of: MakeResult, protocol_error: Callable[[DuctileError], MCPError]
    ) -> None:
        self._call = call
        self._result_of = result_of
        self._protocol_error = protocol_error

    def add_to(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", UpdateTaskParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        response = await self._read(context, params.task_id)
        task = _with_protocol_names(response["task"])
        if task["status"] == _COMPLETED:
            result = self._result_of(response["answer"])
            task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return task

    async def update(self, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
        """Acknowledge answers to requests for input. No job makes such requests: there are none to match."""
        await self._read(context, params.task_id)
        return {}

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        response = await self._read(context, params.task_id)
        if response["task"]["status"] == _WORKING:
            with suppress(ConflictError):  # the job has ended meanwhile
                await self._run(context, "job_cancel", {"job_id": params.task_id})
        return {}

    async def _read(self, context: Context, task_id: str) -> dict[str, Any]:
        """Return the task and its answer. Raises `MCPError` if there is none or the client knows no tasks."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=context.method)
        if not declares_tasks(context):
            raise MCPError(
                code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"the client has to declare the extension {EXTENSION}",
                data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        # Over HTTP a header names the task as well, for proxies. The SDK checks it for its own methods only.
        headers = {} if context.request is None else context.request.headers
        if MCP_NAME_HEADER in headers and decode_header_value(headers[MCP_NAME_HEADER]) != task_id:
            raise MCPError(
                code=types.HEADER_MISMATCH, message=f"the header {MCP_NAME_HEADER} does not name the task"
            )
        response = await self._run(context, "job_wait", {"job_id": task_id, "wait": "0s"})
        if response["task"]["task_id"] != task_id:  # a job is also found by a part of its id
            raise MCPError(code=types.INVALID_PARAMS, message=f"there is no task {task_id[:100]}")
        return response

    async def _run(self, context: Context, tool: str, arguments: JsonObject) -> dict[str, Any]:
        """Call a tool. Raises `ConflictError`, and `MCPError` for every other error."""
        try:
            return await self._call(context, tool, arguments)
        except ConflictError:
            raise
        except DuctileError as error:
            raise self._protocol_error(error) from None


def _with_protocol_names(task: JsonObject) -> dict[str, Any]:
    """Return a task with its fields under the names of the protocol."""
    return {_PROTOCOL_NAMES[name]: value for name, value in task.items()}
