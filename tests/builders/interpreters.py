"""The CPythons that this machine has besides the one that runs the tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: The versions that a plugin may be written for and the fork server has to be right in.
MINORS = range(9, 20)
_ASK = "import sys; print(sys.implementation.name, sys.executable, '%d.%d' % sys.version_info[:2])"


@cache
def other_interpreters() -> dict[str, Path]:
    """Version -> interpreter, one of each, without the version of these tests."""
    found: dict[str, Path] = {}
    for candidate in _candidates():
        version, path = _identify(candidate)
        if path is not None and version != f"{sys.version_info.major}.{sys.version_info.minor}":
            found.setdefault(version, path)
    return found


def _candidates() -> Iterator[str]:
    for minor in MINORS:
        if (found := shutil.which(f"python3.{minor}")) is not None:
            yield found
        yield from map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))


def _identify(candidate: str) -> tuple[str, Path | None]:
    """The version it reports: a name on the path may be a wrapper without an interpreter."""
    try:
        asked = subprocess.run(
            [candidate, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
        )
        name, path, version = asked.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", None
    return version, Path(path) if name == "cpython" else None
