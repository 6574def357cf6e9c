"""`ductile system sweep`"""

from __future__ import annotations

from ductile.cli.client import Document, request
from ductile.cli.console.format import format_fields
from ductile.cli.console.progress import show_waiting
from ductile.cli.invocation import CommandResult, Invocation


def sweep(call: Invocation) -> CommandResult:
    with show_waiting(call, "the sweep"):
        done = request(call, "system.sweep", {"dry_run": call.switch("dry_run")}, patience=None)
    return CommandResult(data=done, text=lambda _: _text(done))


def _text(done: Document) -> str:
    if not done["removed"]:
        return "Nothing has been kept for longer than it should be."
    title = "Would remove at least:" if done.get("dry_run") else "Removed:"
    rows = ((kind.replace("_", " "), str(count)) for kind, count in done["removed"].items())
    return "\n".join([title, *format_fields(rows)])
