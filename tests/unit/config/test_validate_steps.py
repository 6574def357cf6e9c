"""Validation and compilation of conditions, `with` and `baggage`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config, loaded, problems_of
from ductile.config.compile.pipelines import compile_condition
from ductile.core.expressions.conditions import AllOf, AnyOf, Not, PathComparison
from ductile.core.expressions.operators import Operator
from ductile.struct import to_builtins

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.config.schema.pipelines import StepSettings
    from ductile.errors import Problem

CANARY = "c4nary"


def config_with_step(directory: Path, step: str) -> Path:
    """Return a pipeline with one step whose context may have `x`, `y` and `token`."""
    claims = "{name: claims, steps: [{uses: e, baggage: {x: payload.x, y: payload.x, token: payload.x}}]}"
    return a_config(
        directory,
        f"plugins: {{e: {{}}}}\npipelines: [{{name: p, on: go, steps: [{{uses: e, {step}}}]}}, {claims}]\n",
    )


def only_problem(directory: Path, step: str) -> Problem:
    (problem,) = problems_of(config_with_step(directory, step), {"SECRET": f"{{{CANARY}}} {{ \\{CANARY}("})
    assert problem.line == 2
    return problem


def load_step(directory: Path, step: str) -> StepSettings:
    return loaded(config_with_step(directory, step)).model.pipelines[0].steps[0]


@pytest.mark.parametrize(
    ("condition", "key", "words", "found"),
    [
        ("{path: payload.x, op: gt, value: [1]}", ".value", "`gt` takes a number or text", "a list"),
        (
            "{path: payload.x, op: lte, value: true}",
            ".value",
            "`lte` takes a number or text",
            "true or false",
        ),
        ("{path: payload.x, op: gte, value: {a: 1}}", ".value", "`gte` takes a number or text", "a map"),
        ("{path: payload.x, op: lt, value: null}", ".value", "`lt` takes a number or text", "nothing"),
        ("{path: payload.x, op: startswith, value: 5}", ".value", "`startswith` takes text", "a number"),
        ("{path: payload.x, op: endswith, value: [a]}", ".value", "`endswith` takes text", "a list"),
        ("{path: payload.x, op: regex, value: 5}", ".value", "`regex` takes text", "a number"),
        ("{path: payload.x, op: in, value: abc}", ".value", "`in` takes a list", "text"),
        ("{path: payload.x, op: exists, value: 1}", ".value", "`exists` takes no value", "a number"),
        ("{path: payload.x, op: regex, value: 'a('}", ".value", "regular expression: missing ), at", None),
        ("{path: payload.x}", "", "both `path` and `op`", None),
        ("{op: exists}", "", "both `path` and `op`", None),
        ("{path: payload.x, op: contains}", "", "`contains` needs a `value`", None),
        ("{path: paylod.x, op: exists}", ".path", "invalid path: it begins with none of", '"paylod.x"'),
        ("{path: run, op: exists}", ".path", "none of run.id, run.pipeline, run.payload", '"run"'),
        ("{path: run.x, op: exists}", ".path", "none of run.id, run.pipeline, run.payload", '"run.x"'),
        ("{path: run.id.x, op: exists}", ".path", "none of run.id", '"run.id.x"'),
        ("{path: payload..x, op: exists}", ".path", "empty part", '"payload..x"'),
        (
            "{path: event, op: exists}",
            ".path",
            "none of event.type, event.source and event.headers",
            '"event"',
        ),
        ("{path: event.payload.x, op: exists}", ".path", "none of event.type", '"event.payload.x"'),
        ("{path: event.headers, op: exists}", ".path", "none of event.type", '"event.headers"'),
        ("{path: event.headers.a.b, op: exists}", ".path", "none of event.type", '"event.headers.a.b"'),
        ("{path: event.headers., op: exists}", ".path", "has an empty part", '"event.headers."'),
        (
            "{path: event.headers.X-Kind, op: exists}",
            ".path",
            "known as event.headers.x-kind",
            '"event.headers.X-Kind"',
        ),
        ("{all: []}", ".all", "at least one condition", None),
        ("{not: {path: payload.x, op: gt, value: []}}", ".not.value", "`gt` takes", "a list"),
        ("{not: {path: payload.x, op: exists}, value: 1}", ".value", "goes with `path`", None),
    ],
)
def test_an_impossible_condition_is_an_error_at_its_key(
    tmp_path: Path, condition: str, key: str, words: str, found: str | None
) -> None:
    """The message contains only the type of a value."""
    problem = only_problem(tmp_path, f"if: {condition}")
    assert problem.key == f"pipelines[0].steps[0].if{key}"
    assert words in problem.message
    assert problem.found == found


@pytest.mark.parametrize(
    ("step_yaml", "key", "words", "found"),
    [
        ("with: {a: 'x {payload.y'}", "with.a", "a { at character 3 has no partner", None),
        ("with: {a: [1, {b: '{event.type}'}]}", "with.a[1].b", "begins with none of", "{event.type}"),
        ("with: {a: '{}'}", "with.a", "is empty", None),
        ("baggage: {a: '{payload.x}'}", "baggage.a", "begins with none of", '"{payload.x}"'),
        ("baggage: {a.b: 5}", "baggage.a.b", "not a path", None),
        ("baggage: {ductile_plugin: payload.x}", "baggage.ductile_plugin", "reserved", None),
        ("baggage: {from: payload.x}", "baggage", "go together", "from"),
        ("baggage: {from: payload.x, namespace: a..b}", "baggage.namespace", "empty part", None),
    ],
)
def test_a_bad_template_or_baggage_is_an_error_at_its_key(
    tmp_path: Path, step_yaml: str, key: str, words: str, found: str | None
) -> None:
    """The message names the character position where there is one."""
    problem = only_problem(tmp_path, step_yaml)
    assert problem.key == f"pipelines[0].steps[0].{key}"
    assert words in problem.message
    assert problem.found == found


@pytest.mark.parametrize(
    "step_yaml",
    [
        f"if: {{path: config.token, op: regex, value: '\\{CANARY}('}}",
        "if: {path: payload.x, op: regex, value: '${SECRET}'}",
        "if: {path: payload.x, op: in, value: '${SECRET}'}",
        "if: {path: '${SECRET}', op: exists}",
        "baggage: {a: '${SECRET}'}",
        f"with: {{api_key: '{{{CANARY}}}'}}",
        f"with: {{password: ['{{{CANARY}}}']}}",
    ],
)
def test_no_message_quotes_a_possible_secret(tmp_path: Path, step_yaml: str) -> None:
    """Neither the value of a variable nor a value under a secret key is quoted."""
    assert CANARY not in repr(only_problem(tmp_path, step_yaml))


@pytest.mark.parametrize(
    "comparison",
    ["path: config.token, op: regex, value: 'a('", "path: payload.x, op: regex, value: '${SECRET}'"],
)
def test_the_fault_of_a_secret_expression_is_not_shown(tmp_path: Path, comparison: str) -> None:
    """The fault would reveal characters of the secret."""
    assert only_problem(tmp_path, f"if: {{{comparison}}}").message == "this is not a regular expression"


def test_faults_of_a_text_from_a_variable_do_not_quote_it(tmp_path: Path) -> None:
    problems = problems_of(
        config_with_step(tmp_path, "with: {a: '${SECRET}'}"), {"SECRET": f"{{{CANARY}}} {{ {CANARY}"}
    )
    assert [problem.key for problem in problems] == ["pipelines[0].steps[0].with.a"] * 2
    assert CANARY not in repr(problems)


def test_the_condition_of_a_pipeline_is_validated_too(tmp_path: Path) -> None:
    text = "plugins: {e: {}}\npipelines: [{name: p, if: {path: x, op: exists}, steps: [{uses: e}]}]\n"
    (problem,) = problems_of(a_config(tmp_path, text))
    assert problem.key == "pipelines[0].if.path"


def test_a_condition_is_compiled_as_it_is_written(tmp_path: Path) -> None:
    """The stored form equals the written one, with the default value of `exists`."""
    condition_yaml = (
        "{all: [{path: payload.x, op: eq, value: null}, {any: [{path: context.y, op: exists}, "
        "{not: {path: event.type, op: in, value: [a, 1]}}]}]}"
    )
    condition = load_step(tmp_path, f"if: {condition_yaml}").condition
    assert condition is not None
    compiled = compile_condition(condition)
    assert compiled == AllOf(
        (
            PathComparison(path="payload.x", op=Operator.EQ, value=None),
            AnyOf(
                (
                    PathComparison(path="context.y", op=Operator.EXISTS, value=True),
                    Not(PathComparison(path="event.type", op=Operator.IN, value=["a", 1])),
                )
            ),
        )
    )
    assert json.loads(json.dumps(to_builtins(compiled)))["all"] == [
        {"kind": "comparison", "path": "payload.x", "op": "eq", "value": None},
        {
            "kind": "any",
            "any": [
                {"kind": "comparison", "path": "context.y", "op": "exists", "value": True},
                {
                    "kind": "not",
                    "not": {"kind": "comparison", "path": "event.type", "op": "in", "value": ["a", 1]},
                },
            ],
        },
    ]


@pytest.mark.parametrize(
    "step_yaml",
    [
        "if: {path: payload, op: contains, value: x}",
        "if: {path: payload.x, op: exists, value: false}",
        "if: {path: payload.x, op: eq, value: null}",
        "if: {path: payload.x, op: gt, value: '2026-01-01'}",
        "if: {path: payload.x, op: contains, value: [1]}",
        "if: {path: event.source, op: regex, value: '(?<name>a)++b'}",
        "with: {'{': '{{', a: '{payload}', b: ['{context.x.0}', 1.5, null]}",
        "with: {}",
        "baggage: {a.b: payload.x, a.c: context.y}",
        "baggage: {from: payload, namespace: a.b}",
        "with: {a: '{run.payload.x}', b: '{run.id}', c: '{run.pipeline}', d: '{run.payload}'}",
        "baggage: {a: run.payload.x}",
        "if: {path: run.payload.x, op: exists}",
    ],
)
def test_valid_steps_are_accepted(tmp_path: Path, step_yaml: str) -> None:
    assert load_step(tmp_path, step_yaml).uses == "e"


@pytest.mark.parametrize(
    "step_yaml",
    [
        "baggage: {token: payload.token}",
        "baggage: {user.token: context.token}",
        "with: {token: '{payload.token}'}",
        "with: {header: {authorization: 'Bearer {context.token}'}}",
    ],
)
def test_a_reference_is_not_a_secret_in_the_clear(tmp_path: Path, step_yaml: str) -> None:
    """Strict mode refuses literal secrets; a path to one is not a literal."""
    assert loaded(config_with_step(tmp_path, step_yaml)).warnings == ()


@pytest.mark.parametrize("step_yaml", ["with: {token: abc}", "with: {token: 'abc {{payload.x}}'}"])
def test_a_literal_secret_in_a_template_is_reported(tmp_path: Path, step_yaml: str) -> None:
    (warning,) = loaded(config_with_step(tmp_path, step_yaml)).warnings
    assert "in the clear" in warning.message


def test_a_value_compared_with_a_secret_is_a_secret(tmp_path: Path) -> None:
    """The value reveals the secret, so it is reported and never shown."""
    config = loaded(config_with_step(tmp_path, "if: {path: config.api_key, op: eq, value: canary-77}"))
    (warning,) = config.warnings
    assert "in the clear" in warning.message
    assert "canary-77" not in str(config.redacted())


def test_other_compared_values_are_shown(tmp_path: Path) -> None:
    config = loaded(config_with_step(tmp_path, "if: {path: payload.kind, op: eq, value: parcel}"))
    assert "parcel" in str(config.redacted())
