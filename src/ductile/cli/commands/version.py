"""`ductile version`: shows the versions of Ductile and Python."""

from __future__ import annotations

import sys

import ductile
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import NO_DAEMON, action


@action("version", "show the version", local_reason=NO_DAEMON)
def show(invocation: Invocation) -> CommandResult:
    python = ".".join(str(part) for part in sys.version_info[:3])
    platform = f" (Python {python}, {sys.platform})" if invocation.verbose else ""
    return CommandResult(
        {"version": ductile.__version__, "python": python}, f"ductile {ductile.__version__}{platform}"
    )
