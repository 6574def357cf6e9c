"""Artifacts of pipeline runs, and the size and hash of their files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import answering
from builders.http import Api, an_api, an_api_workspace
from builders.receivers import ReceivedRequest, a_receiver

PIPELINES = """\
pipelines:
  - name: made
    on: made.wanted
    execution_mode: synchronous
    steps: [{id: draw, uses: first}, {id: paint, uses: second}, {id: tell, uses: echo}]
  - name: spoilt
    on: spoilt.wanted
    execution_mode: synchronous
    steps: [{id: draw, uses: first}, {id: fail, uses: broken}]
"""
SETTINGS = "state_webhooks: {allow: [127.0.0.1]}\n"
CONTENTS = {"draw": b"a drawing", "paint": b"a painting"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("out")
    for name, content in CONTENTS.items():
        (root / name).write_bytes(content)
    with (root / "huge").open("wb") as huge:
        huge.truncate(1024**3 + 1)
    return root


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Api]:
    more = f"artifacts: {{roots: [{json.dumps(str(root))}]}}\n{SETTINGS}{PIPELINES}"
    plugins = "  first: {}\n  second: {}\n  broken: {retry: {max_attempts: 1}}\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), plugins, more=more)
    drawing: dict[str, Any] = {"name": "picture", "path": str(root / "draw")}
    notes = {"name": "notes", "path": "draw", "size": 3, "sha256": "told"}
    workspace.plugin("first", answering({"status": "ok", "result": "1", "artifacts": [drawing, notes]}))
    paintings = [
        {"name": "picture", "path": str(root / "paint")},
        {"name": "huge", "path": "huge"},
        {"name": "elsewhere", "path": "/etc/hostname"},
        {"name": "gone", "path": "gone"},
        {"name": "web", "url": "https://example.org/x.png"},
    ]
    workspace.plugin("second", answering({"status": "ok", "result": "2", "artifacts": paintings}))
    workspace.plugin("broken", answering({"status": "error", "error": "no", "retry": False}))
    workspace.ductile("config", "lock")
    with an_api(workspace) as api:
        yield api


def file_facts(name: str) -> dict[str, Any]:
    return {"size": len(CONTENTS[name]), "sha256": hashlib.sha256(CONTENTS[name]).hexdigest()}


def expected_artifacts(root: Path) -> list[dict[str, Any]]:
    return [
        {"name": "draw/picture", "path": str(root / "draw"), **file_facts("draw")},
        {"name": "notes", "path": "draw", "size": 3, "sha256": "told"},
        {"name": "paint/picture", "path": str(root / "paint"), **file_facts("paint")},
        {"name": "huge", "path": "huge", "size": 1024**3 + 1},
        {"name": "elsewhere", "path": "/etc/hostname"},
        {"name": "gone", "path": "gone"},
        {"name": "web", "url": "https://example.org/x.png"},
    ]


def test_a_run_has_the_artifacts_of_all_its_steps(api: Api, root: Path) -> None:
    """The synchronous response, the `done` state webhook and the job have them."""

    def is_over(requests: list[ReceivedRequest]) -> bool:
        return any(request.body["state"] == "done" for request in requests)

    with a_receiver() as receiver:
        response = api.post("/pipeline/made", {"state_webhook_url": receiver.url()}, status=200)
        webhook = receiver.wait_for(is_over)[-1].body
    assert response["result"]["output_files"] == expected_artifacts(root)
    assert webhook["artifacts"] == expected_artifacts(root)
    assert api.get(f"/job/{response['job_id']}")["artifacts"] == expected_artifacts(root)


@pytest.mark.parametrize("name", ["draw/picture", "draw%2Fpicture"])
def test_artifacts_of_steps_are_served_by_the_run(api: Api, name: str) -> None:
    run_id = api.post("/pipeline/made", status=200)["job_id"]
    assert api.ask("GET", f"/job/{run_id}/artifact/{name}").content == CONTENTS["draw"]
    assert api.ask("GET", f"/job/{run_id}/artifact/paint/picture").content == CONTENTS["paint"]
    response = api.ask("GET", f"/job/{run_id}/artifact/picture")
    assert (response.status, response.code) == (404, "not_found")
    assert "draw/picture" in response.body["error"]["hint"]


def test_a_failed_run_has_what_its_steps_left(api: Api) -> None:
    response = api.post("/pipeline/spoilt", status=200)
    assert response["status"] == "failed"
    names = [artifact["name"] for artifact in api.get(f"/job/{response['job_id']}")["artifacts"]]
    assert names == ["picture", "notes"]


def test_a_job_of_its_own_has_the_facts_too(api: Api, root: Path) -> None:
    job = api.ended(api.post("/plugin/first/poll")["job_id"])
    assert job["artifacts"][0] == {"name": "picture", "path": str(root / "draw"), **file_facts("draw")}
