"""A daemon without HTTP and without state webhooks does not load the libraries that only those need."""

from __future__ import annotations

import subprocess
import sys

#: Each of these takes megabytes or tens of milliseconds.
_LAZY = ("aiohttp", "jsonschema_rs", "prometheus_client", "ruamel", "textual", "uvicorn")


def test_the_daemon_loads_large_libraries_when_they_are_needed() -> None:
    code = f"import sys, ductile.daemon; print([name for name in {_LAZY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"
