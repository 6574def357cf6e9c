"""Pipelines and events on the command line, with a daemon and without."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, PATIENCE, Workspace, a_daemon, a_workspace, answering
from builders.pictures import read_svg
from builders.postgres import keep_in
from builders.terminal import DUCTILE, Terminal

MADE = answering({"status": "ok", "result": "made", "events": [{"type": "made", "payload": {"total": 35}}]})
PIPELINES = """\
  maker: {}
  mended:
    retry: {max_attempts: 1}
  sleepy: {enabled: false}
pipelines:
  - name: order
    on: order.placed
    if: {path: payload.test, op: neq, value: true}
    execution_mode: synchronous
    timeout: 2m
    steps:
      - {id: make, uses: maker}
      - id: big
        if: {path: payload.total, op: gte, value: 100}
        steps: [{uses: echo, if: {not: {path: config.api_key, op: eq, value: canary-5d1f}}}]
      - {id: end, uses: echo, with: {api_key: canary-5d1f, total: "{payload.total}"}}
  - name: shaky
    steps:
      - {id: make, uses: maker}
      - {id: mend, uses: mended, baggage: {kept: payload.total}}
      - {id: end, uses: echo, with: {total: "{context.kept}"}}
  - {name: asleep, steps: [{uses: sleepy}]}
