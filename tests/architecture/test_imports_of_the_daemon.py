"""A daemon without HTTP and without state webhooks does not load the libraries that only those need."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from ductile.cli import commands

#: Libraries that take megabytes or tens of milliseconds each.
_LAZY = (
    "aiohttp",
    "jsonschema_rs",
    "mcp",
    "prometheus_client",
    "pydantic",
    "ruamel",
    "starlette",
    "textual",
    "uvicorn",
)


def test_the_daemon_loads_large_libraries_when_they_are_needed() -> None:
    code = f"import sys, ductile.daemon; print([name for name in {_LAZY!r} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert process.stdout.strip() == "[]"


def test_each_command_imports_what_it_needs() -> None:
    """Most tests fork commands from a process that has imported everything, which hides cycles."""
    code = (
        "import importlib, os, sys\n"
        "for name in sys.argv[1:]:\n"
        "    pid = os.fork()\n"
        "    if pid == 0: importlib.import_module(name); os._exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0, name\n"
    )
    names = [
        module.name
        for module in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
        if not module.name.endswith(".mcp")  # imports an extra that may not be there
    ]
    assert len(names) > 20
    subprocess.run([sys.executable, "-c", code, *names, "ductile.daemon"], check=True)
