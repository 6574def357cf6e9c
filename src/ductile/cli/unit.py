"""`ductile system unit`"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ductile.cli.answers import Answer, Call


def print_unit(call: Call) -> Answer:
    from ductile.operations.configuration import open_configuration  # noqa: PLC0415 - reads the configuration
    from ductile.operations.unit import systemd_unit  # noqa: PLC0415

    opened = open_configuration(call.config, call.environ)
    user = call.optional("user") or "ductile"
    unit = systemd_unit(opened.snapshot, opened.loaded.directory, _command(), user)
    return Answer(data={"unit": unit}, text=lambda _: unit.rstrip("\n"))


def _command() -> Path:
    """The program as it was called, by its whole path: systemd knows no PATH of ours."""
    found = shutil.which(sys.argv[0]) or shutil.which("ductile") or sys.argv[0]
    return Path(found).absolute()
