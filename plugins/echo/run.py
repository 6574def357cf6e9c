#!/usr/bin/env python3
"""The echo plugin: one JSON request on stdin, one JSON answer on stdout, standard library only.

A plugin is started once per job. It may print to stderr, which is kept with the job's log.
"""

from __future__ import annotations

import json
import sys

PROTOCOL = 2
EXIT_CONFIG = 78


def poll(request: dict) -> dict:
    """Say the configured message; the count lives in the state that comes back with the next request."""
    message = str(request.get("config", {}).get("message", "hello"))
    count = int(request.get("state", {}).get("count", 0)) + 1
    answer = say(message, {"message": message, "count": count})
    answer["state_updates"] = {"count": count}
    return answer


def handle(request: dict) -> dict:
    """Say back what the event carries."""
    payload = request.get("event", {}).get("payload", {})
    message = payload.get("message")
    if not isinstance(message, str) or not message.strip():
        message = json.dumps(payload, sort_keys=True)
    return say(message, {"message": message})


def health(_request: dict) -> dict:
    return {"status": "ok", "result": "healthy"}


def say(message: str, payload: dict) -> dict:
    return {
        "status": "ok",
        "result": message,
        "events": [{"type": "echo.said", "payload": payload}],
        "logs": [{"level": "info", "message": "said " + message}],
    }


COMMANDS = {"poll": poll, "handle": handle, "health": health}


def main() -> int:
    request = json.load(sys.stdin)
    if request.get("protocol") != PROTOCOL:
        sys.stderr.write(f"echo speaks protocol {PROTOCOL}, not {request.get('protocol')}\n")
        return EXIT_CONFIG
    command = COMMANDS.get(request.get("command"))
    if command is None:
        answer = {"status": "error", "error": f"echo has no command {request.get('command')}", "retry": False}
    else:
        answer = command(request)
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
