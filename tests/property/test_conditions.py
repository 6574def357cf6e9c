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
    """Return a text that two values share exactly if they are equal."""
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
def test_same_is_sharing_a_canonical_form(first: JsonValue, second: JsonValue) -> None:
    """The relation is an equivalence, because equality of texts is one."""
    assert json_equal(first, second) is (canonical(first) == canonical(second))


@given(json_values, json_values, json_values)
def test_same_is_an_equivalence(first: JsonValue, second: JsonValue, third: JsonValue) -> None:
    assert json_equal(first, first)
    assert json_equal(first, second) is json_equal(second, first)
    if json_equal(first, second) and json_equal(second, third):
        assert json_equal(first, third)


NOWHERE = object()


def naive_find(path: str, scope: EvalContext) -> Any:
    node: Any = {"payload": scope.payload, "context": scope.context, "config": scope.config}
    for key in path.split("."):
        try:
            node = node[int(key) if isinstance(node, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            return NOWHERE
    return node


def naive(condition: Condition, scope: EvalContext) -> bool:
    match condition:
        case AllOf(parts):
            return all([naive(part, scope) for part in parts])  # noqa: C419 - without short circuit on purpose
        case AnyOf(parts):
            return any([naive(part, scope) for part in parts])  # noqa: C419 - without short circuit on purpose
        case Not(part):
            return not naive(part, scope)
        case PathComparison(path=path, op=op, value=value):
            return naive_compare(naive_find(path, scope), op, value)


def naive_compare(actual: Any, op: Operator, value: Any) -> bool:
    is_missing = actual is NOWHERE
    text = canonical(None if is_missing else actual)
    kinds = ({type(actual), type(value)} <= {int, float}) or type(actual) is type(value) is str
    folded = str(actual).casefold(), str(value).casefold()
    texts = type(actual) is type(value) is str
    elements = [canonical(entry) for entry in actual] if isinstance(actual, list) else []
    answers: dict[str, Callable[[], bool]] = {
        "exists": lambda: is_missing is not value,
        "eq": lambda: text == canonical(value),
        "neq": lambda: text != canonical(value),
        "in": lambda: isinstance(value, list) and text in [canonical(entry) for entry in value],
        "gt": lambda: kinds and actual > value,
        "gte": lambda: kinds and actual >= value,
        "lt": lambda: kinds and actual < value,
        "lte": lambda: kinds and actual <= value,
        "contains": lambda: (
            (texts and folded[1] in folded[0])
            or canonical(value) in elements
            or (isinstance(actual, dict) and isinstance(value, str) and value in actual)
        ),
        "startswith": lambda: texts and folded[0].startswith(folded[1]),
        "endswith": lambda: texts and folded[0].endswith(folded[1]),
        "regex": lambda: texts and re.fullmatch(str(value), str(actual), re.IGNORECASE) is not None,
    }
    return answers[op]()


@given(conditions, scopes)
def test_a_condition_is_judged_as_one_would_by_hand(condition: Condition, scope: EvalContext) -> None:
    assert evaluate(condition, scope).is_true is naive(condition, scope)


@given(conditions, conditions, scopes)
def test_not_all_and_any_are_logic(first: Condition, second: Condition, scope: EvalContext) -> None:
    """Double negation and De Morgan's laws hold."""

    def holds(condition: Condition) -> bool:
        return evaluate(condition, scope).is_true

    assert holds(Not(Not(first))) is holds(first)
    assert holds(Not(AllOf((first, second)))) is holds(AnyOf((Not(first), Not(second))))
    assert holds(Not(AnyOf((first, second)))) is holds(AllOf((Not(first), Not(second))))


@given(conditions, scopes)
def test_the_deciding_comparisons_explain_the_verdict(condition: Condition, scope: EvalContext) -> None:
    """With the results of the deciding comparisons fixed, the verdict does not depend on the others."""
    verdict = evaluate(condition, scope)
    assert verdict.deciding
    assert set(verdict.deciding) <= set(verdict.evaluated)
    decided_results = {
        (comparison.path, comparison.op, comparison.expected): comparison.is_true
        for comparison in verdict.deciding
    }

    def decide_part(part: Condition, *, others: bool) -> bool:
        match part:
            case AllOf(parts):
                return all(decide_part(inner, others=others) for inner in parts)
            case AnyOf(parts):
                return any(decide_part(inner, others=others) for inner in parts)
            case Not(inner):
                return not decide_part(inner, others=not others)
            case PathComparison():
                (comparison,) = evaluate(part, scope).deciding
                return decided_results.get((comparison.path, comparison.op, comparison.expected), others)

    assert decide_part(condition, others=True) is decide_part(condition, others=False) is verdict.is_true


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
    for comparison in evaluate(condition, scope).evaluated:
        if any(is_secret(key) for key in comparison.path.split(".")):
            assert comparison.found in (None, "***")


@given(conditions, scopes)
def test_a_condition_survives_being_stored(condition: Condition, scope: EvalContext) -> None:
    """Compiled graphs are stored as JSON."""
    restored = convert(json.loads(json.dumps(to_builtins(condition))), Condition)
    assert to_builtins(restored) == to_builtins(condition)
    assert evaluate(restored, scope) == evaluate(condition, scope)
