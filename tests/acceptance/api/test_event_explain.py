"""`POST /event/explain`, and `POST /event` with `dry_run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.http import Api, an_api, an_api_workspace, token_for

CONFIG = """\
routes: [{from: api, event_type: order.paid, to: echo}]
pipelines:
  - {name: large, on: order.paid, if: {path: payload.total, op: gte, value: 100}, steps: [{uses: echo}]}
"""
EVENT = {"type": "order.paid", "payload": {"total": 35}}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with an_api(an_api_workspace(tmp_path, more=CONFIG)) as running:
        yield running


def test_reading_events_is_enough_to_explain_one(api: Api) -> None:
    allowed = {"Authorization": f"Bearer {token_for('events:ro')}"}
    found = api.post("/event/explain", EVENT, status=200, headers=allowed)
    assert (found["source"], found["would_start"]) == ("api", ["echo.handle"])
    assert [each["outcome"] for each in found["targets"]] == ["starts", "condition"]
    assert found["message"]
    api.post("/event", EVENT, status=403, headers=allowed)
    of_echo = api.post("/event/explain", {**EVENT, "from": "echo"}, status=200)
    assert of_echo["would_start"] == []
    assert (
        api.post("/event/explain", {"type": "ductile.x"}, status=422)["error"]["details"]["field"] == "type"
    )
    api.post("/event/explain", {"type": "x", "from": "nobody"}, status=404)
    assert api.get("/jobs")["jobs"] == []


def test_a_dry_run_starts_nothing_and_explains(api: Api) -> None:
    planned = api.post("/event", {**EVENT, "dry_run": True}, status=200)
    assert planned["dry_run"]
    assert planned["would_start"] == ["echo.handle"]
    assert api.get("/jobs")["jobs"] == []
    sent = api.post("/event", {**EVENT, "dedupe_key": "k"})
    assert [each["target"] for each in sent["started"]] == planned["would_start"]
    api.ended(sent["started"][0]["job_id"])
    again = api.post("/event/explain", {**EVENT, "dedupe_key": " k "}, status=200)
    assert again["would_start"] == []
    assert again["targets"][0]["duplicate_of"] == sent["started"][0]["job_id"]
