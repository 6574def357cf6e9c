"""The list of tools of a gateway with six hundred commands, in pages."""

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


def gateway(directory: Path, names: list[str]) -> Snapshot:
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
            store=cast("Any", None),  # the list comes from the configuration alone
            snapshot=lambda: self.snapshot,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            rng=Random(1),
            source=Source(submitted_by=SubmittedBy.MCP, scopes=self.scopes),
        )
        found = await list_tools(context, ListTools(**request))
        return found.tools, found.next_cursor

    async def pages(self, **request: Any) -> list[list[ListedTool]]:
        tools, cursor = await self.page(**request)
        found = [tools]
        while cursor is not None:
            tools, cursor = await self.page(cursor=cursor, **request)
            found.append(tools)
        return found


@pytest.fixture(scope="module")
def six_hundred(tmp_path_factory: pytest.TempPathFactory) -> Caller:
    directory = tmp_path_factory.mktemp("many") / "all"
    return Caller(snapshot=gateway(directory, [f"plugin-{number:03}" for number in range(200)]))


async def test_pages_have_every_tool_once_and_operations_first(six_hundred: Caller) -> None:
    pages = await six_hundred.pages(limit=50)
    names = [each.name for page in pages for each in page]
    assert {len(page) for page in pages[:-1]} == {50}
    assert names == [each.name for each in (await six_hundred.page())[0]]
    assert names[: len(TOOLS)] == list(TOOLS)
    assert len(names) == len(set(names)) == len(TOOLS) + 600 + 1
    assert names[len(TOOLS) :] == sorted(names[len(TOOLS) :])


async def test_a_change_between_two_pages_moves_no_other_tool(tmp_path: Path) -> None:
    """Also if the tool that the cursor names has gone meanwhile."""
    names = [f"plugin-{number}" for number in range(10)]
    before = Caller(snapshot=gateway(tmp_path / "before", names))
    whole = [each.name for each in (await before.page())[0]]
    after = Caller(snapshot=gateway(tmp_path / "after", ["another", *names[:4], *names[5:], "plugin-55"]))
    for limit in range(1, len(whole)):
        first, cursor = await before.page(limit=limit)
        rest, _ = await after.page(cursor=cursor)
        seen = [each.name for each in (*first, *rest)]
        assert len(seen) == len(set(seen))
        assert {each for each in whole if "plugin-4__" not in each} <= set(seen)


async def test_a_cursor_that_is_none_is_refused(six_hundred: Caller) -> None:
    """The advice holds over HTTP and MCP, whose fields have different names."""
    with pytest.raises(UsageError, match="cursor") as refused:
        await six_hundred.page(cursor="nothing")
    assert "cursor" not in str(refused.value.hint)


async def test_pages_and_finds_have_only_what_the_scopes_allow(tmp_path: Path) -> None:
    names = [f"plugin-{number}" for number in range(5)]
    caller = Caller(snapshot=gateway(tmp_path / "some", names), scopes=("plugin-3:rw",))
    listed = {each.name for page in await caller.pages(limit=3) for each in page}
    configured = {each for each in listed if each not in TOOLS}
    assert configured == {f"run__plugin-3__{command}" for command in ("look", "change", "poll")}
    found, cursor = await caller.page(query="plugin change", limit=100)
    assert {each.name for each in found} <= listed
    assert (found[0].name, cursor) == ("run__plugin-3__change", None)


async def test_a_command_says_what_a_call_may_do(tmp_path: Path) -> None:
    """A command that reads changes nothing; one that may be repeated replaces nothing for good."""
    commands = "  look: {type: read}\n  set: {retry_safe: true}\n  send: {retry_safe: false}\n  do: {}\n"
    snapshot = a_snapshot(tmp_path, "plugins: {tool: {}}\n", tool=commands)
    tools, _ = await Caller(snapshot=snapshot).page(query="tool")
    said = {
        each.name: (each.read_only, each.destructive, each.idempotent)
        for each in tools
        if each.name not in TOOLS
    }
    assert said == {
        "run__tool__look": (True, False, True),
        "run__tool__set": (False, False, True),
        "run__tool__send": (False, True, False),
        "run__tool__do": (False, True, False),
    }


async def test_one_of_six_hundred_is_found_at_a_hundredth_of_the_price(six_hundred: Caller) -> None:
    """The list is what an agent has in its context; the page `what-an-agent-can-do` names these figures."""
    whole = tokens((await six_hundred.page())[0])
    operations = tokens((await six_hundred.page(operations=True))[0])
    found, _ = await six_hundred.page(query="change plugin-117", limit=5)
    assert found[0].name == "run__plugin-117__change"
    assert tokens(found) * 100 < whole
    assert operations < 8_000
    assert whole < 130 * 600 + operations


def tokens(tools: list[ListedTool]) -> int:
    """As the server of the Model Context Protocol lists them: without schemas of answers."""
    shown = [{**to_builtins(each), "output_schema": None} for each in tools]
    return len(json.dumps(shown, separators=(",", ":"))) // BYTES_PER_TOKEN
