"""Following the ledger from the command line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ductile.cli import client
from ductile.cli.commands import event
from ductile.cli.invocation import Invocation

ENTRY: dict[str, Any] = {
    "seq": 9,
    "at": "2026-02-08T10:00:00Z",
    "kind": "config.loaded",
    "job_id": None,
    "run_id": None,
    "data": {},
}
GAP = {"oldest": 9, "message": "events before 9 are no longer held"}


def follow_output(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> list[str]:
    """Return the printed lines of a follower if events were removed between two requests."""
    tail = {"events": [ENTRY | {"seq": 3}], "lowest": 1, "highest": 3}
    new_events = {"events": [ENTRY], "gap": GAP, "stopping": True}
    monkeypatch.setattr(event, "request", lambda *_: tail)
    monkeypatch.setattr(client, "request_daemon", lambda *_, **__: new_events)
    out = io.StringIO()
    arguments = {"follow": True, "limit": None}
    event.tail.run(
        Invocation(
            action=event.tail,
            arguments=arguments,
            config=None,
            verbose=False,
            environ={},
            json=as_json,
            out=out,
        )
    )
    return out.getvalue().splitlines()


def test_a_gap_between_events_is_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line reports that events are missing between two others."""
    before, gap, after = follow_output(monkeypatch, as_json=False)
    assert gap == "Some are missing here: events before 9 are no longer held."
    assert before == after


def test_a_gap_between_events_is_a_json_object_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is in the position of the missing events and has the same kind as over HTTP."""
    _, gap, _ = (json.loads(line) for line in follow_output(monkeypatch, as_json=True))
    assert gap == {"kind": "gap", **GAP}