"""


def a_pipeline_workspace(directory: Path) -> Workspace:
    workspace = a_workspace(directory, PIPELINES)
    workspace.plugin("maker", MADE)
    workspace.plugin("mended", BROKEN)
    workspace.plugin("sleepy", MADE)
    return workspace


#: For tests that also run with a store on a server, where no job runs without a daemon.
EVERYWHERE = pytest.mark.parametrize(
    "workspace", ["with a daemon", "without", "on PostgreSQL"], indirect=True
)


@pytest.fixture(params=["with a daemon", "without"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """Return the workspace; commands have the same results whether a daemon runs or not."""
    workspace_with_plugins = a_pipeline_workspace(tmp_path)
    if request.param == "without":
        yield workspace_with_plugins
        return
    keep_in("postgres" if request.param == "on PostgreSQL" else "sqlite", workspace_with_plugins.config)
    with a_daemon(workspace_with_plugins):
        yield workspace_with_plugins


def failed_run(workspace: Workspace) -> dict[str, Any]:
    result = workspace.ductile("pipeline", "run", "shaky", "--json")
    assert result.status == 1
    job: dict[str, Any] = json.loads(result.out)
    assert (job["status"], job["reason"]) == ("failed", "step_failed")
    return job


def mend(workspace: Workspace) -> None:
    (workspace.directory / "demo" / "plugins" / "mended" / "mended").touch()


@EVERYWHERE
def test_run_shows_the_result_and_ends_by_the_outcome(workspace: Workspace) -> None:
    """The command works like `ductile run`, with and without a daemon."""
    assert workspace.ductile("pipeline", "run", "order").out == "done\n"
    result = workspace.ductile("pipeline", "run", "shaky")
    assert result.status == 1
    assert "error: pipeline shaky failed (step_failed): mend: it is broken" in result.err
    assert "hint: ductile pipeline explain" in result.err
    pipelines = {row["name"]: row for row in workspace.json("pipeline", "list")["pipelines"]}
    assert {name: (row["last_run"] or {}).get("status") for name, row in pipelines.items()} == {
        "order": "succeeded",
        "shaky": "failed",
        "asleep": None,
    }
    assert (pipelines["order"]["trigger"], pipelines["order"]["steps"]) == ("on order.placed", 3)


def test_the_pipeline_s_own_condition(workspace: Workspace) -> None:
    """The answer says why no run was started."""
    refusal = workspace.json("pipeline", "run", "order", "--payload", '{"test": true}', status=1)
    assert refusal["error"]["code"] == "refused"
    assert "payload.test neq true is false" in refusal["error"]["message"]


def test_mistakes_of_run_commands_are_reported(workspace: Workspace) -> None:
    """The hint about an unknown name has the nearest one; a wrong payload is a usage error."""
    refusal = workspace.json("pipeline", "run", "oder", status=1)
    assert (refusal["error"]["code"], refusal["error"]["hint"]) == ("not_found", "did you mean order?")
    assert workspace.ductile("pipeline", "run", "order", "--payload", "[1]").status == 2
    assert workspace.json("pipeline", "run", "order", "--dry-run")["dry_run"] is True
    assert workspace.json("job", "list")["jobs"] == []


@EVERYWHERE
def test_explain_and_retry_in_place(workspace: Workspace) -> None:
    """A retry keeps the id of the run and its succeeded steps."""
    run = failed_run(workspace)
    explanation = workspace.ductile("pipeline", "explain", run["job_id"]).out
    assert "shaky: failed (step_failed)" in explanation
    assert "it is broken" in explanation
    assert "not reached" in explanation
    mend(workspace)
    assert workspace.json("job", "retry", run["job_id"])["status"] == "queued"
    steps = [job["step"] for job in workspace.json("job", "list", "--plugin", "maker")["jobs"]]
    assert steps == ["make"]


def test_retry_from_a_step_is_a_new_run(workspace: Workspace) -> None:
    """The new run has the present pipeline and the old input of the step; the old run is its parent."""
    old_id = failed_run(workspace)["job_id"]
    mend(workspace)
    dry_run = workspace.json("job", "retry", old_id, "--from-step", "mend", "--dry-run")
    assert (dry_run["dry_run"], dry_run["job_id"]) == (True, None)
    retry = workspace.json("job", "retry", old_id, "--from-step", "mend")
    assert (retry["retries"], retry["from_step"], retry["pipeline"]) == (old_id, "mend", "shaky")
    new_run = workspace.json("job", "show", retry["job_id"])
    assert (new_run["parent_job_id"], new_run["submitted_detail"]) == (old_id, f"mend of {old_id}")
    assert [job["job_id"] for job in workspace.json("job", "list", "--plugin", "maker")["jobs"]] != []
    outcomes = {step["step"]: step["outcome"] for step in new_run["steps"]}
    assert (outcomes["make"], outcomes["mend"]) == ("not_reached", "ran")
    assert workspace.json("job", "show", old_id)["status"] == "failed"


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_these_runs_cannot_be_retried_from_a_step(workspace: Workspace, options: tuple[str, ...]) -> None:
    """An unknown or unreached step, a succeeded run, and a job that is no run are refused."""
    failed_id = failed_run(workspace)["job_id"]
    for step in ("nowhere", "end"):
        error = workspace.json("job", "retry", failed_id, "--from-step", step, *options, status=1)["error"]
        assert error["code"] == "not_found"
    succeeded_id = workspace.json("pipeline", "run", "order")["job_id"]
    assert (
        workspace.json("job", "retry", succeeded_id, "--from-step", "make", *options, status=1)["error"][
            "code"
        ]
        == "conflict"
    )
    job_id = workspace.json("run", "echo")["job_id"]
    assert (
        workspace.json("job", "retry", job_id, "--from-step", "x", *options, status=1)["error"]["code"]
        == "refused"
    )


def test_a_re_run_goes_through_to_its_end(tmp_path: Path) -> None:
    """The step has its old baggage and payload; later steps get its new events."""
    workspace = a_pipeline_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        old_id = failed_run(workspace)["job_id"]
        mend(workspace)
        new_id = workspace.json("job", "retry", old_id, "--from-step", "mend")["job_id"]
        daemon.wait_for("job.succeeded", lambda line: line["job_id"] == new_id)
        new_run = workspace.json("job", "show", new_id)
        assert {step["step"]: step["outcome"] for step in new_run["steps"]} == {
            "make": "not_reached",
            "mend": "ran",
            "end": "ran",
        }
        (end_step,) = [step for step in new_run["steps"] if step["step"] == "end"]
        assert workspace.json("job", "show", end_step["jobs"][0]["job_id"])["payload"] == {"total": 35}
        retry = workspace.json("job", "retry", old_id)
        assert retry["job_id"] == old_id
        daemon.wait_for("job.succeeded", lambda line: line["job_id"] == old_id)


def test_without_a_daemon_a_step_that_is_tried_again_is_left_to_one(tmp_path: Path) -> None:
    """Only ready jobs are run without a daemon; the run stays open, and a daemon ends it."""
    workspace = a_pipeline_workspace(tmp_path)
    workspace.config.write_text(
        workspace.config.read_text().replace("max_attempts: 1", "max_attempts: 3, backoff_base: 100ms")
    )
    result = workspace.ductile("pipeline", "run", "shaky")
    assert result.status == 1
    assert "pipeline shaky has not ended: it is running" in result.err
    assert "when the daemon runs" in result.err
    (run,) = workspace.json("job", "list", "--plugin", "pipeline")["jobs"]
    mend(workspace)
    with a_daemon(workspace) as daemon:
        daemon.wait_for("job.succeeded", lambda line: line["job_id"] == run["job_id"])


def test_a_command_without_wait_does_not_wait_for_its_run(tmp_path: Path) -> None:
    """`--no-wait` prints the id, and needs the daemon."""
    workspace = a_pipeline_workspace(tmp_path)
    assert workspace.ductile("pipeline", "run", "order", "--no-wait").status == 69
    with a_daemon(workspace) as daemon:
        run_id = workspace.ductile("pipeline", "run", "order", "--no-wait").out.strip()
        daemon.wait_for("job.succeeded", lambda line: line["job_id"] == run_id)


def test_the_starter_s_pipeline_works_at_once(tmp_path: Path) -> None:
    """`ductile init` comes with a pipeline that runs, and whose bypass can be explained."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    words = ("pipeline", "run", "hello", "--config", "demo", "--payload")
    assert terminal.ductile(*words, '{"name": "Ada"}').out == "hello Ada, good to see you\n"
    run = json.loads(terminal.ductile(*words, '{"name": "Bob"}', "--json").out)
    assert [step["outcome"] for step in run["steps"]] == ["ran", "bypassed"]


