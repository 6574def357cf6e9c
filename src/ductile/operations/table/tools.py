"""Rows: tools of agents."""

from __future__ import annotations

from ductile.operations.operation import ANY_TOKEN, get, post
from ductile.operations.table.row import exclusive, read

TOOLS = (
    read(
        "tool.list",
        "tools.catalogue:list_tools",
        "The tools that an agent with this token may call, with their schemas",
        ANY_TOKEN,
        get("/tools", tag="tools"),
    ),
    exclusive(
        "tool.call",
        "tools.call:call_tool",
        "Call a tool; one that starts a job waits for its end for a time",
        ANY_TOKEN,
        post(
            "/tools/{tool}",
            message="The tool has answered.",
            tag="tools",
            statuses=(200, 404, 409, 410, 422),
            submits=True,
            waits=True,
        ),
        waits=True,
    ),
)
