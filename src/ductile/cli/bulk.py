"""Commands that change one thing by its id, or all that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, one_line
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ductile.cli.client import Document
    from ductile.core.json import JsonObject


def single_change_fields(invocation: Invocation, argument: str, field: str) -> JsonObject:
    """Return the fields of the request to change the item that an argument names.

    Raises UsageError if filters are given too.
    """
    filters = {
        option.flags[-1]
        for option in invocation.action.options
        if option.field not in (None, "dry_run") and invocation.arguments.get(option.destination)
    }
    if filters:
        from ductile.errors import UsageError

        raise UsageError(
            f"{argument} and {', '.join(sorted(filters))} contradict each other",
            hint=f"Name one {argument}, or leave it out and give filters.",
        )
    return {field: invocation.text(argument), "dry_run": invocation.switch("dry_run")}


def change_result(
    response: Document, titles: tuple[str, str], table: Callable[[Document, Console], str]
) -> CommandResult:
    """Return the result of a change of everything that matches: counts, refusals, and how to continue.

    `titles` are the beginnings of the first line after a change, and after a dry run. `table` renders the
    matching rows. The exit status is 1 if some changes were refused.
    """
    from ductile.errors import Exit

    dry_run = bool(response.get("dry_run"))
    status = Exit.FAILURE if response["refused"] or response["stopped"] else Exit.OK

    def text(console: Console) -> str:
        if not response["matched"]:
            return "Nothing matches."
        lines = [f"{titles[dry_run]} {response['changed']} of {response['matched']}."]
        if dry_run and (rows := table(response, console)):
            lines += ["", rows]
            if (row_count := rows.count("\n")) < response["changed"]:
                lines.append(f"and {response['changed'] - row_count} more")
        if response["refused"]:
            lines += ["", f"{'Would be refused' if dry_run else 'Refused'}: {response['refused']}"]
            lines += [f"  {row['id']}  {one_line(row['message'])}" for row in response["refusals"]]
            if (more := response["refused"] - len(response["refusals"])) > 0:
                lines.append(f"  and {fmt.count(more, 'other')}")
        if response["stopped"]:
            lines += ["", f"Stopped early: {response['stopped']}. The same command again continues."]
        elif response["remaining"]:
            lines += [
                "",
                f"{response['remaining']} more match: the same command again continues, or --limit.",
            ]
        return "\n".join(lines)

    return CommandResult(response, text, exit_status=status)
