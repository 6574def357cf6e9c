"""The directory for the files of a test run: in memory if possible, where commits need no disk."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest creates a directory of its own in it
#: Several times the space that the largest test run has used.
_ENOUGH = 4 * 2**30


def scratch_root() -> Path:
    """Return a file system in memory that is large and allows programs, or the usual temporary directory.

    `TMPDIR` overrides this.
    """
    usual = Path(gettempdir())
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return usual
    system = os.statvfs(_MEMORY)
    if system.f_flag & os.ST_NOEXEC or system.f_bavail * system.f_frsize < _ENOUGH:
        return usual
    return _MEMORY
