"""`pipeline test` with the real program: files of cases, past runs, a payload; by CLI, HTTP and MCP."""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon
from builders.flows import a_flow_workspace
from builders.http import Api, an_api, token_for
from builders.mcp import an_agent

PIPELINES = """\
pipelines:
  - name: order
    on: order.placed
    steps:
      - {id: make, uses: work, baggage: {kept: payload.who}}
      - id: both
        split:
          - {id: left, uses: twice}
          - {id: right, uses: broken, if: {path: payload.total, op: gte, value: 100}}
        join: always
      - {id: end, uses: plain, with: {to: "{context.kept}", right: "{payload.branches.right.status}"}}
  - {name: other, steps: [{id: only, uses: plain}]}
"""
SMALL = '{"who": "Ada", "total": 35}'
LARGE = '{"who": "Bob", "total": 135}'
CHANGE = ("value: 100}", "value: 30}")


def edit(workspace: Workspace, old: str, new: str) -> None:
    text = workspace.config.read_text()
    assert old in text
    workspace.config.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Start a daemon with two past runs of `order`, the second with a failed branch."""
    workspace = a_flow_workspace(tmp_path_factory.mktemp("flow"), PIPELINES)
    with an_api(workspace) as api:
        for payload in (SMALL, LARGE):
            workspace.ductile("pipeline", "run", "order", "--payload", payload)
        yield api


@pytest.fixture
def edited(api: Api) -> Iterator[Workspace]:
    """Return the workspace with an edit on disk that is neither sealed nor loaded."""
    text = api.workspace.config.read_text()
    edit(api.workspace, *CHANGE)
    yield api.workspace
    api.workspace.config.write_text(text)


def run_cases(workspace: Workspace, *words: str, status: int = 0) -> dict[str, Any]:
    return workspace.json("pipeline", "test", *words, status=status)


def differences_by_path(case: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        difference["path"]: (difference["expected"], difference["actual"])
        for difference in case["differences"]
    }


def test_past_runs_go_as_they_went(api: Api) -> None:
    report = run_cases(api.workspace, "order", "--last", "5")
    assert (report["passed"], report["counts"]) == (True, {"passed": 2, "failed": 0})
    assert [case["status"] for case in report["cases"]] == ["partial_success", "succeeded"]
    assert report["left_out"] == []
    newest = report["cases"][0]
    assert newest["order"] == ["make", "both/left", "both/right", "end"]
    assert newest["synthetic"] == newest["other_input"] == []


def test_an_edit_shows_what_would_go_differently(edited: Workspace) -> None:
    """The step that differs is named. A step that did not run in the past run has a synthetic response."""
    report = run_cases(edited, "order", "--last", "5", status=1)
    assert report["counts"] == {"passed": 1, "failed": 1}
    (case,) = (item for item in report["cases"] if not item["passed"])
    assert differences_by_path(case) == {
        "steps.both/right.outcome": ('"bypassed"', '"succeeded"'),
        "steps.end.payload.right": ('"skipped"', '"succeeded"'),
    }
    assert case["synthetic"] == ["both/right"]
    assert case["other_input"] == ["end"]
    result = edited.ductile("pipeline", "test", "order", "--run", case["job_id"])
    assert result.status == 1
    assert 'steps.end.payload.right: expected "skipped", is "succeeded"' in result.out


def test_a_recorded_run_is_a_case_in_a_file(api: Api, tmp_path: Path) -> None:
    """Only its owner may read the file, which says that nothing is masked; no file is overwritten."""
    file = tmp_path / "order.yaml"
    result = api.workspace.ductile("pipeline", "test", "order", "--record", "last", "--output", str(file))
    assert result.status == 0, result
    assert "without masks" in result.err
    assert "without masks" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    report = run_cases(api.workspace, "--case", str(file))
    assert (report["passed"], len(report["cases"])) == (True, 1)
    assert report["cases"][0]["location"].startswith(f"{file}:")
    refusal = api.workspace.json(
        "pipeline", "test", "order", "--record", "last", "--output", str(file), status=1
    )
    assert refusal["error"]["code"] == "conflict"
    file.write_text(file.read_text().replace("outcome: failed", "outcome: succeeded"))
    (case,) = run_cases(api.workspace, "order", "--case", str(file), status=1)["cases"]
    assert case["differences"] == [
        {
            "path": "steps.both/right.outcome",
            "expected": '"succeeded"',
            "actual": '"failed"',
            "because": "it is broken",
            "hint": None,
        }
    ]
    several = tmp_path / "several.yaml"
    api.workspace.ductile("pipeline", "test", "order", "--record", "last", "--last", "2", "-o", str(several))
    assert run_cases(api.workspace, "--case", str(several))["counts"] == {"passed": 2, "failed": 0}


def test_a_directory_of_cases_is_run_as_in_a_build(api: Api) -> None:
    """Files in `tests` beside the configuration need not be named; all cases or those of one pipeline run."""
    directory = api.workspace.directory / "demo" / "tests"
    directory.mkdir()
    case: dict[str, Any] = {"name": "one", "expect": {"steps": {"only": {"outcome": "succeeded"}}}}
    (directory / "other.json").write_text(json.dumps({"pipeline": "other", "cases": [case]}))
    case["expect"] = {"steps": {"end": {"times": 1}, "ende": {}}}
    (directory / "order.yaml").write_text(json.dumps({"pipeline": "order", "cases": [case]}))
    try:
        assert run_cases(api.workspace, status=1)["counts"] == {"passed": 1, "failed": 1}
        assert run_cases(api.workspace, "other")["counts"] == {"passed": 1, "failed": 0}
        result = api.workspace.ductile("pipeline", "test", "--case", str(directory / "order.yaml"))
        assert result.status == 1
        assert "did you mean end?" in result.out
        assert "no payload.who" in result.out
        (directory / "order.yaml").write_text('{"pipeline": "ordr", "cases": [{"name": "x", "start": 1}]}')
        refusal = run_cases(api.workspace, status=78)
        (problem,) = refusal["error"]["details"]["problems"]
        assert (problem["key"], problem["line"]) == ("cases[0].start", 1)
        (directory / "order.yaml").write_text('{"pipeline": "ordr", "cases": [{"name": "x"}]}')
        (problem,) = run_cases(api.workspace, status=78)["error"]["details"]["problems"]
        assert problem["hint"] == "did you mean order?"
    finally:
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()


def test_a_payload_shows_the_path_with_each_input(api: Api) -> None:
    """Every step succeeds with a synthetic response, and nothing is run or stored."""
    highest = api.workspace.json("event", "tail")["highest"]
    result = api.workspace.ductile("pipeline", "test", "order", "--payload", SMALL)
    assert result.status == 0
    assert "synthetic responses: make, both/left" in result.out
    (case,) = run_cases(api.workspace, "order", "--payload", SMALL)["cases"]
    steps = {step["step"]: step for step in case["steps"]}
    assert steps["both/right"]["outcome"] == "bypassed"
    assert "there is no payload.total" in steps["both/right"]["because"]
    assert steps["end"]["jobs"][0]["payload"] == {"to": "Ada", "right": "skipped"}
    assert steps["end"]["jobs"][0]["context"] == {"kept": "Ada"}
    assert api.workspace.json("event", "tail")["highest"] == highest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("order", "--payload", "{}", "--last", "1"), "exclude each other"),
        (("--last", "1"), "needs the name of a pipeline"),
        (("order", "--output", "x"), "only with --record"),
        (("order", "--last", "many"), "whole number"),
        (("ordr", "--payload", "{}"), "there is no pipeline ordr"),
        (("order", "--run", "ffffffff"), "there is no job"),
        (("other", "--run", "last:order"), "is a run of order"),
        (("other", "--last", "1"), "there is no run of other"),
        (("order",), "there is no case for order"),
        (("order", "--record", "last:order", "--output", "none/here.yaml"), "there is no directory none"),
        (("--case", "absent.yaml"), "there is no file"),
    ],
)
def test_a_mistake_is_named(api: Api, words: tuple[str, ...], message: str) -> None:
    result = api.workspace.ductile("pipeline", "test", *words, "--json")
    assert result.status in (1, 2)
    assert message in json.loads(result.out)["error"]["message"]


def test_the_advice_where_there_is_no_case_can_be_typed(api: Api) -> None:
    """Both advised commands name the configuration, and work."""
    hint = api.workspace.ductile("pipeline", "test", "order").err
    commands = re.findall("`ductile ([^`]*)`", hint)
    assert len(commands) == 2, hint
    for command in commands:
        result = api.workspace.terminal.ductile(*shlex.split(command))
        assert (bool(result.out), "error:" in result.err) == (True, False), result


def test_over_http_by_reading_scopes(api: Api, edited: Workspace) -> None:
    """The files on disk are tested. Past runs need the right to read jobs besides that to read the system."""
    path = "/pipeline/order/test"
    headers = {"Authorization": f"Bearer {token_for('system:ro')}"}
    dry_run = api.post(path, {"payload": json.loads(SMALL)}, status=200, headers=headers)
    assert (dry_run["passed"], dry_run["cases"][0]["order"]) == (True, ["make", "both/left", "end"])
    responses = {"make": {"events": [{"type": "made", "payload": {"total": 35}}]}}
    case = {"name": "one", "start": {"payload": json.loads(SMALL)}, "steps": responses}
    case["expect"] = {"steps": {"both/right": {"outcome": "bypassed"}}}
    report = api.post(path, {"cases": [case]}, status=200, headers=headers)
    assert not report["passed"]  # in the edit 35 is enough
    api.post(path, {"last": 2}, status=403, headers=headers)
    assert api.post(path, {"last": 2}, status=200)["counts"] == {"passed": 1, "failed": 1}
    token = token_for("jobs:ro")
    api.post(path, {"payload": {}}, status=403, headers={"Authorization": f"Bearer {token}"})
    recorded = api.get("/pipeline/order/cases?last=5", token=token)
    assert len(recorded["cases"]) == len(recorded["runs"]) == 2
    second_report = api.post(path, {"cases": recorded["cases"]}, status=200)
    assert second_report["counts"] == {"passed": 1, "failed": 1}
    for body, status in (
        ({"cases": [{"name": 1}], "last": 1}, 422),
        ({"cases": [{}]}, 422),
        ({"cases": 1}, 422),
        ({"plan": "absent"}, 404),
        ({"run": "ffffffff"}, 404),
    ):
        api.post(path, body, status=status)
    (problem,) = api.post(path, {"cases": [{"name": "x", "strt": {}}]}, status=422)["error"]["details"][
        "problems"
    ]
    assert (problem["key"], problem["hint"]) == ("cases[0].strt", "did you mean start?")


async def test_an_agent_tests_a_plan_before_it_applies_it(api: Api) -> None:
    """The tool is read-only, and its answer has steps only where something differs."""
    async with an_agent(api.workspace) as agent:
        tool = (await agent.tools())["pipeline_test"]
        assert tool.annotations.read_only_hint
        unchanged_report = await agent.call("pipeline_test", pipeline="order", last=5)
        assert unchanged_report["passed"]
        assert not any("steps" in case for case in unchanged_report["cases"])
        key = "pipelines[0].steps[1].split[1].if.value"
        planned = await agent.call("config_plan", set={key: 30})
        report = await agent.call("pipeline_test", pipeline="order", last=5, plan=planned["plan"])
        assert report["counts"] == {"passed": 1, "failed": 1}
        (case,) = (item for item in report["cases"] if not item["passed"])
        assert [difference["path"] for difference in case["differences"]] == [
            "steps.both/right.outcome",
            "steps.end.payload.right",
        ]
        dry_run = await agent.call("pipeline_test", pipeline="order", payload=json.loads(SMALL))
        assert dry_run["cases"][0]["order"] == ["make", "both/left", "end"]
        error = await agent.refused("pipeline_test", pipeline="ordr")
        assert error["hint"] == "did you mean order?"


def test_without_a_daemon(tmp_path: Path) -> None:
    """Cases run also with an edit that is not sealed, with which a daemon would refuse to start."""
    workspace = a_flow_workspace(tmp_path, PIPELINES)
    assert workspace.ductile("config", "lock").status == 0
    assert workspace.ductile("pipeline", "run", "order", "--payload", SMALL).status == 0
    assert run_cases(workspace, "order", "--last", "1")["passed"]
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(workspace.config.read_text())
    edit(workspace, *CHANGE)
    assert run_cases(workspace, "order", "--run", "last", status=1)["counts"] == {"passed": 0, "failed": 1}
    # The runs are from the store of --config, and the pipeline is from the candidate.
    (workspace.directory / "demo" / "candidate.yaml").write_text(candidate.read_text())
    words = ("order", "--run", "last", "--candidate", str(workspace.directory / "demo" / "candidate.yaml"))
    assert run_cases(workspace, *words)["passed"]


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    """A run that has not ended or was cancelled cannot be recorded."""
    workspace = a_flow_workspace(tmp_path, PIPELINES.replace("uses: twice", "uses: gated"))
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace):
        run_id = workspace.json("pipeline", "run", "order", "--payload", SMALL, "--no-wait")["job_id"]
        error = run_cases(workspace, "order", "--record", run_id, status=1)["error"]
        assert "has not ended" in error["message"]
        workspace.ductile("job", "cancel", run_id)
        workspace.ductile("job", "wait", run_id)
        cancelled = run_cases(workspace, "order", "--run", run_id, status=1)["error"]
        assert "what its steps would have responded is not known" in cancelled["message"]
        report = run_cases(workspace, "order", "--last", "3", status=1)
        assert [run["job_id"] for run in report["left_out"]] == [run_id]
