"""A disk that is small, or may not be written to: a mount that only the commands of one script see."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builders.terminal import DUCTILE, CommandResult

_ALONE = ("unshare", "--user", "--map-root-user", "--mount")
PATIENCE = 60


def on_a_disk(directory: Path, script: str, *, kib: int = 1200) -> CommandResult:
    """Run a shell script where `disk` is a filesystem of this size. Returns what it printed.

    The script can call `ductile` and `fill`, which leaves no room at all. Skipped where the kernel allows
    only root to mount.
    """
    if shutil.which("unshare") is None or subprocess.run([*_ALONE, "true"], check=False).returncode:
        pytest.skip("mounts of one's own are not allowed here")
    (directory / "disk").mkdir()
    begin = (
        f"mount -t tmpfs -o size={kib}k tmpfs disk || exit 99\n"
        "fill() { dd if=/dev/zero of=disk/filling bs=1k 2>/dev/null; }\n"
        f'ductile() {{ {DUCTILE} "$@"; }}\n'
    )
    done = subprocess.run(
        [*_ALONE, "sh", "-c", begin + script],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode != 99, done.stderr
    return CommandResult(status=done.returncode, out=done.stdout, err=done.stderr)
