"""`plugin replay`: recorded requests of past jobs against a changed plugin, with nothing stored."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.bad_plugins import wait_until_gone
from builders.daemons import PATIENCE, Workspace, a_workspace
from builders.http import Api, an_api, an_api_workspace, token_for
from builders.mcp import an_agent
from builders.plugins import a_manifest, a_plugin
from builders.terminal import DUCTILE

READS = "commands: {poll: {type: read}, handle: {type: read}, store: {type: write}}\n"
#: Responds with its request except the deadline; emits a routed event, and keeps state and a file.
MIRROR = """\
#!/usr/bin/env python3
import json, os, pathlib, sys
request = json.load(sys.stdin)
request.pop("deadline_at")
data = pathlib.Path(os.environ["DUCTILE_DATA_DIR"])
data.mkdir(parents=True, exist_ok=True)
files = len(list(data.iterdir()))
(data / request["job_id"]).touch()
payload = request.get("payload") or {}
if payload.get("n") == 13:
    print(json.dumps({"status": "error", "error": "thirteen", "retry": False}))
else:
    print(json.dumps({
        "status": "ok",
        "result": {"request": request, "double": payload.get("n", 0) * 2},
        "events": [{"type": "mirrored", "payload": {"n": payload.get("n")}}],
        "state_updates": {"token": "secret-%s" % payload.get("n"), "last": payload.get("n")},
        "logs": [{"level": "info", "message": os.urandom(4).hex()}],
    }))
"""
CONFIG = """\
routes: [{from: mirror, event_type: mirrored, to: echo}]
pipelines:
  - name: two
    on: thing.found
    steps:
      - {id: first, uses: echo, baggage: {who: payload.who}}
      - {id: second, uses: mirror, with: {said: "{context.who}", n: 5}}
"""


def a_mirror(root: Path, name: str, script: str = MIRROR) -> Path:
    manifest = a_manifest("mirror").replace("commands: [poll, handle, health]\n", READS)
    return a_plugin(root, name, manifest=manifest, script=script)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Start a daemon with past jobs: three of `handle`, a step of a run, and one that writes."""
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), "  mirror: {max_attempts: 1}\n", more=CONFIG)
    a_mirror(workspace.directory / "demo" / "plugins", "mirror")
    with an_api(workspace) as api:
        for n in (1, 2, 13):
            api.ended(api.post("/plugin/mirror/handle", {"payload": {"n": n}})["job_id"])
        sent = api.post("/event", {"type": "thing.found", "payload": {"who": "Ada"}})
        api.ended(sent["started"][0]["job_id"])
        api.ended(api.post("/plugin/mirror/store", {"payload": {"n": 3}})["job_id"])
        yield api


def replay(workspace: Workspace, *words: str, status: int = 0) -> dict[str, Any]:
    return workspace.json("plugin", "replay", "mirror", *words, status=status)


def a_changed_mirror(api: Api, tmp_path: Path, old: str, new: str) -> str:
    """Return the directory of a candidate with a changed line."""
    assert old in MIRROR
    return str(a_mirror(tmp_path, "candidate", MIRROR.replace(old, new)))


#: A replay has the present state, which later jobs have changed.
STATE = ("--ignore", "result.request.state")


def test_the_request_is_what_the_plugin_got(api: Api, tmp_path: Path) -> None:
    """A replayed request has the recorded payload, event, context and baggage."""
    report = replay(
        api.workspace, "--candidate", a_changed_mirror(api, tmp_path, "import json", "import  json"), *STATE
    )
    assert report["passed"] is True
    assert report["counts"] == {"same": 4}
    assert {item["command"] for item in report["jobs"]} == {"handle"}
    assert any("state" in item for item in report["not_reproduced"])


