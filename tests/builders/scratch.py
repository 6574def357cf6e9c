"""Where the files of a test run lie: in memory if they can, as a store waits for its disk at each commit."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a directory of its own below it
#: Several times as much as the largest test run has held.
_ENOUGH = 4 * 2**30


def scratch_root() -> Path:
    """Return a file system in memory that is large and runs programs, or the usual place for such files.

    `TMPDIR` counts more: it names the place to use.
    """
    usual = Path(gettempdir())
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return usual
    system = os.statvfs(_MEMORY)
    if system.f_flag & os.ST_NOEXEC or system.f_bavail * system.f_frsize < _ENOUGH:
        return usual
    return _MEMORY
