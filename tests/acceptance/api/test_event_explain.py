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
    with an_api(an_api_workspace(tmp_path, more=CONFIG)) as api:
        yield api


def test_reading_events_is_enough_to_explain_one(api: Api) -> None:
    headers = {"Authorization": f"Bearer {token_for('events:ro')}"}
    explanation = api.post("/event/explain", EVENT, status=200, headers=headers)
    assert (explanation["source"], explanation["would_start"]) == ("api", ["echo.handle"])
    assert [target["outcome"] for target in explanation["targets"]] == ["starts", "condition"]
    assert explanation["message"]
    api.post("/event", EVENT, status=403, headers=headers)
    explanation_for_echo = api.post("/event/explain", {**EVENT, "from": "echo"}, status=200)
    assert explanation_for_echo["would_start"] == []
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
    assert [job["target"] for job in sent["started"]] == planned["would_start"]
    api.ended(sent["started"][0]["job_id"])
    explanation = api.post("/event/explain", {**EVENT, "dedupe_key": " k "}, status=200)
    assert explanation["would_start"] == []
    assert explanation["targets"][0]["duplicate_of"] == sent["started"][0]["job_id"]
