"""Laws of conditions over all scopes and values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import given

from builders.conditions import conditions, evaluate, is_secret, json_values, scopes
from ductile.core.expressions.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Not,
    PathComparison,
    condition_result_to_json,
    explain_condition,
)
from ductile.core.expressions.operators import Operator, json_equal
from ductile.core.expressions.paths import EvalContext
from ductile.core.json import JsonValue
from ductile.struct import convert, to_builtins


def canonical(value: JsonValue) -> str:
    """A text that two values share exactly if they are the same: another way to the same answer."""
    match value:
        case bool() | None:
            return json.dumps(value)
        case int() | float():
            return str(int(value)) if value == int(value) else repr(value)
        case str():
            return json.dumps(value)
        case list():
            return f"[{','.join(map(canonical, value))}]"
        case dict():
            return f"{{{','.join(f'{json.dumps(key)}:{canonical(value[key])}' for key in sorted(value))}}}"


@given(json_values, json_values)
def test_same_is_sharing_a_canonical_form(one: JsonValue, other: JsonValue) -> None:
    """An equivalence by construction: reflexive, symmetric and transitive as equality of texts is."""
    assert json_equal(one, other) is (canonical(one) == canonical(other))


@given(json_values, json_values, json_values)
def test_same_is_an_equivalence(one: JsonValue, other: JsonValue, third: JsonValue) -> None:
    assert json_equal(one, one)
    assert json_equal(one, other) is json_equal(other, one)
    if json_equal(one, other) and json_equal(other, third):
        assert json_equal(one, third)


NOWHERE = object()


def naive_find(path: str, scope: EvalContext) -> Any:
    found: Any = {"payload": scope.payload, "context": scope.context, "config": scope.config}
    for key in path.split("."):
        try:
            found = found[int(key) if isinstance(found, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            return NOWHERE
    return found


def naive(condition: Condition, scope: EvalContext) -> bool:
    match condition:
        case AllOf(parts):
            return all([naive(part, scope) for part in parts])  # noqa: C419 - on purpose without short cut
        case AnyOf(parts):
            return any([naive(part, scope) for part in parts])  # noqa: C419 - on purpose without short cut
        case Not(part):
            return not naive(part, scope)
        case PathComparison(path=path, op=op, value=value):
            return naive_compare(naive_find(path, scope), op, value)


def naive_compare(found: Any, op: Operator, value: Any) -> bool:
    nowhere = found is NOWHERE
    text = canonical(None if nowhere else found)
    kinds = ({type(found), type(value)} <= {int, float}) or type(found) is type(value) is str
    folded = str(found).casefold(), str(value).casefold()
    texts = type(found) is type(value) is str
    elements = [canonical(entry) for entry in found] if isinstance(found, list) else []
    answers: dict[str, Callable[[], bool]] = {
        "exists": lambda: nowhere is not value,
        "eq": lambda: text == canonical(value),
        "neq": lambda: text != canonical(value),
        "in": lambda: isinstance(value, list) and text in [canonical(entry) for entry in value],
        "gt": lambda: kinds and found > value,
        "gte": lambda: kinds and found >= value,
        "lt": lambda: kinds and found < value,
        "lte": lambda: kinds and found <= value,
        "contains": lambda: (
            (texts and folded[1] in folded[0])
            or canonical(value) in elements
            or (isinstance(found, dict) and isinstance(value, str) and value in found)
        ),
        "startswith": lambda: texts and folded[0].startswith(folded[1]),
        "endswith": lambda: texts and folded[0].endswith(folded[1]),
        "regex": lambda: texts and re.fullmatch(str(value), str(found), re.IGNORECASE) is not None,
    }
    return answers[op]()


@given(conditions, scopes)
def test_a_condition_is_judged_as_one_would_by_hand(condition: Condition, scope: EvalContext) -> None:
    assert evaluate(condition, scope).is_true is naive(condition, scope)


@given(conditions, conditions, scopes)
def test_not_all_and_any_are_logic(one: Condition, other: Condition, scope: EvalContext) -> None:
    """Double negation and De Morgan's laws."""

    def holds(condition: Condition) -> bool:
        return evaluate(condition, scope).is_true

    assert holds(Not(Not(one))) is holds(one)
    assert holds(Not(AllOf((one, other)))) is holds(AnyOf((Not(one), Not(other))))
    assert holds(Not(AnyOf((one, other)))) is holds(AllOf((Not(one), Not(other))))


@given(conditions, scopes)
def test_the_deciding_comparisons_explain_the_verdict(condition: Condition, scope: EvalContext) -> None:
    """Fix the comparisons that decided at what they gave: whatever the others say, the verdict stays."""
    verdict = evaluate(condition, scope)
    assert verdict.deciding
    assert set(verdict.deciding) <= set(verdict.evaluated)
    decided = {(seen.path, seen.op, seen.expected): seen.is_true for seen in verdict.deciding}

    def settled(part: Condition, *, others: bool) -> bool:
        match part:
            case AllOf(parts):
                return all(settled(inner, others=others) for inner in parts)
            case AnyOf(parts):
                return any(settled(inner, others=others) for inner in parts)
            case Not(inner):
                return not settled(inner, others=not others)
            case PathComparison():
                (seen,) = evaluate(part, scope).deciding
                return decided.get((seen.path, seen.op, seen.expected), others)

    assert settled(condition, others=True) is settled(condition, others=False) is verdict.is_true


@given(conditions, scopes)
def test_an_explanation_tells_the_first_comparison_that_decided(
    condition: Condition, scope: EvalContext
) -> None:
    verdict = evaluate(condition, scope)
    first = verdict.deciding[0]
    assert f"{first.path} {first.op}" in explain_condition(verdict)
    assert f"is {'true' if first.is_true else 'false'}" in explain_condition(verdict)
    assert json.loads(json.dumps(condition_result_to_json(verdict)))["holds"] is verdict.is_true


@given(conditions, scopes)
def test_nothing_under_a_secret_key_is_quoted(condition: Condition, scope: EvalContext) -> None:
    for seen in evaluate(condition, scope).evaluated:
        if any(is_secret(key) for key in seen.path.split(".")):
            assert seen.found in (None, "***")


@given(conditions, scopes)
def test_a_condition_survives_being_stored(condition: Condition, scope: EvalContext) -> None:
    """Compiled graphs are kept as JSON."""
    stored = convert(json.loads(json.dumps(to_builtins(condition))), Condition)
    assert to_builtins(stored) == to_builtins(condition)
    assert evaluate(stored, scope) == evaluate(condition, scope)
