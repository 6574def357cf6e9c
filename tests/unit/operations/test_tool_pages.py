"""The list of the tools of a daemon with six hundred commands, in pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from builders.snapshots import a_snapshot
from ductile.core.jobs.model import SubmittedBy
from ductile.errors import UsageError
from ductile.operations.context import OperationContext, Source
from ductile.operations.tools.catalogue import ListedTool, ListTools, list_tools
from ductile.operations.tools.table import TOOLS
from ductile.struct import to_builtins

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.config.snapshot import Snapshot

COMMANDS = """\
  look:
    type: read
    description: Reads what there is
    input_schema: {where: string}
  change:
    description: Changes a thing for good
    input_schema: {type: object, required: [name], properties: {name: {type: string}, value: {type: number}}}
  poll: {description: Looks for what is new}
"""
BYTES_PER_TOKEN = 4


def snapshot_with(directory: Path, names: list[str]) -> Snapshot:
    directory.mkdir()
    plugins = "".join(f"  {name}: {{uses: tool}}\n" for name in names)
    return a_snapshot(
        directory,
        f"plugins:\n{plugins}pipelines:\n  - {{name: all, steps: [{{uses: {names[0]}.change}}]}}\n",
        tool=COMMANDS,
    )


@dataclass(kw_only=True)
class Caller:
    snapshot: Snapshot
    scopes: tuple[str, ...] | None = None

    async def page(self, **request: Any) -> tuple[list[ListedTool], str | None]:
        context = OperationContext(
            store=cast("Any", None),  # the list depends on the configuration only
            snapshot=lambda: self.snapshot,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            rng=Random(1),
            source=Source(submitted_by=SubmittedBy.MCP, scopes=self.scopes),
        )
        response = await list_tools(context, ListTools(**request))
        return response.tools, response.next_cursor

    async def pages(self, **request: Any) -> list[list[ListedTool]]:
        tools, cursor = await self.page(**request)
        pages = [tools]
        while cursor is not None:
            tools, cursor = await self.page(cursor=cursor, **request)
            pages.append(tools)
        return pages


@pytest.fixture(scope="module")
def many_tools(tmp_path_factory: pytest.TempPathFactory) -> Caller:
    directory = tmp_path_factory.mktemp("many") / "all"
    return Caller(snapshot=snapshot_with(directory, [f"plugin-{number:03}" for number in range(200)]))


async def test_pages_have_every_tool_once_and_operations_first(many_tools: Caller) -> None:
    pages = await many_tools.pages(limit=50)
    names = [tool.name for page in pages for tool in page]
    assert {len(page) for page in pages[:-1]} == {50}
    assert names == [tool.name for tool in (await many_tools.page())[0]]
    assert names[: len(TOOLS)] == list(TOOLS)
    assert len(names) == len(set(names)) == len(TOOLS) + 600 + 1
    assert names[len(TOOLS) :] == sorted(names[len(TOOLS) :])


async def test_a_change_between_two_pages_moves_no_other_tool(tmp_path: Path) -> None:
    """This holds also if the tool that the cursor names is removed."""
    names = [f"plugin-{number}" for number in range(10)]
    before = Caller(snapshot=snapshot_with(tmp_path / "before", names))
    all_names = [tool.name for tool in (await before.page())[0]]
    after = Caller(
        snapshot=snapshot_with(tmp_path / "after", ["another", *names[:4], *names[5:], "plugin-55"])
    )
    for limit in range(1, len(all_names)):
        first, cursor = await before.page(limit=limit)
        remaining, _ = await after.page(cursor=cursor)
        listed_names = [tool.name for tool in (*first, *remaining)]
        assert len(listed_names) == len(set(listed_names))
        assert {tool for tool in all_names if "plugin-4__" not in tool} <= set(listed_names)


async def test_a_cursor_that_is_none_is_refused(many_tools: Caller) -> None:
    """The hint is valid for HTTP and MCP, which name the field differently."""
    with pytest.raises(UsageError, match="cursor") as excinfo:
        await many_tools.page(cursor="nothing")
    assert "cursor" not in str(excinfo.value.hint)


async def test_pages_and_finds_have_only_what_the_scopes_allow(tmp_path: Path) -> None:
    names = [f"plugin-{number}" for number in range(5)]
    caller = Caller(snapshot=snapshot_with(tmp_path / "some", names), scopes=("plugin-3:rw",))
    tool_names = {tool.name for page in await caller.pages(limit=3) for tool in page}
    configured = {tool for tool in tool_names if tool not in TOOLS}
    assert configured == {f"run__plugin-3__{command}" for command in ("look", "change", "poll")}
    matches, cursor = await caller.page(query="plugin change", limit=100)
    assert {tool.name for tool in matches} <= tool_names
    assert (matches[0].name, cursor) == ("run__plugin-3__change", None)


async def test_a_command_says_what_a_call_may_do(tmp_path: Path) -> None:
    """A read command changes nothing; a command that may be repeated is not destructive."""
    commands = "  look: {type: read}\n  set: {retry_safe: true}\n  send: {retry_safe: false}\n  do: {}\n"
    snapshot = a_snapshot(tmp_path, "plugins: {tool: {}}\n", tool=commands)
    tools, _ = await Caller(snapshot=snapshot).page(query="tool")
    hints = {
        tool.name: (tool.read_only, tool.destructive, tool.idempotent)
        for tool in tools
        if tool.name not in TOOLS
    }
    assert hints == {
        "run__tool__look": (True, False, True),
        "run__tool__set": (False, False, True),
        "run__tool__send": (False, True, False),
        "run__tool__do": (False, True, False),
    }


async def test_one_of_six_hundred_is_found_at_a_hundredth_of_the_price(many_tools: Caller) -> None:
    """The page `what-an-agent-can-do` contains these figures."""
    all_tokens = count_tokens((await many_tools.page())[0])
    operation_tokens = count_tokens((await many_tools.page(operations=True))[0])
    matches, _ = await many_tools.page(query="change plugin-117", limit=5)
    assert matches[0].name == "run__plugin-117__change"
    assert count_tokens(matches) * 100 < all_tokens
    assert operation_tokens < 8_000
    assert all_tokens < 130 * 600 + operation_tokens


def count_tokens(tools: list[ListedTool]) -> int:
    """Return the approximate tokens of the list as an MCP server sends it, without schemas of responses."""
    listing = [{**to_builtins(tool), "output_schema": None} for tool in tools]
    return len(json.dumps(listing, separators=(",", ":"))) // BYTES_PER_TOKEN
