"""A workspace with an example of everything that the dashboard shows."""

from __future__ import annotations

import json
from pathlib import Path

from builders.daemons import Workspace, answering
from builders.http import token_for
from builders.plugins import MANIFEST, a_plugin

TOKEN = token_for("*")
READER = "canary-dashboard-5d1f-reader"
#: Sets a variable of the page if it becomes markup.
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'

#: Prints a line, and waits until the file `until` of its payload exists. It is a file and not a pipe, because
#: any number of executions may wait for it.
WAITS = """#!/usr/bin/env python3
import json, pathlib, sys, time
payload = json.load(sys.stdin).get("event", {}).get("payload", {})
print("first line", file=sys.stderr, flush=True)
while not pathlib.Path(payload["until"]).exists():
    time.sleep(0.02)
print("last line", file=sys.stderr, flush=True)
event = {"type": "waits.done", "payload": payload}
print(json.dumps({"status": "ok", "result": "all of it", "events": [event]}))
"""
#: Fails until there is a file `mended` beside it.
MAYBE = (
    "#!/bin/sh\ncat >/dev/null\n"
    'if [ -e "$(dirname "$0")/mended" ]; then echo \'{"status": "ok", "result": "mended"}\'; exit; fi\n'
    'echo "cannot reach the printer at 10.0.0.7" >&2\n'
    'echo \'{"status": "error", "retry": false, "error": "the printer does not answer"}\'\n'
)
GREETER = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
payload = request.get("event", {}).get("payload") or request.get("payload") or {}
print("greeting", payload.get("name"), file=sys.stderr)
print(json.dumps({"status": "ok", "result": "hello " + str(payload.get("name")),
                  "events": [{"type": "greeter.said", "payload": payload}],
                  "state_updates": {"last": payload.get("name"), "api_key": "canary-state"}}))
"""
GREETER_MANIFEST = (
    MANIFEST.format(name="greeter", entrypoint="run.sh").replace("commands: [poll, handle, health]\n", "")
    + """\
description: Greets a person.
commands:
  handle:
    type: write
    description: Greets one person.
    input_schema:
      type: object
      required: [name]
      properties:
        name: {type: string, description: Name of the person.}
        language: {type: string, enum: [en, de, fr], default: en}
        times: {type: integer, minimum: 1, maximum: 5, default: 1}
        loud: {type: boolean}
        extras: {type: object}
  health: {type: read}
"""
)
CONFIG = """\
service:
  name: home
  max_workers: 4
  job_queue_retention: 30d
  log_level: debug
  shutdown_grace: 100ms
  allow_symlinks: false
api:
  enabled: true
  listen: localhost:0
  auth:
    tokens:
      - {name: operator, token: "%(token)s", scopes: ["*"]}
      - {name: reader, token: %(reader)s, scopes: ["jobs:ro"]}
state_webhooks:
  allow: [127.0.0.1]
  max_attempts: 1
plugins:
  echo:
    schedules:
      - {id: hourly, every: 1h}
      - {id: nightly, cron: "15 3 * * *"}
  greeter: {}
  printer: {}
  backup:
    uses: printer
    schedules:
      - {id: weekly, cron: "0 4 * * 1"}
  waits: {}
pipelines:
  - name: order
    on: order.placed
    steps:
      - id: greet
        uses: greeter
        with: {name: "{payload.customer}", until: "{payload.until}", total: "{payload.total}"}
      - id: both
        split:
          - {id: wait, uses: waits, with: {until: "{payload.until}"}}
          - {id: label, uses: greeter, with: {name: "{payload.name}"}}
      - id: gift
        if: {path: payload.total, op: gte, value: 100}
        uses: greeter
      - {id: after, call: tail}
  - name: tail
    on: never.sent
    steps:
      - {id: last, uses: echo}
  - name: broken
    on: broken.started
    steps:
      - {id: first, uses: echo}
      - {id: second, uses: printer}
"""


def a_dashboard_workspace(directory: Path) -> Workspace:
    workspace = Workspace(directory=directory)
    plugins = directory / "demo" / "plugins"
    workspace.plugin("echo", answering({"status": "ok", "result": "done"}))
    a_plugin(plugins, "greeter", manifest=GREETER_MANIFEST, script=GREETER)
    workspace.plugin("printer", MAYBE)
    workspace.plugin("waits", WAITS)
    workspace.config.write_text(CONFIG % {"token": TOKEN, "reader": READER})
    return workspace


def hostile_answer() -> str:
    """Return the script of a plugin whose every text tries to become markup."""
    response = {"status": "error", "retry": False, "error": HOSTILE, "result": {HOSTILE: HOSTILE}}
    text = json.dumps(response | {"logs": [{"level": "info", "message": HOSTILE}]})
    return f"#!/bin/sh\ncat >/dev/null\necho '{HOSTILE}' >&2\ncat <<'END'\n{text}\nEND\n"
