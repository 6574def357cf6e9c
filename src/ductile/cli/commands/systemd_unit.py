"""`ductile system unit`"""

from __future__ import annotations

from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Option, action

#: Seconds for `systemctl --version`.
_SYSTEMCTL_TIMEOUT = 5.0


@action(
    "unit",
    "print a systemd unit for this configuration",
    options=(Option(("--user",), "the user it runs as (default ductile)", "NAME"),),
    about="Put it under /etc/systemd/system. It says what to do before the first start, restarts "
    "after every crash but not for a configuration that cannot be used, and drops rights that a "
    "daemon does not need.",
)
def print_unit(call: Invocation) -> CommandResult:
    import shutil
    import sys
    from pathlib import Path

    from ductile.admin.config import open_configuration
    from ductile.admin.systemd_unit import systemd_unit

    opened = open_configuration(call.config, call.environ)
    # The whole path of this program: systemd does not search our PATH.
    command = Path(shutil.which(sys.argv[0]) or shutil.which("ductile") or sys.argv[0]).absolute()
    user = call.optional("user") or "ductile"
    unit = systemd_unit(opened.snapshot, opened.loaded.directory, command, user, version=_systemd_version())
    return CommandResult({"unit": unit}, lambda _: unit.rstrip("\n"))


def _systemd_version() -> int | None:
    """The version of systemd on this machine; None without one."""
    import re
    import subprocess

    try:
        output = subprocess.run(
            ["systemctl", "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SYSTEMCTL_TIMEOUT,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"systemd (\d+)", output)
    return None if found is None else int(found[1])
