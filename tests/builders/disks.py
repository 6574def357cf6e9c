"""A disk that is small or read-only: a mount that only one script sees."""

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
    """Run a shell script in which `disk` is a filesystem of this size, and return its result.

    The script can call `ductile`, and `fill`, which fills the disk. The test is skipped where only root may
    mount.
    """
    if shutil.which("unshare") is None or subprocess.run([*_ALONE, "true"], check=False).returncode:
        pytest.skip("mounts of one's own are not allowed here")
    (directory / "disk").mkdir()
    setup = (
        f"mount -t tmpfs -o size={kib}k tmpfs disk || exit 99\n"
        "fill() { dd if=/dev/zero of=disk/filling bs=1k 2>/dev/null; }\n"
        f'ductile() {{ {DUCTILE} "$@"; }}\n'
    )
    result = subprocess.run(
        [*_ALONE, "sh", "-c", setup + script],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert result.returncode != 99, result.stderr
    return CommandResult(status=result.returncode, out=result.stdout, err=result.stderr)
