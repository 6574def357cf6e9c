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
#: Answers with its request, but for its deadline; emits an event that is routed, and keeps state and a file.
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
    """A daemon with past jobs: three of `handle`, one that failed, a step of a run, one that writes."""
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), "  mirror: {max_attempts: 1}\n", more=CONFIG)
    a_mirror(workspace.directory / "demo" / "plugins", "mirror")
    with an_api(workspace) as running:
        for n in (1, 2, 13):
            running.ended(running.post("/plugin/mirror/handle", {"payload": {"n": n}})["job_id"])
        sent = running.post("/event", {"type": "thing.found", "payload": {"who": "Ada"}})
        running.ended(sent["started"][0]["job_id"])
        running.ended(running.post("/plugin/mirror/store", {"payload": {"n": 3}})["job_id"])
        yield running


def replay(workspace: Workspace, *words: str, status: int = 0) -> dict[str, Any]:
    return workspace.json("plugin", "replay", "mirror", *words, status=status)


def changed(api: Api, tmp_path: Path, old: str, new: str) -> str:
    """The directory of a candidate with another line."""
    assert old in MIRROR
    return str(a_mirror(tmp_path, "candidate", MIRROR.replace(old, new)))


#: The state is the present one, which later jobs have changed.
STATE = ("--ignore", "result.request.state")


def test_the_request_is_what_the_plugin_got(api: Api, tmp_path: Path) -> None:
    """A plugin that answers with its request answers the same again: payload, event, context, baggage."""
    found = replay(
        api.workspace, "--candidate", changed(api, tmp_path, "import json", "import  json"), *STATE
    )
    assert found["passed"] is True
    assert found["counts"] == {"same": 4}
    assert {each["command"] for each in found["jobs"]} == {"handle"}
    assert any("state" in each for each in found["not_reproduced"])


def test_nothing_is_stored(api: Api, tmp_path: Path) -> None:
    """No job, no state, no event; and the plugin finds none of its files, and leaves none."""

    def records() -> tuple[object, ...]:
        jobs = api.get("/jobs?limit=200")["jobs"]
        return len(jobs), api.get("/plugin/mirror/state"), len(api.get("/job-logs?limit=200")["logs"])

    files = sorted((api.workspace.directory / "demo").rglob("*"))
    before = records()
    candidate = changed(api, tmp_path, '"double": payload.get("n", 0) * 2', '"files": files')
    found = replay(api.workspace, "--candidate", candidate, *STATE, status=1)
    assert records() == before
    assert sorted((api.workspace.directory / "demo").rglob("*")) == files
    seen = {each["path"]: each["now"] for job in found["jobs"] for each in job["differences"]}
    assert seen["result.double"] is None


def test_each_answer_has_a_verdict(api: Api, tmp_path: Path) -> None:
    """Different, fails now, failed before, same; with what differs, and a failing exit status."""
    candidate = changed(
        api,
        tmp_path,
        'if payload.get("n") == 13:',
        'payload["n"] += payload["n"] == 2\nif payload["n"] == 1:',
    )
    found = replay(api.workspace, "--candidate", candidate, *STATE, "--ignore", "result.request", status=1)
    assert found["counts"] == {"same": 1, "different": 1, "fails_now": 1, "failed_before": 1}
    by_verdict = {job["verdict"]: job["differences"] for job in found["jobs"]}
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
    candidate = changed(api, tmp_path, '.get("n", 0) * 2', '.get("n", 0) * 3')
    assert replay(api.workspace, "--candidate", candidate, *STATE, status=1)["counts"]["different"] == 3
    paths = "result.double,result.request.state"
    assert replay(api.workspace, "--candidate", candidate, "--ignore", paths)["passed"] is True


def test_what_changed_in_the_world_is_not_a_change_of_the_plugin(api: Api, tmp_path: Path) -> None:
    """The state of then is gone: the plugin in force answers otherwise too, exactly as the candidate does."""
    found = replay(api.workspace, "--candidate", str(a_mirror(tmp_path, "candidate")))
    assert found["passed"] is True
    assert found["counts"]["drifted"] >= 2
    drifted = next(job for job in found["jobs"] if job["verdict"] == "drifted")
    assert all(each["path"].startswith("result.request.state") for each in drifted["differences"])