def test_show(tmp_path: Path) -> None:
    """The text has a tree, and the JSON the compiled graph; neither has a secret."""
    workspace = a_pipeline_workspace(tmp_path)
    text = workspace.ductile("pipeline", "show", "order").out
    assert text == (
        "order\n"
        "  starts      on order.placed\n"
        "  if          payload.test neq true\n"
        "  mode        synchronous\n"
        "  timeout     2m\n"
        "  on timeout  continue\n"
        "\n"
        "├─ make: maker\n"
        "├─ big: steps  if payload.total gte 100\n"
        "│  └─ echo  if not config.api_key eq ***\n"
        "└─ end: echo\n"
    )
    document = workspace.json("pipeline", "show", "order")
    nodes = {node["path"]: node for node in document["graph"]["nodes"]}
    assert nodes["end"]["with"] == {"api_key": "********", "total": "{payload.total}"}
    assert nodes["make"]["next"] == "big"
    assert nodes["big/1"]["if"] == {
        "kind": "not",
        "not": {"kind": "comparison", "path": "config.api_key", "op": "eq", "value": "***"},
    }
    assert "canary" not in json.dumps(document)


def test_graph(tmp_path: Path) -> None:
    """Mermaid is written to standard output and SVG to a file; another format is a usage error."""
    workspace = a_pipeline_workspace(tmp_path)
    assert workspace.ductile("pipeline", "graph", "order").out.startswith("flowchart TD\n")
    assert (
        workspace.json("pipeline", "graph", "order", "--format", "svg", "-o", "order.svg")["output"]
        == "order.svg"
    )
    assert read_svg((tmp_path / "order.svg").read_text()).tag.endswith("svg")
    assert workspace.ductile("pipeline", "graph", "order", "--format", "png").status == 2
    error = workspace.json("pipeline", "graph", "order", "-o", "nowhere/x.svg", status=77)["error"]
    assert "nowhere/x.svg cannot be written" in error["message"]


def test_check(tmp_path: Path) -> None:
    """A step that could not run is an error of its pipeline only."""
    workspace = a_pipeline_workspace(tmp_path)
    report = workspace.json("pipeline", "check", status=78)
    assert {
        pipeline["name"]: [fault["step"] for fault in pipeline["faults"]] for pipeline in report["pipelines"]
    } == {
        "order": [],
        "shaky": [],
        "asleep": ["1"],
    }
    assert workspace.ductile("pipeline", "check", "order").out == "ok: order, 3 steps\n"
    workspace.config.write_text(workspace.config.read_text().replace("uses: maker}", "uses: makre}"))
    assert "did you mean maker?" in workspace.ductile("pipeline", "check", "order").err


def test_check_with_a_payload(tmp_path: Path) -> None:
    """The trial says which of the first steps would run, and why; nothing is run."""
    workspace = a_pipeline_workspace(tmp_path)
    workspace.config.write_text(
        workspace.config.read_text().replace(
            "      - {id: make, uses: maker}\n      - id: big", "      - id: big"
        )
    )
    small_trial = workspace.json("pipeline", "check", "order", "--payload", '{"total": 35}')["trial"]
    assert [(step["step"], step["outcome"]) for step in small_trial["steps"]] == [
        ("big", "bypassed"),
        ("end", "runs"),
    ]
    assert "payload.total gte 100 is false (found 35)" in small_trial["steps"][0]["because"]
    assert small_trial["steps"][1]["payload"] == {"api_key": "********", "total": 35}
    large_trial = workspace.json("pipeline", "check", "order", "--payload", '{"total": 350}')["trial"]
    assert large_trial["steps"][0]["step"] == "big/1"
    assert (
        large_trial["steps"][0]["because"]
        == "big: the condition holds: payload.total gte 100 is true (found 350); "
        "the condition holds: config.api_key eq *** is false (there is no config.api_key)"
    )
    failed_trial = workspace.json("pipeline", "check", "order", "--payload", "{}")["trial"]
    assert [step["outcome"] for step in failed_trial["steps"]] == ["bypassed", "not_made"]
    refused_trial = workspace.json("pipeline", "check", "order", "--payload", '{"test": true}')["trial"]
    assert refused_trial["starts"] is False
    assert workspace.ductile("pipeline", "check", "--payload", "{}").status == 2
    assert not (tmp_path / "demo" / "data").exists()


