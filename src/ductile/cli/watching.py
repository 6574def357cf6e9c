"""`ductile system watch`"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

from ductile.cli.client import request_daemon
from ductile.cli.invocation import CommandResult, Invocation
from ductile.errors import UsageError


def watch(call: Invocation) -> CommandResult:
    _need_a_terminal(call)
    try:
        from ductile.watch.screen import WatchApp  # noqa: PLC0415 - 250 ms, and an extra
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"the screen needs {missing.name}, which is not installed",
            hint="Install it: pip install 'ductile-runtime[tui]'",
        ) from None

    def ask(operation: str, given: Mapping[str, object]) -> dict[str, Any]:
        return request_daemon(call, operation, cast("dict[str, Any]", given))

    ask("system.status", {})  # if nobody is there, that is told here and not on the screen
    WatchApp(ask).run()
    return CommandResult(data=None)


def _need_a_terminal(call: Invocation) -> None:
    """Without one the screen would wait for a key that nobody can press."""
    if call.json or not (call.out.isatty() and sys.stdin.isatty()):
        raise UsageError(
            "the screen needs a terminal, and has no JSON",
            hint="for programs: ductile event tail --follow --json, or ductile status --json",
        )
