"""Waiting for a process that is not our child to be gone."""

from __future__ import annotations

import os
import select
import time

#: Where the system cannot tell, we look now and then.
_LOOK_EVERY = 0.05


def wait_for_exit(pid: int) -> None:
    if not hasattr(os, "pidfd_open"):
        _look_until_gone(pid)
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Readable means ended, whether or not its parent has noticed.
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def _look_until_gone(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(_LOOK_EVERY)
