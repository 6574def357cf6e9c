"""An agent that is a program: it calls tools, follows the calls that answers name, and counts."""

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
    """Calls tools and counts: a token is four bytes of the text of an answer."""

    agent: Agent
    calls: int = 0
    size: int = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.agent.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        self.calls += 1
        self.size += len(content.text.encode())
        answer: dict[str, Any] = json.loads(content.text)
        return answer

    async def follow(self, advice: str | list[str], wanted: str) -> dict[str, Any]:
        """Do the call of this tool that an advice names."""
        text = advice if isinstance(advice, str) else " ".join(advice)
        found = next(each for each in _CALL.finditer(text) if each["tool"] == wanted)
        given = dict(pair.split("=", 1) for pair in found["given"].split())
        return await self.call(wanted, **given)

    async def change(self, **changes: Any) -> dict[str, Any]:
        """Plan and apply, if the plan is possible."""
        plan = await self.call("config_plan", **changes)
        return await self.call("config_apply", plan=plan["plan"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    #: As an operator would say it. It is all that the agent knows beforehand.
    text: str
    inject: Callable[[Gateway], Any]
    solve: Callable[[Operator], Awaitable[Any]]
    #: Looks at the gateway from outside; gets what `inject` has returned.
    grade: Callable[[Gateway, Any], None]
