"""A program in the place of an agent: it calls tools, follows advice, and counts calls and bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from builders.faults import Gateway
from builders.mcp import Agent

#: A call that an advice names: `schedule_resume plugin=backup schedule=nightly`.
_CALL = re.compile(r"\b(?P<tool>[a-z]+(?:_[a-z]+)+)(?P<given>(?: \w+=[^\s,;()]+)+)")


@dataclass(slots=True, kw_only=True)
class Operator:
    """Calls tools, and counts the calls and the bytes of their answers."""

    agent: Agent
    calls: int = 0
    size: int = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.agent.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        self.calls += 1
        self.size += len(content.text.encode())
        response: dict[str, Any] = json.loads(content.text)
        return response

    async def follow(self, advice: str | list[str], tool: str) -> dict[str, Any]:
        """Make the call of this tool that an advice names."""
        text = advice if isinstance(advice, str) else " ".join(advice)
        match = next(match for match in _CALL.finditer(text) if match["tool"] == tool)
        arguments = dict(pair.split("=", 1) for pair in match["given"].split())
        return await self.call(tool, **arguments)

    async def change(self, **changes: Any) -> dict[str, Any]:
        """Plan and apply, if the plan is possible."""
        plan = await self.call("config_plan", **changes)
        return await self.call("config_apply", plan=plan["plan"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    #: The words of the operator. The agent knows nothing else beforehand.
    text: str
    inject: Callable[[Gateway], Any]
    solve: Callable[[Operator], Awaitable[Any]]
    #: Checks the gateway from outside. The second argument is the return value of `inject`.
    grade: Callable[[Gateway, Any], None]
