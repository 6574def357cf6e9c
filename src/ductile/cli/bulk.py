"""Commands that change one thing by its id, or all that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, one_line
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ductile.cli.client import Document


def single_request(invocation: Invocation, argument: str, field: str) -> Document:
    """The request to change the item that an argument names. UsageError if filters are given as well."""
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
    done: Document, words: tuple[str, str], table: Callable[[Document, Console], str]
) -> CommandResult:
    """The result of a change of all that match: counts, refusals, and how to go on.

    `words` begin the first line: those of a change, and those of a dry run. Exit status 1 if
    some were refused.
    """
    from ductile.errors import Exit

    dry_run = bool(done.get("dry_run"))
    status = Exit.FAILURE if done["refused"] or done["stopped"] else Exit.OK

    def text(console: Console) -> str:
        if not done["matched"]:
            return "Nothing matches."
        lines = [f"{words[dry_run]} {done['changed']} of {done['matched']}."]
        if dry_run and (rows := table(done, console)):
            lines += ["", rows]
            if (row_count := rows.count("\n")) < done["changed"]:
                lines.append(f"and {done['changed'] - row_count} more")
        if done["refused"]:
            lines += ["", f"{'Would be refused' if dry_run else 'Refused'}: {done['refused']}"]
            lines += [f"  {row['id']}  {one_line(row['message'])}" for row in done["refusals"]]
            if (more := done["refused"] - len(done["refusals"])) > 0:
                lines.append(f"  and {fmt.count(more, 'other')}")
        if done["stopped"]:
            lines += ["", f"Stopped early: {done['stopped']}. The same command again continues."]
        elif done["remaining"]:
            lines += ["", f"{done['remaining']} more match: the same command again continues, or --limit."]
        return "\n".join(lines)

    return CommandResult(done, text, exit_status=status)
