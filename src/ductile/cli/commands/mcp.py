"""`ductile mcp …`: starts the MCP server on standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import DAEMON_TIMEOUT, request, request_daemon
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Example, Option, action

if TYPE_CHECKING:
    from ductile.core.json import JsonObject

#: The longest that a call waits for a job, and some time for the answer.
_CALL_SECONDS = 600 + DAEMON_TIMEOUT


@action(
    "serve",
    "serve operations, plugins and pipelines to an agent on standard input and output",
    options=(
        Option(
            "--only-operations",
            "leave commands and pipelines out of the list of tools; the tool `run` runs them by name",
        ),
    ),
    about="For clients of the Model Context Protocol (MCP), which start this command themselves. On the "
    "machine of the daemon it has all rights; with --url those of the token. It may be started before the "
    "daemon, and stays when the daemon is restarted. Needs the extra `mcp`.",
    examples=(
        Example("ductile mcp serve", "the daemon of this machine"),
        Example("ductile mcp serve --url https://ductile.example.org", "a daemon elsewhere"),
    ),
)
def serve(invocation: Invocation) -> CommandResult:
    import sys

    from ductile.errors import UsageError

    if sys.stdin is None:  # closed by the caller, as in `<&-`
        raise UsageError(
            "standard input is closed",
            hint="A client of the protocol starts this command, and talks to it there.",
        )
    try:
        from ductile.mcp.stdio import serve_stdio
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"the MCP server needs {missing.name}, which is not installed",
            hint="Install it: pip install 'ductile-runtime[mcp]'",
        ) from None

    def call(operation: str, values: JsonObject) -> JsonObject:
        if operation == "tool.list":
            return request(invocation, operation, values)
        return request_daemon(invocation, operation, values, timeout=_CALL_SECONDS)

    serve_stdio(call, only_operations=invocation.switch("only_operations"))
    return CommandResult(None)