def test_nothing_is_stored(api: Api, tmp_path: Path) -> None:
    """A replay stores no job, no state and no event; the plugin finds and leaves no files."""

    def count_records() -> tuple[object, ...]:
        jobs = api.get("/jobs?limit=200")["jobs"]
        return len(jobs), api.get("/plugin/mirror/state"), len(api.get("/job-logs?limit=200")["logs"])

    files = sorted((api.workspace.directory / "demo").rglob("*"))
    before = count_records()
    candidate = a_changed_mirror(api, tmp_path, '"double": payload.get("n", 0) * 2', '"files": files')
    report = replay(api.workspace, "--candidate", candidate, *STATE, status=1)
    assert count_records() == before
    assert sorted((api.workspace.directory / "demo").rglob("*")) == files
    values = {
        difference["path"]: difference["now"] for job in report["jobs"] for difference in job["differences"]
    }
    assert values["result.double"] is None


def test_each_answer_has_a_verdict(api: Api, tmp_path: Path) -> None:
    """The verdicts are different, fails now, failed before and same, with the differences."""
    candidate = a_changed_mirror(
        api,
        tmp_path,
        'if payload.get("n") == 13:',
        'payload["n"] += payload["n"] == 2\nif payload["n"] == 1:',
    )
    report = replay(api.workspace, "--candidate", candidate, *STATE, "--ignore", "result.request", status=1)
    assert report["counts"] == {"same": 1, "different": 1, "fails_now": 1, "failed_before": 1}
    by_verdict = {job["verdict"]: job["differences"] for job in report["jobs"]}
    assert by_verdict["same"] == []
    assert by_verdict["fails_now"] == [{"path": "error", "before": None, "now": '"thirteen"'}]
    assert by_verdict["failed_before"] == [{"path": "error", "before": '"thirteen"', "now": None}]
    assert by_verdict["different"] == [
        {"path": "result.double", "before": "4", "now": "6"},
        {"path": "events.0.payload.n", "before": "2", "now": "3"},
        {"path": "state_updates.last", "before": "2", "now": "3"},
    ]
    text = api.workspace.ductile(
        "plugin", "replay", "mirror", "--candidate", candidate, "--ignore", "result.request"
    )
    assert "result.double: 4 → 6" in text.out
    assert "1 failed, and succeeded before" in text.out
    assert "secret-" not in text.out


def test_ignored_paths_do_not_count(api: Api, tmp_path: Path) -> None:
    candidate = a_changed_mirror(api, tmp_path, '.get("n", 0) * 2', '.get("n", 0) * 3')
    assert replay(api.workspace, "--candidate", candidate, *STATE, status=1)["counts"]["different"] == 3
    paths = "result.double,result.request.state"
    assert replay(api.workspace, "--candidate", candidate, "--ignore", paths)["passed"] is True


def test_what_changed_in_the_world_is_not_a_change_of_the_plugin(api: Api, tmp_path: Path) -> None:
    """With the present state the plugin in force responds differently too, exactly as the candidate does."""
    report = replay(api.workspace, "--candidate", str(a_mirror(tmp_path, "candidate")))
    assert report["passed"] is True
    assert report["counts"]["drifted"] >= 2
    drifted = next(job for job in report["jobs"] if job["verdict"] == "drifted")
    assert all(difference["path"].startswith("result.request.state") for difference in drifted["differences"])


def test_commands_that_write_are_left_out_unless_asked_for(api: Api, tmp_path: Path) -> None:
    """The outside effects of a command cannot be undone."""
    candidate = str(a_mirror(tmp_path, "candidate"))
    report = replay(api.workspace, "--candidate", candidate, *STATE)
    (job,) = report["not_replayed"]
    assert job["command"] == "store"
    assert "writes" in job["reason"]
    words = ("--candidate", candidate, "--command", "store", *STATE)
    error = api.workspace.json("plugin", "replay", "mirror", *words, status=1)["error"]
    assert "--include-writes" in error["hint"]
    assert replay(api.workspace, *words, "--include-writes")["counts"] == {"same": 1}


def test_only_so_many_of_the_latest_jobs_of_a_command(api: Api, tmp_path: Path) -> None:
    candidate = str(a_mirror(tmp_path, "candidate"))
    report = replay(api.workspace, "--candidate", candidate, "--command", "handle", "--last", "2", *STATE)
    times = [job["recorded_at"] for job in report["jobs"]]
    assert len(times) == 2
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--candidate", "nowhere"), "there is no directory"),
        (("--candidate", "home"), "has no manifest.yaml"),
        (("--ignore", "a..b"), "list of paths"),
        (("--command", "hanlde"), "handle"),
    ],
)
def test_a_mistake_is_named(api: Api, words: tuple[str, ...], message: str) -> None:
    (api.workspace.directory / "home").mkdir(exist_ok=True)
    error = replay(api.workspace, *words, status=1)["error"]
    assert message in f"{error['message']} {error['hint']}"


