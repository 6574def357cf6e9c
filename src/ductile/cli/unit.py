"""`ductile system unit`"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from ductile.cli.invocation import CommandResult, Invocation

_PATIENCE = 5.0


def print_unit(call: Invocation) -> CommandResult:
    from ductile.admin.config import open_configuration  # noqa: PLC0415 - reads the configuration
    from ductile.admin.systemd_unit import systemd_unit  # noqa: PLC0415

    opened = open_configuration(call.config, call.environ)
    user = call.optional("user") or "ductile"
    unit = systemd_unit(
        opened.snapshot, opened.loaded.directory, _command(), user, version=_systemd_version()
    )
    return CommandResult(data={"unit": unit}, text=lambda _: unit.rstrip("\n"))


def _systemd_version() -> int | None:
    """The version of the systemd of this machine, if there is one."""
    try:
        told = subprocess.run(
            ["systemctl", "--version"], capture_output=True, text=True, check=True, timeout=_PATIENCE
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"systemd (\d+)", told)
    return None if found is None else int(found[1])


def _command() -> Path:
    """The program as it was called, by its whole path: systemd knows no PATH of ours."""
    found = shutil.which(sys.argv[0]) or shutil.which("ductile") or sys.argv[0]
    return Path(found).absolute()
