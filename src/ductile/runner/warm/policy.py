"""Which launches may be forked, and from which server. In any doubt: a plain spawn.

Decides by the first line of the entrypoint and the environment of the job.
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache

from ductile.runner.port import Launch
from ductile.runner.process.spawn_errors import shebang
from ductile.struct import Value, hide_in_repr

#: Variables that change how an interpreter starts or what it loads. A fork cannot reproduce their effects.
_STARTUP_VARIABLES = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES", "__PYVENV_LAUNCHER__")
_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
#: The environment of a server: variables that the interpreter reads, and those that recovery finds it by.
#: None of them is secret.
_SERVER_VARIABLES = ("PATH", "HOME", "LANG", "LANGUAGE", "DUCTILE_STORE_ID", "DUCTILE_DAEMON")


class Interpreter(Value):
    path: str
    #: The word in the first line, which need not be the path of the file.
    argv0: str


@hide_in_repr("environment")
class ServerKey(Value):
    """Launches with the same key can be forked from the same server."""

    interpreter: str
    preload: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


class WarmPlan(Value):
    key: ServerKey
    argv0: str


class ColdStart(Value):
    """Why a launch is spawned."""

    reason: str


def plan_warm_start(launch: Launch) -> WarmPlan | ColdStart:
    if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        return ColdStart(reason="warm start needs Linux")
    if launch.warm is None:
        return ColdStart(reason="warm start is off for this plugin")
    # The first line decides for most plugins that start cold.
    found = _interpreter_of(launch.entrypoint, launch.environment.get("PATH"))
    if isinstance(found, ColdStart):
        return found
    if changing := sorted(name for name in launch.environment if name.startswith(_STARTUP_VARIABLES)):
        return ColdStart(reason=f"{changing[0]} is set, which changes how an interpreter starts")
    if any("\0" in word for pair in launch.environment.items() for word in pair):
        return ColdStart(reason="its environment is not possible")
    if not os.access(f"{launch.directory}/", os.X_OK):  # the slash: it has to be a directory
        return ColdStart(reason="its working directory cannot be entered")
    key = ServerKey(
        interpreter=found.path,
        preload=tuple(sorted(set(launch.warm.preload))),
        environment=tuple(
            (name, value)
            for name, value in sorted(launch.environment.items())
            if name in _SERVER_VARIABLES or name.startswith("LC_")
        ),
    )
    return WarmPlan(key=key, argv0=found.argv0)


def _interpreter_of(entrypoint: str, search_path: str | None) -> Interpreter | ColdStart:
    try:
        found = os.stat(entrypoint)  # noqa: PTH116 - hot path
    except OSError:
        return ColdStart(reason="the entrypoint cannot be run")
    metadata = (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
    first_line = _read_first_line(entrypoint, metadata)
    return first_line if isinstance(first_line, ColdStart) else find_interpreter(first_line, search_path)


@lru_cache(maxsize=256)
def _read_first_line(entrypoint: str, _metadata: tuple[int, ...]) -> str | ColdStart:
    """Cached as long as the file's metadata stay the same: a stat costs a tenth of reading."""
    if not _is_executable_file(entrypoint):
        return ColdStart(reason="the entrypoint cannot be run")
    return shebang(entrypoint) or ""


def find_interpreter(first_line: str | None, search_path: str | None) -> Interpreter | ColdStart:
    """Return the Python that a first line names by its path or through `env`, without options."""
    named = _named_in(first_line or "")
    if not isinstance(named, str):
        return named
    for directory in (search_path or "").split(os.pathsep):
        candidate = f"{directory}/{named}"
        if directory.startswith("/") and _is_executable_file(candidate):
            return Interpreter(path=candidate, argv0=named)
    return ColdStart(reason=f"no {named} was found on PATH")


@lru_cache(maxsize=256)
def _named_in(first_line: str) -> Interpreter | str | ColdStart:
    """Return the interpreter, or a name to search on PATH."""
    if "\r" in first_line:
        return ColdStart(reason="its first line ends with a Windows line break")
    match first_line.split():
        case [path] if path.startswith("/") and _INTERPRETER.fullmatch(os.path.basename(path)):  # noqa: PTH119
            return Interpreter(path=path, argv0=path)
        case [env, name] if env.startswith("/") and env.endswith("/env") and _INTERPRETER.fullmatch(name):
            return name
        case []:
            return ColdStart(reason="it has no first line that names an interpreter")
    return ColdStart(reason="its first line names no Python, or one with options")


def _is_executable_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)  # noqa: PTH116 - hot path
    except OSError:
        return False
