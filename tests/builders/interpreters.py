"""The other CPython interpreters of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: The minor versions that plugins may use and that the fork server has to support.
MINORS = range(9, 20)
_PROGRAM = "import sys; print(sys.implementation.name, sys.executable, '%d.%d' % sys.version_info[:2])"


@cache
def other_interpreters() -> dict[str, Path]:
    """Return one interpreter for each version except that of these tests: version -> path."""
    interpreters: dict[str, Path] = {}
    for candidate in _candidates():
        version, path = _identify(candidate)
        if path is not None and version != f"{sys.version_info.major}.{sys.version_info.minor}":
            interpreters.setdefault(version, path)
    return interpreters


def _candidates() -> Iterator[str]:
    for minor in MINORS:
        if (path := shutil.which(f"python3.{minor}")) is not None:
            yield path
        yield from map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))


def _identify(candidate: str) -> tuple[str, Path | None]:
    """Return the version and path that a program reports: it may be a wrapper without an interpreter."""
    try:
        result = subprocess.run(
            [candidate, "-I", "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True
        )
        name, path, version = result.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", None
    return version, Path(path) if name == "cpython" else None