def test_commands_that_write_are_left_out_unless_asked_for(api: Api, tmp_path: Path) -> None:
    """What a command does outside cannot be undone."""
    candidate = str(a_mirror(tmp_path, "candidate"))
    found = replay(api.workspace, "--candidate", candidate, *STATE)
    (left_out,) = found["not_replayed"]
    assert left_out["command"] == "store"
    assert "writes" in left_out["reason"]
    words = ("--candidate", candidate, "--command", "store", *STATE)
    error = api.workspace.json("plugin", "replay", "mirror", *words, status=1)["error"]
    assert "--include-writes" in error["hint"]
    assert replay(api.workspace, *words, "--include-writes")["counts"] == {"same": 1}


def test_only_so_many_of_the_latest_jobs_of_a_command(api: Api, tmp_path: Path) -> None:
    candidate = str(a_mirror(tmp_path, "candidate"))
    found = replay(api.workspace, "--candidate", candidate, "--command", "handle", "--last", "2", *STATE)
    times = [job["recorded_at"] for job in found["jobs"]]
    assert len(times) == 2
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--candidate", "nowhere"), "there is no directory"),
        (("--candidate", "home"), "has no manifest.yaml"),
        (("--ignore", "a..b"), "list of paths"),
        (("--command", "hanlde"), "handle"),
    ],
)
def test_a_mistake_is_named(api: Api, words: tuple[str, ...], said: str) -> None:
    (api.workspace.directory / "home").mkdir(exist_ok=True)
    error = replay(api.workspace, *words, status=1)["error"]
    assert said in f"{error['message']} {error['hint']}"


def test_a_token_replays_what_lies_in_a_plugin_root(api: Api, tmp_path: Path) -> None:
    """It needs the right to apply a configuration, and reaches no other directory of the machine."""
    inside = a_mirror(api.workspace.directory / "demo" / "plugins", "mirror-next")
    outside = a_mirror(tmp_path, "outside")
    ignore = ["result.request.state"]
    try:
        body = {"candidate": str(inside), "ignore": ignore}
        assert api.ask("POST", "/replay/mirror", body, token=token_for("plugin:rw")).status == 403
        done = api.ask("POST", "/replay/mirror", body, token=token_for("system:rw"))
        assert (done.status, done.body["passed"]) == (200, True)
        for place in (str(outside), f"{inside.parent}/../../../outside", "/"):
            denied = api.ask("POST", "/replay/mirror", {"candidate": place}, token=token_for("system:rw"))
            assert denied.status == 403
        relative = api.ask("POST", "/replay/mirror", {"candidate": "outside"}, token=token_for("system:rw"))
        assert relative.status == 422
    finally:
        shutil.rmtree(inside)


async def test_an_agent_replays_and_cannot_repeat_writes(api: Api, tmp_path: Path) -> None:
    candidate = changed(api, tmp_path, '.get("n", 0) * 2', '.get("n", 0) * 3')
    async with an_agent(api.workspace) as agent:
        tool = (await agent.tools())["plugin_replay"]
        assert not tool.annotations.read_only_hint
        assert "include_writes" not in tool.input_schema["properties"]
        found = await agent.call(
            "plugin_replay", plugin="mirror", candidate=candidate, ignore=["result.request"], last=4
        )
        assert found["counts"]["different"] >= 1


def test_an_edit_in_place_and_of_settings_is_replayed_without_a_candidate(api: Api) -> None:
    """Before it is applied: the settings on disk decide."""
    config = api.workspace.config
    written = config.read_text()
    try:
        config.write_text(written.replace("mirror: {max", "mirror: {config: {unit: cm}, max"))
        found = replay(api.workspace, *STATE, status=1)
        (difference,) = found["jobs"][0]["differences"]
        assert (difference["path"], difference["now"]) == ("result.request.config.unit", '"cm"')
    finally:
        config.write_text(written)


def test_without_a_daemon(tmp_path: Path) -> None:
    """The same on the store of a daemon that does not run; there must be something to replay."""
    workspace = a_workspace(tmp_path, "  mirror: {}\n")
    a_mirror(workspace.directory / "demo" / "plugins", "mirror")
    candidate = str(a_mirror(tmp_path, "candidate", MIRROR.replace("* 2", "* 3")))
    error = replay(workspace, "--candidate", candidate, status=1)["error"]
    assert "no job of mirror" in error["message"]
    workspace.json("plugin", "run", "mirror", "handle", "--payload", '{"n": 4}')
    found = replay(workspace, "--candidate", candidate, *STATE, status=1)
    assert found["counts"] == {"different": 1}


def test_an_interrupted_replay_ends_what_it_runs(api: Api, tmp_path: Path) -> None:
    """Also in the daemon, when the command that asked for it is gone."""
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
