"""`ductile version`"""

from __future__ import annotations

import sys

import ductile
from ductile.cli.answers import Answer, Call


def show(call: Call) -> Answer:
    python = ".".join(str(part) for part in sys.version_info[:3])
    more = f" (Python {python}, {sys.platform})" if call.verbose else ""
    return Answer(
        data={"version": ductile.__version__, "python": python},
        text=lambda _: f"ductile {ductile.__version__}{more}",
    )
