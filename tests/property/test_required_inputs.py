"""The required inputs of a pipeline are known before a run, and are never too many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from builders.conditions import conditions, evaluate, scopes
from builders.pipelines import claiming, graph_of, policy_of, split, uses
from ductile.core.events.model import Pipeline
from ductile.core.expressions.conditions import Condition
from ductile.core.expressions.paths import MISSING, EvalContext, look_up
from ductile.core.runs.required_inputs import find_required_inputs, first_use

PLAIN = graph_of(uses("only"))
GREETING = {"message": "hello {payload.name}"}
HAS_A = {"path": "payload.a", "op": "exists"}


@given(condition=conditions, scope=scopes)
def test_no_run_starts_without_what_is_required(condition: Condition, scope: EvalContext) -> None:
    """If the condition holds, every required input is present."""
    needs = find_required_inputs(Pipeline(name="flow", graph=PLAIN, condition=condition))
    assert needs.required <= needs.known
    if evaluate(condition, scope).is_true:
        assert all(look_up(f"payload.{path}", scope) is not MISSING for path in needs.required)


@pytest.mark.parametrize(
    ("condition", "required"),
    [
        ({"path": "payload.a", "op": "eq", "value": 1}, {"a"}),
        ({"path": "payload.a", "op": "eq", "value": None}, set()),
        ({"path": "payload.a", "op": "neq", "value": 1}, set()),
        ({"path": "payload.a.b", "op": "gt", "value": 1}, {"a.b"}),
        ({"path": "context.a", "op": "exists"}, set()),
        ({"all": [HAS_A, {"path": "payload.b", "op": "exists"}]}, {"a", "b"}),
        ({"any": [HAS_A, {"path": "payload.b", "op": "exists"}]}, set()),
        ({"any": [HAS_A, {"path": "payload.a", "op": "eq", "value": 1}]}, {"a"}),
        ({"not": HAS_A}, set()),
        ({"path": "run.payload.a", "op": "exists"}, {"a"}),
        ({"not": {"path": "payload.a", "op": "exists", "value": False}}, {"a"}),
    ],
)
def test_a_condition_requires_the_paths_it_reads(condition: Any, required: set[str]) -> None:
    """A missing value is null for eq, neq and in, and false for the others."""
    pipeline = {"name": "flow", "on": "go", "if": condition, "steps": [uses()]}
    assert (
        find_required_inputs(policy_of(pipeline, claiming("a")).pipelines.by_name["flow"]).required
        == required
    )


@pytest.mark.parametrize(
    ("steps", "required", "known"),
    [
        ([uses(with_=GREETING)], {"name"}, {"name"}),
        ([uses(with_={"a": ["{payload.x.y}", {"b": "{context.z}"}]})], {"x.y"}, {"x.y"}),
        ([uses(baggage={"kept": "payload.id"})], {"id"}, {"id"}),
        # Later steps get the result of the first step.
        ([uses(), uses(with_=GREETING)], set(), set()),
        ([uses(if_=HAS_A, with_=GREETING)], set(), {"a", "name"}),
        ([uses(if_=HAS_A, with_=GREETING), uses(with_=GREETING)], {"name"}, {"a", "name"}),
        ([split("s", uses("l", with_=GREETING), uses("r", with_={"b": "{payload.b}"}))], {"b", "name"}, ...),
        ([{"steps": [uses(with_=GREETING)]}], {"name"}, {"name"}),
        ([uses(with_={"braces": "{{payload.name}}"})], set(), set()),
        # The payload of the run is that of the caller in every step.
        ([uses(), uses(with_={"a": "{run.payload.b} {payload.c}"})], {"b"}, {"b"}),
        ([split("s", uses("l"), uses("r")), uses(baggage={"kept": "run.payload.b.c"})], {"b.c"}, {"b.c"}),
        ([uses(), uses(if_=HAS_A, with_={"a": "{run.payload.b}"})], set(), {"b"}),
        ([uses(), {"baggage": {"kept": "run.payload.b"}, "steps": [uses()]}], {"b"}, {"b"}),
        ([uses(on_events={"x": [uses(with_={"a": "{run.payload.b}"})]}), uses()], set(), {"b"}),
        (
            [
                {"if": HAS_A, "steps": [uses(with_={"a": "{run.payload.b}"})]},
                uses(with_={"a": "{run.payload.c}"}),
            ],
            {"c"},
            {"a", "b", "c"},
        ),
    ],
)
def test_first_steps_require_the_paths_they_read(steps: Any, required: set[str], known: Any) -> None:
    """A missing path fails the step that refers to it."""
    needs = find_required_inputs(Pipeline(name="flow", graph=graph_of(*steps)))
    assert needs.required == required
    assert needs.known == (required if known is ... else known)


@pytest.mark.parametrize(
    ("steps", "plain"),
    [
        ([uses("one"), uses("two")], "one"),
        ([{"id": "block", "steps": [uses("one")]}], "block/one"),
        ([uses("one", with_=GREETING)], None),
        ([uses("one", if_=HAS_A), uses("two")], None),
        ([split("s", uses("l"), uses("r"))], None),
    ],
)
def test_first_steps_without_with_get_the_payload_unchanged(steps: Any, plain: str | None) -> None:
    """The input of the command is then the input of the pipeline."""
    step = first_use(graph_of(*steps))
    assert (None if step is None else step.path) == plain