def test_a_token_replays_what_lies_in_a_plugin_root(api: Api, tmp_path: Path) -> None:
    """A replay needs the right to apply a configuration, and reaches no other directory."""
    inside = a_mirror(api.workspace.directory / "demo" / "plugins", "mirror-next")
    outside = a_mirror(tmp_path, "outside")
    ignore = ["result.request.state"]
    try:
        body = {"candidate": str(inside), "ignore": ignore}
        assert api.ask("POST", "/replay/mirror", body, token=token_for("plugin:rw")).status == 403
        response = api.ask("POST", "/replay/mirror", body, token=token_for("system:rw"))
        assert (response.status, response.body["passed"]) == (200, True)
        for path in (str(outside), f"{inside.parent}/../../../outside", "/"):
            response = api.ask("POST", "/replay/mirror", {"candidate": path}, token=token_for("system:rw"))
            assert response.status == 403
        response = api.ask("POST", "/replay/mirror", {"candidate": "outside"}, token=token_for("system:rw"))
        assert response.status == 422
    finally:
        shutil.rmtree(inside)


async def test_an_agent_replays_and_cannot_repeat_writes(api: Api, tmp_path: Path) -> None:
    candidate = a_changed_mirror(api, tmp_path, '.get("n", 0) * 2', '.get("n", 0) * 3')
    async with an_agent(api.workspace) as agent:
        tool = (await agent.tools())["plugin_replay"]
        assert not tool.annotations.read_only_hint
        assert "include_writes" not in tool.input_schema["properties"]
        report = await agent.call(
            "plugin_replay", plugin="mirror", candidate=candidate, ignore=["result.request"], last=4
        )
        assert report["counts"]["different"] >= 1


def test_an_edit_in_place_and_of_settings_is_replayed_without_a_candidate(api: Api) -> None:
    """The settings on disk are used, before they are applied."""
    config = api.workspace.config
    written = config.read_text()
    try:
        config.write_text(written.replace("mirror: {max", "mirror: {config: {unit: cm}, max"))
        report = replay(api.workspace, *STATE, status=1)
        (difference,) = report["jobs"][0]["differences"]
        assert (difference["path"], difference["now"]) == ("result.request.config.unit", '"cm"')
    finally:
        config.write_text(written)


def test_without_a_daemon(tmp_path: Path) -> None:
    """A replay works without a daemon, and needs a job to replay."""
    workspace = a_workspace(tmp_path, "  mirror: {}\n")
    a_mirror(workspace.directory / "demo" / "plugins", "mirror")
    candidate = str(a_mirror(tmp_path, "candidate", MIRROR.replace("* 2", "* 3")))
    error = replay(workspace, "--candidate", candidate, status=1)["error"]
    assert "no job of mirror" in error["message"]
    workspace.json("plugin", "run", "mirror", "handle", "--payload", '{"n": 4}')
    report = replay(workspace, "--candidate", candidate, *STATE, status=1)
    assert report["counts"] == {"different": 1}


def test_an_interrupted_replay_ends_what_it_runs(api: Api, tmp_path: Path) -> None:
    """The daemon ends the processes of a replay when its command is gone."""
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    script = f"#!/bin/sh\ncat >/dev/null\necho $$ > {pipe}\nexec sleep 300\n"
    candidate = a_mirror(tmp_path, "candidate", script)
    process = subprocess.Popen(
        [DUCTILE, "plugin", "replay", "mirror", "--candidate", str(candidate), "--config", "demo"],
        cwd=api.workspace.directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        pid = int(pipe.read_text())  # blocks until the candidate writes it
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        wait_until_gone(pid)
    finally:
        process.kill()
        process.wait()
