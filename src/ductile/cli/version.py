"""`ductile version`"""

from __future__ import annotations

import sys

import ductile
from ductile.cli.invocation import CommandResult, Invocation


def show(call: Invocation) -> CommandResult:
    python = ".".join(str(part) for part in sys.version_info[:3])
    more = f" (Python {python}, {sys.platform})" if call.verbose else ""
    return CommandResult(
        data={"version": ductile.__version__, "python": python},
        text=lambda _: f"ductile {ductile.__version__}{more}",
    )
