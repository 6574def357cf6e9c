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


def ask(request: JsonObject) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "echo" / "run.py"], input=json.dumps(request), capture_output=True, text=True, check=False
    )


def answer(**request: object) -> JsonObject:
    done = ask({"protocol": 2, "job_id": "j", "config": {}, "state": {}, "context": {}, **request})  # type: ignore[dict-item]
    assert done.returncode == 0, done.stderr
    decoded: JsonObject = json.loads(done.stdout)
    return decoded


def test_every_shipped_plugin_is_found_and_trusted() -> None:
    """Shipped plugins pass the trust checks without a warning."""
    found = discover([ROOT])
    assert "echo" in found.installed
    assert not found.refused
    assert not found.warnings


def test_it_has_the_commands_its_manifest_declares() -> None:
    """An undeclared command is an error that is not retried."""
    for command in discover([ROOT]).installed["echo"].manifest.commands:
        assert answer(command=command, event={"payload": {}})["status"] == "ok"
    refusal = answer(command="dance")
    assert (refusal["status"], refusal["retry"]) == ("error", False)


def test_poll_counts_in_its_state() -> None:
    """`state_updates` come back as state."""
    reply = answer(command="poll", config={"message": "hi"}, state={"count": 6})
    assert reply["result"] == "hi"
    assert reply["state_updates"] == {"count": 7}


@pytest.mark.parametrize(
    ("payload", "said"),
    [({"message": "hi"}, "hi"), ({"a": 1}, '{"a": 1}'), ({"message": " "}, '{"message": " "}'), ({}, "{}")],
)
def test_handle_returns_its_payload(payload: JsonObject, said: str) -> None:
    """An ok response has a result that is not blank."""
    reply = answer(command="handle", event={"type": "t", "payload": payload})
    assert reply["result"] == said
    assert reply["events"] == [{"type": "echo.said", "payload": {"message": said}}]


def test_another_protocol_exits_with_78() -> None:
    """Exit status 78 is never retried."""
    done = ask({"protocol": 3, "command": "poll"})
    assert done.returncode == 78
    assert "protocol" in done.stderr
