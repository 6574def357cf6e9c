"""Whose daemon it is: which configuration it was started with.

A link beside a configuration leads to its daemon. A copy of the directory has a copy of the link, and may not
command the original's daemon by it: so the daemon is asked what it was started with.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from ductile.control.client import ask
from ductile.control.patience import FrozenDaemonError
from ductile.core.json_values import JsonObject
from ductile.errors import DuctileError

WHOSE = "daemon.config"
_SECONDS = 5.0


def naming(config_file: Path) -> Callable[[JsonObject], Awaitable[JsonObject]]:
    """The operation by which a daemon names its configuration."""
    named: JsonObject = {"config": os.path.realpath(config_file)}

    async def whose(_given: JsonObject) -> JsonObject:
        return named

    return whose


def is_daemon_of(socket: Path, config_file: Path) -> bool:
    """Whether the daemon that listens there was started with this file; one that cannot tell was not.
    Raises `FrozenDaemonError` of one that is stopped, which may have been.
    """
    try:
        said = ask(socket, WHOSE, {}, timeout=_SECONDS)
    except FrozenDaemonError:
        raise
    except DuctileError:
        return False
    return said.get("config") == os.path.realpath(config_file)
