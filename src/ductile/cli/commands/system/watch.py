"""`ductile system watch`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ductile.cli.client import request_daemon
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import action

if TYPE_CHECKING:
    from collections.abc import Mapping


@action(
    "watch",
    "watch what runs, waits and happens in the terminal, and step in",
    about="Keys: Tab moves between the tables, Enter shows a job, c cancels it, t retries what ended "
    "badly, r runs a schedule or a plugin now, p pauses or resumes a schedule, q leaves. Needs the "
    "extra `tui`.",
)
def watch(call: Invocation) -> CommandResult:
    import sys

    from ductile.errors import UsageError

    if call.json or not (call.out.isatty() and sys.stdin.isatty()):
        raise UsageError(
            "the screen needs a terminal, and has no JSON",
            hint="for programs: ductile event tail --follow --json, or ductile status --json",
        )
    try:
        from ductile.watch.screen import WatchApp
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"the screen needs {missing.name}, which is not installed",
            hint="Install it: pip install 'ductile-runtime[tui]'",
        ) from None

    def ask(operation: str, fields: Mapping[str, object]) -> dict[str, Any]:
        return request_daemon(call, operation, cast("dict[str, Any]", fields))

    ask("system.status", {})  # reports a missing daemon here and not on the screen
    WatchApp(ask).run()
    return CommandResult(None)