def test_the_command_line_is_a_source(tmp_path: Path) -> None:
    """Routes and pipelines may be for events of the command line only."""
    workspace = a_workspace(tmp_path)
    workspace.append(
        "routes: [{from: cli, event_type: made, to: echo}, {from: api, event_type: made, to: echo.poll}]\n"
        "pipelines: [{name: by-hand, on: made, from_plugin: cli, steps: [{uses: echo}]}]\n"
    )
    sent = workspace.json("event", "send", "made", "--dry-run")
    assert sent["would_start"] == ["echo.handle", "pipeline:by-hand"]


def test_event_send(workspace: Workspace) -> None:
    """All that is triggered by the event is started and listed."""
    assert workspace.json("event", "send", "order.placed", "--dry-run")["would_start"] == ["pipeline:order"]
    sent = workspace.json("event", "send", "order.placed", "--payload", '{"n": 1}')
    assert [job["target"] for job in sent["started"]] == ["pipeline:order"]
    assert workspace.json("event", "send", "order.placed", "--payload", '{"test": true}')["dropped"] != []
    assert workspace.ductile("event", "send", "nobody.listens").out == (
        "No route or pipeline matches nobody.listens from `cli`.\n"
    )
    assert workspace.json("event", "send", "ductile.step.succeeded", status=1)["error"]["code"] == "refused"


def test_event_send_tells_what_became_of_it_by_then(tmp_path: Path) -> None:
    """A queued step has not started, and a step that could not be made has failed."""
    workspace = a_workspace(tmp_path)
    workspace.append(
        "routes: [{from: cli, event_type: made, to: echo}]\n"
        "pipelines: [{name: wrong, on: made, steps: [{id: say, uses: echo, with: {text: '{payload.no}'}}]}]\n"
    )
    queued, failed = workspace.json("event", "send", "made")["started"]
    assert (queued["target"], queued["status"], queued["error"]) == ("echo.handle", "queued", None)
    assert (failed["target"], failed["status"]) == ("pipeline:wrong", "failed")
    assert failed["error"].startswith("say: there is no payload.no")
    waiting, ended = workspace.ductile("event", "send", "made").out.splitlines()
    assert waiting.startswith("Queued echo.handle: ")
    assert ended.startswith("Failed pipeline:wrong: ")
    assert ended.endswith(f": {failed['error']}")


def test_event_tail(tmp_path: Path) -> None:
    """The command prints the latest entries of the ledger; with -f, each new entry until the daemon stops."""
    workspace = a_pipeline_workspace(tmp_path)
    assert workspace.ductile("event", "tail").out == "Nothing has happened yet.\n"
    with (
        a_daemon(workspace) as daemon,
        subprocess.Popen(
            [DUCTILE, "event", "tail", "-f", "-n", "1", "--json", "--config", "demo"],
            cwd=workspace.directory,
            stdout=subprocess.PIPE,
            text=True,
        ) as follower,
    ):
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["kind"] == "config.loaded"
        run_id = workspace.json("pipeline", "run", "order")["job_id"]
        rows = (json.loads(line) for line in follower.stdout)
        entry = next(row for row in rows if row["kind"] == "core.switch")
        assert (entry["run_id"], entry["data"]["step"]) == (run_id, "big")
        daemon.end()
        assert follower.wait(PATIENCE) == 0
    lines = workspace.ductile("event", "tail", "-n", "1000").out.splitlines()
    assert any("core.switch" in line and "step=big" in line for line in lines)
    assert len(workspace.ductile("event", "tail", "-n", "3").out.splitlines()) == 3


def test_on_a_terminal_each_step_is_shown_as_it_ends(workspace: Workspace) -> None:
    """Ended steps are shown as progress; the result comes last."""
    terminal, process_end = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [DUCTILE, "pipeline", "run", "order", "--config", "demo"],
        cwd=workspace.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=process_end,
        stderr=subprocess.DEVNULL,
    )
    os.close(process_end)
    output = b""
    try:
        while part := os.read(terminal, 4096):
            output += part
    except OSError:
        pass  # a terminal without a writer raises this
    os.close(terminal)
    assert process.wait(PATIENCE) == 0
    assert output.decode().split("\r\n") == [
        "· make  maker handle  succeeded",
        "· end  echo handle  succeeded",
        "done",
        "",
    ]
