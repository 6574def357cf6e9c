"""Following the ledger from the command line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ductile.cli.commands import event
from ductile.cli.invocation import Invocation

HELD: dict[str, Any] = {
    "seq": 9,
    "at": "2026-02-08T10:00:00Z",
    "kind": "config.loaded",
    "job_id": None,
    "run_id": None,
    "data": {},
}
GAP = {"oldest": 9, "message": "events before 9 are no longer held"}


def followed(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> list[str]:
    """What is printed if events were swept away between two questions."""
    tail = {"events": [HELD | {"seq": 3}], "lowest": 1, "highest": 3}
    news = {"events": [HELD], "gap": GAP, "stopping": True}
    monkeypatch.setattr(event, "request", lambda *_: tail)
    monkeypatch.setattr(event, "request_daemon", lambda *_, **__: news)
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


def test_what_was_swept_away_meanwhile_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows must not take what is shown for all that happened."""
    before, gap, after = followed(monkeypatch, as_json=False)
    assert gap == "Some are missing here: events before 9 are no longer held."
    assert before == after


def test_what_was_swept_away_meanwhile_is_an_object_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program sees it where it happened, by its kind as over HTTP."""
    _, gap, _ = (json.loads(line) for line in followed(monkeypatch, as_json=True))
    assert gap == {"kind": "gap", **GAP}
