"""The echo plugin implements protocol 2."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ductile.plugins.discovery import discover

if TYPE_CHECKING:
    from ductile.core.json import JsonObject

ROOT = Path(__file__).parents[3] / "plugins"


def run_plugin(request: JsonObject) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "echo" / "run.py"], input=json.dumps(request), capture_output=True, text=True, check=False
    )


def respond(**request: object) -> JsonObject:
    process = run_plugin({"protocol": 2, "job_id": "j", "config": {}, "state": {}, "context": {}, **request})  # type: ignore[dict-item]
    assert process.returncode == 0, process.stderr
    response: JsonObject = json.loads(process.stdout)
    return response


def test_every_shipped_plugin_is_found_and_trusted() -> None:
    """Shipped plugins pass the trust checks without a warning."""
    discovery = discover([ROOT])
    assert "echo" in discovery.installed
    assert not discovery.refused
    assert not discovery.warnings


def test_it_has_the_commands_its_manifest_declares() -> None:
    """An undeclared command is an error that is not retried."""
    for command in discover([ROOT]).installed["echo"].manifest.commands:
        assert respond(command=command, event={"payload": {}})["status"] == "ok"
    refusal = respond(command="dance")
    assert (refusal["status"], refusal["retry"]) == ("error", False)


def test_poll_counts_in_its_state() -> None:
    """`state_updates` come back as state."""
    response = respond(command="poll", config={"message": "hi"}, state={"count": 6})
    assert response["result"] == "hi"
    assert response["state_updates"] == {"count": 7}


@pytest.mark.parametrize(
    ("payload", "result"),
    [({"message": "hi"}, "hi"), ({"a": 1}, '{"a": 1}'), ({"message": " "}, '{"message": " "}'), ({}, "{}")],
)
def test_handle_returns_its_payload(payload: JsonObject, result: str) -> None:
    """An ok response has a result that is not blank."""
    response = respond(command="handle", event={"type": "t", "payload": payload})
    assert response["result"] == result
    assert response["events"] == [{"type": "echo.said", "payload": {"message": result}}]


def test_another_protocol_exits_with_78() -> None:
    """Exit status 78 is never retried."""
    process = run_plugin({"protocol": 3, "command": "poll"})
    assert process.returncode == 78
    assert "protocol" in process.stderr
