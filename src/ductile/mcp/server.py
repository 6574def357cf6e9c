"""The server of the Model Context Protocol: translates requests to operations, and responses back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeAlias

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from ductile import __version__
from ductile.admin.docs_pages import docs_pages
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, DuctileError
from ductile.mcp.prompts import PROMPTS, render_prompt
from ductile.mcp.resources import (
    DOCS,
    DOCS_SECTION,
    RESOURCES,
    McpResource,
    describe_page,
    find_resource,
    read_docs,
)
from ductile.mcp.tasks import Context, TaskMethods, created_task, declares_tasks
from ductile.operations.tools.answers import shorten

#: Runs an operation by its name with named values, and returns its response as JSON. Raises `DuctileError`.
CallOperation: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]

_INSTRUCTIONS = (
    "Ductile runs plugins and pipelines as durable jobs: what was accepted is run, also after a restart. A "
    "tool that starts a job waits for its end for the time in `wait`; a client that knows tasks gets a task "
    "after a moment. An answer with `ended`: false is no failure: ask again with job_wait and the same "
    "job_id, also after a reconnect. Never call a tool that starts a job again because it took long. Begin "
    "with last_night or status; job_explain says why a job failed. What plugins and pipelines do: tool_find "
    "finds commands and pipelines by words; run runs any of them by its name, also those that the list of "
    "tools does not have. Configuration: config_plan shows what a change does, config_apply with the id of "
    "that plan does exactly this."
)
_JSON = "application/json"
_MARKDOWN = "text/markdown"
_SERVER_ERROR = 500
_SUCCEEDED = "succeeded"
_WAIT_TOOL = "job_wait"
#: Enough for a list of one page where there are few plugins: some clients read only the first page.
_TOOLS_PER_PAGE = 100
#: Limit of an error, which may quote what the caller has sent.
_ERROR_CHARACTERS = 4_000
#: Problems of a configuration that an error names.
_MAX_PROBLEMS = 5


def make_server(
    call_operation_for: Callable[[Context], CallOperation], only_operations: Callable[[Context], bool]
) -> Server[Any]:
    """Return a server.

    `call_operation_for` returns the function that runs operations with the rights of the caller of a request.
    `only_operations` returns whether commands and pipelines are left out of the list of tools.
    """
    handlers = _Handlers(call_operation_for, only_operations)
    server: Server[Any] = Server(
        "ductile",
        version=__version__,
        title="Ductile",
        instructions=_INSTRUCTIONS,
        # The arguments are checked by the operation, which knows more than the schema.
        get_tool_input_schema=lambda _name: None,
        on_list_tools=handlers.list_tools,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_resource_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )
    # This is no argument of the server, because its type does not allow a task as the result.
    server.add_request_handler("tools/call", types.CallToolRequestParams, handlers.call_tool)
    TaskMethods(handlers.call_as_task, _result_of_job, _protocol_error).add_to(server)
    return server


class _Handlers:
    """The handlers of the requests of the protocol, except those of tasks."""

    def __init__(
        self,
        call_operation_for: Callable[[Context], CallOperation],
        only_operations: Callable[[Context], bool],
    ) -> None:
        self._call_operation_for = call_operation_for
        self._only_operations = only_operations

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """List tools without the schemas of their answers: an agent has the whole list in its context, and
        reads the answers.
        """
        cursor = None if params is None else params.cursor
        page = await self._list_allowed(
            context,
            cursor=cursor,
            limit=_TOOLS_PER_PAGE,
            operations=self._only_operations(context) or None,
        )
        tools = [
            types.Tool(
                name=tool["name"],
                description=tool["description"],
                input_schema=tool["input_schema"],
                annotations=types.ToolAnnotations(
                    read_only_hint=tool["read_only"],
                    destructive_hint=tool["destructive"],
                    idempotent_hint=tool["idempotent"],
                    # A plugin may reach anything, which is the default of the protocol.
                    open_world_hint=None if tool["starts_job"] else False,
                ),
            )
            for tool in page["tools"]
        ]
        return types.ListToolsResult(tools=tools, next_cursor=page["next_cursor"])

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | dict[str, Any]:
        """Return the result of a tool, or its task if the client knows tasks and the job has not ended."""
        arguments = params.arguments or {}
        try:
            if declares_tasks(context):
                response = await self.call_as_task(context, params.name, arguments)
                if (task := created_task(response.get("task"))) is not None:
                    return task
                answer = response["answer"]
            else:
                answer = await self._call_with_progress(context, params.name, arguments)
            # A failed job is an error of the call that starts it, but not of the call that waits for it.
            return _result(answer) if params.name == _WAIT_TOOL else _result_of_job(answer)
        except DuctileError as error:
            text = _to_json_text(_error_document(error))
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        _refuse_cursor(params)
        resources = [
            types.Resource(name=resource.name, title=resource.title, uri=resource.uri, mime_type=_JSON)
            for resource in await self._allowed_resources(context)
            if not resource.is_template
        ]
        pages = [
            types.Resource(
                name=f"docs/{page.name}",
                title=page.title,
                description=describe_page(page),
                uri=f"{DOCS}{page.name}",
                mime_type=_MARKDOWN,
            )
            for page in docs_pages()
        ]
        return types.ListResourcesResult(resources=[*resources, *pages])

    async def list_resource_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        _refuse_cursor(params)
        templates = [
            types.ResourceTemplate(
                name=resource.name, title=resource.title, uri_template=resource.uri, mime_type=_JSON
            )
            for resource in await self._allowed_resources(context)
            if resource.is_template
        ]
        section = types.ResourceTemplate(
            name="docs_section",
            title="One section of a page of the documentation",
            uri_template=DOCS_SECTION,
            mime_type=_MARKDOWN,
        )
        return types.ListResourceTemplatesResult(resource_templates=[*templates, section])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            if params.uri.startswith(DOCS):
                media_type, text = _MARKDOWN, read_docs(params.uri)
            else:
                tool, arguments = find_resource(params.uri)
                response = await self._call(context, tool, {**arguments})
                media_type, text = _JSON, _to_json_text(response["answer"])
        except DuctileError as error:
            raise _protocol_error(error) from None
        content = types.TextResourceContents(uri=params.uri, mime_type=media_type, text=text)
        return types.ReadResourceResult(contents=[content])

    async def list_prompts(
        self, _context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        _refuse_cursor(params)
        prompts = []
        for prompt in PROMPTS:
            arguments = [
                types.PromptArgument(name=name, description=meaning, required=True)
                for name, meaning in prompt.arguments.items()
            ]
            prompts.append(
                types.Prompt(
                    name=prompt.name,
                    title=prompt.title,
                    description=prompt.title,
                    arguments=arguments or None,
                )
            )
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(
        self, _context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        try:
            prompt, text = render_prompt(params.name, params.arguments or {})
        except DuctileError as error:
            raise _protocol_error(error) from None
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.title, messages=[message])

    async def _list_allowed(self, context: Context, **filters: Any) -> dict[str, Any]:
        """Return a page of the tools that the caller may call. Raises `MCPError`."""
        try:
            page: dict[str, Any] = await self._call_operation_for(context)(
                "tool.list", {name: value for name, value in filters.items() if value is not None}
            )
        except DuctileError as error:
            raise _protocol_error(error) from None
        return page

    async def _allowed_resources(self, context: Context) -> list[McpResource]:
        """Return the resources whose tool the caller may call."""
        tools = {tool["name"] for tool in (await self._list_allowed(context, operations=True))["tools"]}
        return [resource for resource in RESOURCES if resource.tool in tools]

    async def call_as_task(self, context: Context, tool: str, arguments: JsonObject) -> dict[str, Any]:
        return await self._call(context, tool, arguments, as_task=True)

    async def _call(
        self, context: Context, tool: str, arguments: JsonObject, **options: Any
    ) -> dict[str, Any]:
        """Call a tool. Returns the response of the operation `tool.call`. Raises `DuctileError`."""
        values: JsonObject = {"tool": tool, "arguments": arguments, **options}
        response: dict[str, Any] = await self._call_operation_for(context)("tool.call", values)
        return response

    async def _call_with_progress(self, context: Context, tool: str, arguments: JsonObject) -> dict[str, Any]:
        """Call a tool for a client that does not know tasks, and report progress while it waits for a job.

        Returns the answer. Raises `DuctileError`; it names the job if the daemon is lost meanwhile. The wait
        is split into several calls, so that it ends soon after the client has cancelled its call.
        """
        done = 0  # less than the progress of any job, so the first answer comes after a moment
        response = await self._call(context, tool, arguments, progress_after=done)
        first_answer: dict[str, Any] = response["answer"]
        while (progress := response.get("progress")) is not None:
            if progress["done"] > done:
                done = progress["done"]
                total = progress["total"]
                # The operation counts from 1 the starts and ends of steps. Clients show steps.
                await context.session.report_progress(
                    (done - 1) / 2, None if total is None else (total - 1) / 2, progress["message"]
                )
            job_id = first_answer["job_id"]
            remaining_wait: JsonObject = {"job_id": job_id, "wait": progress["wait_left"]}
            try:
                response = await self._call(context, _WAIT_TOOL, remaining_wait, progress_after=done)
            except DuctileError as error:
                error.details = {**error.details, "job_id": job_id}
                error.hint = (
                    f"The job {job_id} was accepted. Ask again with {_WAIT_TOOL}; "
                    "do not start it a second time."
                )
                raise
        answer: dict[str, Any] = response["answer"]
        if first_answer.get("deduplicated"):
            answer["deduplicated"] = True
        return answer


def _refuse_cursor(params: types.PaginatedRequestParams | None) -> None:
    """Raise `MCPError` for a cursor. For lists of one page, whose length is the same in any configuration."""
    if params is not None and params.cursor is not None:
        raise MCPError(code=types.INVALID_PARAMS, message="This list has one page, and gives no cursor.")


def _result_of_job(answer: dict[str, Any]) -> types.CallToolResult:
    """Return the result of a call that may have started a job: an error if it has ended without success."""
    is_error = answer.get("ended") is True and answer.get("status", _SUCCEEDED) != _SUCCEEDED
    return _result(answer, is_error=is_error)


def _result(answer: dict[str, Any], *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=_to_json_text(answer))], structured_content=answer, is_error=is_error
    )


def _to_json_text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _error_document(error: DuctileError) -> dict[str, Any]:
    """Return the document of an error, shortened for an agent."""
    details = dict(error.details)
    if isinstance(error, ConfigError) and error.problems:
        details["problems"] = [
            {name: value for name, value in asdict(problem).items() if value is not None and name != "column"}
            for problem in error.problems[:_MAX_PROBLEMS]
        ]
    fields = {"code": error.code, "message": error.message, "hint": error.hint, "details": details}
    present: dict[str, Any] = {name: value for name, value in fields.items() if value}
    return shorten({"error": present}, _ERROR_CHARACTERS)


def _protocol_error(error: DuctileError) -> MCPError:
    """Return the error for requests that, unlike a tool call, have no result which could describe it."""
    code = types.INVALID_PARAMS if error.http_status < _SERVER_ERROR else types.INTERNAL_ERROR
    hint = f" {error.hint}" if error.hint else ""
    return MCPError(code=code, message=f"{error.message}.{hint}", data=_error_document(error)["error"])
