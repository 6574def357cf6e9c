"""The plugins that are measured, and a configuration that holds them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from ductile.core.json import JsonObject
from ductile.protocol.plugin_messages import PluginRequest, RequestEvent, encode_request

HERE = Path(__file__).parent

_SH = """#!/bin/sh
while read -r line; do :; done
echo '{"status": "ok", "result": "done"}'
"""
_PYTHON = """#!{python}
{imports}import json, sys
json.load(sys.stdin)
json.dump({{"status": "ok", "result": "done"}}, sys.stdout)
"""
_MANIFEST = """manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: "1"
protocol: 2
entrypoint: run
preload: [{preload}]
commands: [handle]
"""


def write_plugins(directory: Path, *, workers: int) -> dict[str, Path]:
    """The plugins by name; `directory` then is a configuration that can be loaded."""
    scripts = {
        "sh": _SH,
        "python": _PYTHON.format(python=sys.executable, imports=""),
        "httpx": _PYTHON.format(python=sys.executable, imports="import httpx\n"),
    }
    entrypoints = {}
    for name in ("c", *scripts):
        plugin = directory / "plugins" / name
        plugin.mkdir(parents=True)
        entrypoint = plugin / "run"
        if name in scripts:
            entrypoint.write_text(scripts[name], encoding="utf-8")
        else:
            compile_c(HERE / "plugin.c", entrypoint, static=True)
        entrypoint.chmod(0o755)
        preload = {"python": "json", "httpx": "json, httpx"}.get(name, "")
        manifest = _MANIFEST.format(name=name, preload=preload)
        (plugin / "manifest.yaml").write_text(manifest, encoding="utf-8")
        entrypoints[name] = entrypoint
    names = "\n".join(f"  {name}: {{}}" for name in entrypoints)
    config = f"service: {{max_workers: {workers}, log_level: error}}\nplugins:\n{names}\n"
    (directory / "config.yaml").write_text(config, encoding="utf-8")
    return entrypoints


def encoded_request(job_id: str, plugin: str, payload: JsonObject, context: JsonObject) -> str:
    """As the daemon writes it for a job that came in over HTTP."""
    now = datetime.now(UTC)
    event = RequestEvent(type="api.trigger", payload=payload, source="api", timestamp=now, event_id=job_id)
    request = PluginRequest(
        job_id=job_id,
        command="handle",
        instance=plugin,
        config={},
        state={},
        context=context,
        deadline_at=now,
        payload=payload,
        event=event,
    )
    return encode_request(request).decode()


def compile_c(source: Path, target: Path, *, static: bool = False) -> None:
    flags = ["-static"] if static else []
    subprocess.run(["cc", "-O2", *flags, "-o", str(target), str(source)], check=True)
