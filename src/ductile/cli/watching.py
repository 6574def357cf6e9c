"""`ductile system watch`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import ask_daemon
from ductile.errors import UsageError


def watch(call: Call) -> Answer:
    try:
        from ductile.watch.screen import WatchApp  # noqa: PLC0415 - 250 ms, and an extra
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"the screen needs {missing.name}, which is not installed",
            hint="Install it: pip install 'ductile-runtime[tui]'",
        ) from None

    def ask(operation: str, given: Mapping[str, object]) -> dict[str, Any]:
        return ask_daemon(call, operation, cast("dict[str, Any]", given))

    ask("system.status", {})  # if nobody is there, that is told here and not on the screen
    WatchApp(ask).run()
    return Answer(data={"watched": True}, text=lambda _: "")
