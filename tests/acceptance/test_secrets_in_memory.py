"""Secrets are neither in the daemon's snapshot nor in the processes of other plugins."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from builders.daemons import PATIENCE, a_daemon, a_workspace

#: The daemon with one more subscriber, which lists the loaded objects as soon as the configuration is in
#: force, before they are hidden from the garbage collector.
DAEMON_WITH_INSPECTION = """
import asyncio, gc, os, signal, sys
from ductile.daemon import serve
from ductile.config.load import LoadedConfig
from ductile.config.snapshot import Snapshot
from ductile.telemetry.signals import Signal

def inspect_objects(event):
    if event.signal is Signal.CONFIG_LOADED:
        kept = [type(value) for value in gc.get_objects() if type(value) in (LoadedConfig, Snapshot)]
        print("kept:", *(kind.__name__ for kind in kept), file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)

asyncio.run(serve(sys.argv[1], os.environ, subscribers=(inspect_objects,)))
"""


def test_read_files_do_not_stay_in_memory(tmp_path: Path) -> None:
    """The files have every token in the clear; the snapshot does not."""
    workspace = a_workspace(tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", DAEMON_WITH_INSPECTION, str(workspace.config)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert process.returncode == 0, process
    assert "kept: Snapshot\n" in process.stderr


#: Has a secret, and responds how it was started: a warm process has the environment of its server.
KEEPER = f"""\
#!{sys.executable}
import json, os, sys
json.load(sys.stdin)
started = "cold" if b"DB_PASSWORD" in open("/proc/self/environ", "rb").read() else "warm"
print(json.dumps({{"status": "ok", "result": started + str(len(os.environ["DB_PASSWORD"]))}}))
"""
#: Writes all of its own memory that can be read to a file beside it.
SEARCHER = f"""\
#!{sys.executable}
import os, sys
sys.stdin.read()
target = open(os.path.dirname(os.path.abspath(__file__)) + "/memory", "wb")
for line in open("/proc/self/maps").read().splitlines():
    addresses, mode, *_ = line.split()
    begin, end = (int(address, 16) for address in addresses.split("-"))
    if "r" in mode and "[v" not in line:
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(begin)
            while begin < end:
                try:
                    piece = memory.read(min(65536, end - begin))
                except OSError:
                    break
                if not piece:
                    break
                target.write(piece)
                begin += len(piece)
target.close()
print('{{"status": "ok", "result": "written"}}')
"""


def test_a_warm_plugin_does_not_find_the_secrets_of_another(tmp_path: Path) -> None:
    """Both plugins are forked from one server; a job must not find the data of another."""
    secret, marker = "canary-" + "5b7e" * 8, "marker-" + "1d3c" * 8
    more = (
        f"  keeper: {{env: {{DB_PASSWORD: {secret}}}, config: {{token: {secret}}}}}\n"
        f"  searcher: {{env: {{OWN: {marker}}}}}\n"
    )
    workspace = a_workspace(tmp_path, more)
    workspace.plugin("keeper", KEEPER)
    directory = workspace.plugin("searcher", SEARCHER)
    with a_daemon(workspace):
        for _ in range(3):
            assert workspace.json("run", "keeper")["result"]["result"] == f"warm{len(secret)}"
            assert workspace.ductile("run", "searcher").status == 0
            memory = (directory / "memory").read_bytes()
            assert marker.encode() in memory, "nothing was looked at"
            assert secret.encode() not in memory


#: Responds with the limits of a core dump of its process: the soft and the hard one.
LIMITED = f"""\
#!{sys.executable}
import json, resource, sys
json.load(sys.stdin)
print(json.dumps({{"status": "ok", "result": str(resource.getrlimit(resource.RLIMIT_CORE))}}))
"""


def test_the_daemon_leaves_no_core_dump(tmp_path: Path) -> None:
    """Plugins inherit the limit, and may raise it up to the original hard limit."""
    workspace = a_workspace(tmp_path, "  limited: {}\n")
    workspace.plugin("limited", LIMITED)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        with a_daemon(workspace) as daemon:
            limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
            assert "Max core file size        0 " in limits
            assert workspace.json("run", "limited")["result"]["result"] == str((0, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
