"""The real daemon with one more subscriber, which kills the process at the n-th time of a signal.

A signal is emitted right after its step is on disk, or right before the next one, so the daemon dies between
two durable steps. `builders.dying_daemons` starts it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import count

from ductile.daemon import serve
from ductile.telemetry.signals import Signal, SignalEvent


def main(config: str, name: str, times: int) -> None:
    emitted = count(1)
    fatal = next((member for member in Signal if member == name), None)

    def die(event: SignalEvent) -> None:
        if event.signal is fatal and next(emitted) == times:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(serve(config, os.environ, subscribers=(die,)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
