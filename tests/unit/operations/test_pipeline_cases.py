"""Test cases of pipelines: reading files, responses of steps, and differences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builders.configs import a_config
from builders.plugins import a_plugin
from builders.snapshots import HEAD
from ductile.admin.config import open_configuration
from ductile.config.load import SealMode
from ductile.config.snapshot import Snapshot
from ductile.core.runs.expectations import RunStatus, StepEnd
from ductile.errors import ConfigError, NotFoundError, Problem
from ductile.operations.pipeline_test.cases import (
    find_case_files,
    read_case_file,
    read_case_text,
    read_case_values,
)
from ductile.operations.pipeline_test.run import payload_case, report_results
from ductile.operations.pipeline_test.simulate import (
    CaseResult,
    refuse_unknown_pipelines,
    run_case,
    run_cases,
)

CONFIG = """\
service: {max_hops: 3}
plugins:
  fetch: {retry: {max_attempts: 3, backoff_base: 1s}}
  mail: {}
  shout: {run: [tr, a-z, A-Z], output: text}
  absent: {uses: mail, enabled: false}
routes: [{from: fetch, event_type: found, to: mail}]
pipelines:
  - name: order
    on: order.placed
    if: {path: payload.test, op: neq, value: true}
    steps:
      - {id: fetch, uses: fetch, baggage: {who: payload.who}}
      - id: big
        if: {path: payload.total, op: gte, value: 100}
        steps: [{id: warn, uses: mail, with: {text: "{context.who} ordered {payload.total}"}}]
      - {id: end, uses: mail, with: {total: "{payload.total}"}}
  - name: fan
    steps:
      - id: both
        split: [{id: left, uses: fetch}, {id: right, uses: mail}]
        join: always
      - {id: after, uses: mail, with: {left: "{payload.branches.left.status}"}}
  - name: many
    steps:
      - {id: list, uses: fetch}
      - {id: each, uses: mail, retry: {max_attempts: 2}}
  - {name: loud, steps: [{id: shout, uses: shout}, {id: end, uses: mail}]}
  - {name: off, steps: [{id: first, uses: absent}]}
"""
HANDLES = "  handle: {type: write}\n"
EMITS = """\
  handle:
    type: write
    values: {emit: [{event: found, values: [payload.total, payload.by.name, payload.by]}]}
