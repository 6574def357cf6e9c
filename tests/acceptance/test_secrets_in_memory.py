"""What the daemon keeps of its configuration once it runs (SPEC 8.1)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from builders.daemons import PATIENCE, a_place

#: The daemon with one more subscriber, which looks around as soon as the configuration is in force. That is
#: before what was loaded is taken out of the collector's sight.
LOOKING = """
import asyncio, gc, os, signal, sys
from ductile.app import serve
from ductile.config.load import LoadedConfig
from ductile.config.snapshot import Snapshot
from ductile.telemetry.signals import Signal

def look(happening):
    if happening.signal is Signal.CONFIG_LOADED:
        kept = [type(thing) for thing in gc.get_objects() if type(thing) in (LoadedConfig, Snapshot)]
        print("kept:", *(kind.__name__ for kind in kept), file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)

asyncio.run(serve(sys.argv[1], os.environ, subscribers=(look,)))
"""


def test_what_was_read_does_not_stay(tmp_path: Path) -> None:
    """SPEC 8.1: the files as they were read have every token in the clear; what was made of them has not."""
    place = a_place(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LOOKING, str(place.config)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done
    assert "kept: Snapshot\n" in done.stderr