"""


def load_snapshot(directory: Path, *, fetch: str = HANDLES) -> Snapshot:
    """Return the snapshot of the configuration above, with the plugins fetch and mail installed."""
    for name, commands in (("fetch", fetch), ("mail", HANDLES)):
        a_plugin(directory / "plugins", name, manifest=HEAD.format(name=name) + commands)
    environ = {"PATH": os.environ["PATH"]}
    return open_configuration(a_config(directory, CONFIG), environ, seal=SealMode.IGNORE).snapshot


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return load_snapshot(tmp_path_factory.mktemp("config"))


def run_one_case(snapshot: Snapshot, pipeline: str, **case: Any) -> CaseResult:
    case_values: dict[str, Any] = {"name": "one", **case}
    (parsed_case,) = read_case_values(pipeline, [case_values])
    return run_case(snapshot, parsed_case)


# ------------------------------------------------------------------------------------------------- files


def problems_in(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as excinfo:
        read_case_text(text, "cases.yaml")
    return excinfo.value.problems


def test_a_mistake_is_reported_with_file_line_and_key() -> None:
    (problem,) = problems_in("pipeline: order\ncases:\n  - name: one\n    step: {}\n")
    assert (problem.file, problem.line, problem.key) == ("cases.yaml", 4, "cases[0].step")
    assert problem.hint == "did you mean steps?"


@pytest.mark.parametrize(
    ("case_yaml", "key", "words"),
    [
        ("{steps: {a: {error: no, result: 1, exit: 2}}}", "cases[0].steps.a", "exclude each other"),
        ("{steps: {a: {events: [{type: x}], error: no}}}", "cases[0].steps.a", "exclude each other"),
        ("{steps: {a: {retry: false}}}", "cases[0].steps.a.retry", "beside error"),
        ("{steps: {a: {stderr: why}}}", "cases[0].steps.a.stderr", "beside exit"),
        ("{steps: {a: {error: no, reason: completed}}}", "cases[0].steps.a.reason", "cannot be used"),
        ("{steps: {a: {error: ' '}}}", "cases[0].steps.a.error", "blank"),
        ("{steps: {a: {result: 1, attempts: [{}]}}}", "cases[0].steps.a", "attempts"),
        ("{steps: {a: {result: 1, occurrences: [{}]}}}", "cases[0].steps.a", "occurrences"),
        (
            "{steps: {a: {occurrences: [{error: no, timed_out: true}]}}}",
            "cases[0].steps.a.occurrences[0]",
            "exclude",
        ),
        ("{ignore: [event.at]}", "cases[0].ignore[0]", "cannot be ignored"),
        ("{expect: {status: fine}}", "cases[0].expect.status", "cannot be used"),
        ("{expect: {steps: {a: {times: -1}}}}", "cases[0].expect.steps.a.times", "cannot be used"),
        ("{start: {payload: [1]}}", "cases[0].start.payload", "not a map"),
    ],
)
def test_a_case_that_cannot_be_meant_is_refused(case_yaml: str, key: str, words: str) -> None:
    (problem,) = problems_in(f"pipeline: order\ncases: [{{name: one, {case_yaml[1:]}]\n")
    assert problem.key == key
    assert words in problem.message


def test_names_are_unique_and_there_is_at_least_one_case() -> None:
    assert "occurs twice" in problems_in("pipeline: p\ncases: [{name: a}, {name: a}]")[0].message
    assert "no case" in problems_in("pipeline: p\ncases: []")[0].message
    assert "not a file of cases" in problems_in("- 1")[0].message


def test_cases_of_a_request_are_read_by_the_same_rules() -> None:
    with pytest.raises(ConfigError, match=r"^the cases cannot be used") as excinfo:
        read_case_values("order", [{"name": "one", "start": {"payload": []}}])
    (problem,) = excinfo.value.problems
    assert (problem.key, problem.file, problem.line) == ("cases[0].start.payload", None, None)
    nested: dict[str, Any] = {"a": [1, 2.5, -3, True, None, "1", {"b": "null"}], "1": 10**20}
    (case,) = read_case_values("order", [{"name": "one", "start": {"payload": nested}}])
    assert case.start.payload == nested


def test_files_are_found_in_directories(tmp_path: Path) -> None:
    text = json.dumps({"pipeline": "order", "cases": [{"name": "one"}]})
    for name in ("b.yaml", "a.json", "notes.txt"):
        (tmp_path / name).write_text(text)
    files = find_case_files([tmp_path])
    assert [path.name for path in files] == ["a.json", "b.yaml"]
    assert [case.location for case in read_case_file(files[1])] == [f"{files[1]}:1"]
    with pytest.raises(NotFoundError, match="there is no case in"):
        find_case_files(
            [tmp_path.parent / tmp_path.name / ".." / tmp_path.name / "notes.txt", _empty(tmp_path)]
        )
    with pytest.raises(NotFoundError, match="there is no file"):
        read_case_file(tmp_path / "absent.yaml")


def _empty(directory: Path) -> Path:
    (directory / "empty").mkdir()
    return directory / "empty"


def test_a_pipeline_that_is_not_configured_is_named(snapshot: Snapshot) -> None:
    cases = read_case_text("pipeline: ordr\ncases: [{name: one}]", "x.yaml")
    with pytest.raises(ConfigError) as excinfo:
        refuse_unknown_pipelines(snapshot, cases)
    assert excinfo.value.problems[0].hint == "did you mean order?"


# ----------------------------------------------------------------------------------------------- responses


def difference_paths(result: CaseResult) -> dict[str, Any]:
    """Return the paths of the differences with the expected and the actual value."""
    return {
        ".".join(difference.path): (difference.expected, difference.actual)
        for difference in result.differences
    }


def test_a_case_that_goes_as_expected_has_no_differences(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot,
        "order",
        start={"payload": {"who": "Ada"}},
        steps={
            "fetch": {"result": 1, "events": [{"type": "found", "payload": {"total": 100}}]},
            "big/warn": {"result": "sent", "events": [{"type": "sent", "payload": {"total": 100}}]},
        },
        expect={
            "status": "succeeded",
            "order": ["fetch", "big/warn", "end"],
            "starts": ["mail.handle"],
            "steps": {
                "big": {"outcome": "entered"},
                "big/warn": {"payload": {"text": "Ada ordered 100"}, "context": {"who": "Ada"}, "times": 1},
                "end": {"outcome": "succeeded", "payload": {"total": 100}},
            },
        },
    )
    assert result.differences == ()
    assert result.synthetic == ("end",)


def test_every_difference_is_named_with_the_comparison_that_decided(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot,
        "order",
        start={"payload": {"who": "Ada"}},
        steps={"fetch": {"events": [{"type": "found", "payload": {"total": 35}}]}},
        expect={
            "status": "failed",
            "result": {"n": 1},
            "order": [],
            "starts": [],
            "steps": {
                "big": {"outcome": "entered"},
                "big/warn": {"payload": {}},
                "end": {"payload": {"total": 36}, "context": {"who": "Bob"}, "attempts": 2, "error": "x"},
                "ende": {},
                "warn": {},
            },
        },
    )
    differences = difference_paths(result)
    assert differences.keys() == {
        "status", "result", "order", "starts", "steps.big.outcome", "steps.big/warn.payload",
        "steps.end.payload.total", "steps.end.context.who", "steps.end.attempts", "steps.end.error",
        "steps.ende", "steps.warn",
    }  # fmt: skip
    assert differences["steps.end.payload.total"] == (36, 35)
    by_path = {".".join(difference.path): difference for difference in result.differences}
    assert by_path["steps.big.outcome"].because == (
        "the condition does not hold: payload.total gte 100 is false (found 35)"
    )
    assert by_path["steps.ende"].hint == "did you mean end?"
    assert by_path["steps.warn"].hint == "did you mean big/warn?"


def test_a_response_for_an_unknown_step_is_a_difference(snapshot: Snapshot) -> None:
    (difference,) = run_one_case(snapshot, "loud", steps={"shuot": {"result": "x"}}).differences
    assert (difference.path, difference.hint) == (("steps", "shuot"), "did you mean shout?")


def test_the_if_of_the_pipeline_and_the_hop_limit_prevent_the_start(snapshot: Snapshot) -> None:
    not_started = run_one_case(
        snapshot, "order", start={"payload": {"test": True}}, expect={"status": "not_started"}
    )
    assert not_started.passed
    assert not_started.observed is not None
    assert "payload.test neq true is false" in str(not_started.observed.error)
    far = run_one_case(snapshot, "loud", start={"hops": 4}, expect={"error": "service.max_hops"})
    assert far.passed
    # The run may start, and the events of its steps would exceed the limit.
    last = run_one_case(
        snapshot,
        "order",
        start={"hops": 3, "payload": {"who": 1}},
        steps={"fetch": {"events": [{"type": "found", "payload": {"total": 1}}]}},
        expect={"status": "succeeded", "starts": []},
    )
    assert last.passed
    assert len(last.dropped) == 1


def test_failed_attempts_are_followed_by_a_success(snapshot: Snapshot) -> None:
    attempts = [
        {"error": "no network"},
        {"timed_out": True},
        {"result": 1, "events": [{"type": "x", "payload": {"total": 1}}]},
    ]
    result = run_one_case(
        snapshot,
        "order",
        start={"payload": {"who": "Ada"}},
        steps={"fetch": {"attempts": attempts}},
        expect={"status": "succeeded", "steps": {"fetch": {"outcome": "succeeded", "attempts": 3}}},
    )
    assert result.differences == ()


def test_the_last_attempt_is_repeated_until_none_is_left(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot,
        "fan",
        steps={"both/left": {"error": "no network"}},
        expect={
            "status": "partial_success",
            "error": "both/left: no network",
            "steps": {
                "both/left": {"outcome": "failed", "attempts": 3, "error": "network"},
                "after": {"payload": {"left": "failed"}},
            },
        },
    )
    # `join: always` continues, so the end of the run itself succeeded.
    assert result.differences == ()


def test_an_error_that_allows_no_retry_ends_the_step(snapshot: Snapshot) -> None:
    for response in (
        {"error": "no", "retry": False},
        {"exit": 78},
        {"error": "no", "retry": False, "reason": "killed"},
    ):
        result = run_one_case(
            snapshot,
            "many",
            steps={"list": response},
            expect={
                "status": "failed",
                "steps": {"list": {"attempts": 1}, "each": {"outcome": "not_reached"}},
            },
        )
        assert result.differences == (), response


def test_a_bad_response_is_a_protocol_error_as_of_a_plugin(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot, "many", steps={"list": {"result": None}}, expect={"status": "failed", "error": "`result`"}
    )
    assert result.differences == ()


def events(*numbers: int) -> list[dict[str, Any]]:
    return [{"type": "item", "payload": {"n": number}} for number in numbers]


def test_runs_of_one_step_have_the_response_to_their_input(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot,
        "many",
        steps={
            "list": {"events": events(1, 2, 3)},
            "each": {
                "occurrences": [
                    {"for": {"n": 3}, "error": "odd", "retry": False},
                    {"for": {"n": 1}, "attempts": [{"error": "later"}, {"result": "one"}]},
                    {"result": "rest"},
                ]
            },
        },
        expect={
            "status": "partial_success",
            "steps": {
                "each": {
                    "outcome": "failed",
                    "times": 3,
                    "occurrences": [
                        {"outcome": "succeeded", "attempts": 2, "payload": {"n": 1}},
                        {"outcome": "failed", "error": "odd"},
                        {"outcome": "succeeded", "attempts": 1},
                    ],
                }
            },
        },
    )
    assert difference_paths(result).keys() == {"steps.each.occurrences.1.payload.result"}
    second_result = run_one_case(
        snapshot,
        "many",
        steps={"list": {"events": events(1, 2)}, "each": {"occurrences": [{"for": {"n": 5}, "result": 1}]}},
    )
    assert second_result.other_input == ("each",)
    assert "more often than the case has responses" in str(second_result.differences[0].because)


def test_ignored_paths_are_not_compared(snapshot: Snapshot) -> None:
    case: dict[str, Any] = {
        "steps": {"list": {"result": 7, "events": events(1)}, "each": {"result": {"at": 1, "n": 2}}},
        "expect": {"result": {"at": 0, "n": 2}, "steps": {"each": {"payload": {"n": 5, "result": 7}}}},
    }
    assert difference_paths(run_one_case(snapshot, "many", **case)).keys() == {
        "result.at",
        "steps.each.payload.n",
    }
    assert run_one_case(snapshot, "many", ignore=["result.at", "payload.n"], **case).passed


def test_the_response_of_a_script_is_its_output(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot, "loud", steps={"shout": {"result": "HELLO"}}, expect={"status": "succeeded"}
    )
    assert result.differences == ()
    assert result.observed is not None
    assert result.observed.steps["end"].jobs[0].payload["result"] == "HELLO"
    failed = run_one_case(
        snapshot, "loud", steps={"shout": {"exit": 3, "stderr": "no tty"}}, expect={"error": "no tty"}
    )
    assert failed.differences == ()


def test_a_disabled_plugin_fails_its_step_as_in_a_real_run(snapshot: Snapshot) -> None:
    result = run_one_case(snapshot, "off", steps={"first": {"result": 1}}, expect={"status": "succeeded"})
    assert "the plugin absent is not active" in str(result.differences[0].because)


def test_a_dry_run_shows_each_input(snapshot: Snapshot, tmp_path: Path) -> None:
    result = run_case(snapshot, payload_case("order", {"who": "Ada"}))
    assert result.passed
    assert result.observed is not None
    assert result.observed.steps["end"].outcome is StepEnd.NOT_CREATED
    assert "payload has result" in str(result.observed.steps["end"].cause)
    assert result.observed.status is RunStatus.FAILED
    # If the manifest declares the event of the command, its values are synthetic.
    declared_snapshot = load_snapshot(tmp_path, fetch=EMITS)
    full_result = run_one_case(
        declared_snapshot, "many", expect={"steps": {"each": {"payload": {"total": "synthetic total"}}}}
    )
    assert difference_paths(full_result).keys() == {"steps.each.payload.by", "steps.each.payload.result"}
    result = run_case(declared_snapshot, payload_case("order", {"who": "Ada"}))
    assert result.observed is not None
    assert result.observed.steps["end"].jobs[0].payload == {"total": "synthetic total"}


def test_secrets_are_masked_in_reports(snapshot: Snapshot) -> None:
    result = run_one_case(
        snapshot,
        "loud",
        start={"payload": {"api_key": "canary-1"}},
        expect={"steps": {"shout": {"payload": {"api_key": "canary-2"}}}},
    )
    report = report_results(snapshot, [result])
    assert not report.passed
    assert "canary" not in str(report)


def test_the_same_case_gives_the_same_report(snapshot: Snapshot) -> None:
    first, second = (report_results(snapshot, [run_one_case(snapshot, "fan")]) for _ in range(2))
    assert first == second


def test_a_run_without_end_is_given_up(snapshot: Snapshot) -> None:
    """The limit is for all cases of a request together."""
    steps: dict[str, Any] = {"list": {"events": events(*range(9))}}
    cases = read_case_values("many", [{"name": name, "steps": steps} for name in ("one", "two")])
    first, second = run_cases(snapshot, cases, max_executions=15)
    assert (first.passed, first.executions) == (True, 10)
    assert "needs more than 5 executions" in str(second.differences[0].because)
    report = report_results(snapshot, [first, second])
    assert report.cases[1].status is None
