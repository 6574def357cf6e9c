"""Each operator over each relevant pair of types, and the content of a condition result."""

from __future__ import annotations

import time

import pytest

from builders.conditions import evaluate, is_secret
from ductile.core.expressions.conditions import (
    AllOf,
    AnyOf,
    Condition,
    ConditionError,
    Not,
    PathComparison,
    condition_result_to_json,
    evaluate_condition,
    explain_condition,
)
from ductile.core.expressions.operators import Operator, compare
from ductile.core.expressions.paths import MISSING, EvalContext, Missing, fault_in_path, look_up
from ductile.core.expressions.regex import BUDGET_SECONDS, FREE_SECONDS, MatchBudget
from ductile.core.json import JsonObject, JsonValue

BIG = 2**53 + 1
SCOPE = EvalContext(
    payload={
        "status": "ok",
        "items": [{"name": "first"}, None],
        "branches": [
            {"id": "build", "status": "succeeded", "payload": {"x": 1}},
            {"id": "test", "status": "failed"},
            {"id": "7", "status": "skipped"},
        ],
        "n": 3,
        "null": None,
        "0": "zero",
    },
    context={"customer": {"id": 7}},
    config={
        "token": "hunter2",
        "mode": "fast",
        "url": "https://me:hunter2@host/",
        "deep": {"token": "hunter2"},
    },
    event={"type": "order.placed", "source": "shop"},
)


def comparison(path: str, op: str, value: JsonValue = True) -> PathComparison:
    return PathComparison(path=path, op=Operator(op), value=value)


@pytest.mark.parametrize(
    ("actual", "op", "value", "expected"),
    [
        (None, "exists", True, True),
        (0, "exists", True, True),
        (MISSING, "exists", True, False),
        (MISSING, "exists", False, True),
        (None, "exists", False, False),
        ("a", "eq", "a", True),
        ("a", "eq", "A", False),
        (1, "eq", 1.0, True),
        (1, "eq", True, False),
        (0, "eq", False, False),
        (True, "eq", True, True),
        ("1", "eq", 1, False),
        (BIG, "eq", BIG, True),
        (BIG, "eq", BIG - 1, False),
        (BIG, "eq", float(BIG - 1), False),
        ([1, [True]], "eq", [1.0, [True]], True),
        ([1], "eq", [True], False),
        ([1, 2], "eq", [2, 1], False),
        ([1], "eq", [1, 2], False),
        ({"a": 1, "b": 2}, "eq", {"b": 2, "a": 1}, True),
        ({"a": 1}, "eq", {"a": True}, False),
        ({"a": None}, "eq", {}, False),
        ([], "eq", {}, False),
        (None, "eq", None, True),
        (MISSING, "eq", None, True),
        (MISSING, "eq", "a", False),
        (None, "eq", False, False),
        ("", "eq", None, False),
        ("a", "neq", "b", True),
        (1, "neq", True, True),
        (1, "neq", 1.0, False),
        (MISSING, "neq", "a", True),
        (MISSING, "neq", None, False),
        ("a", "in", ["a", "b"], True),
        ("A", "in", ["a", "b"], False),
        (True, "in", [1], False),
        (1, "in", [1.0], True),
        ([1], "in", [[1]], True),
        (1, "in", [], False),
        (MISSING, "in", [None], True),
        (MISSING, "in", ["a"], False),
        (3, "gt", 2, True),
        (2, "gt", 2, False),
        (2.5, "gt", 2, True),
        (BIG, "gt", float(BIG - 1), True),
        (2, "gte", 2.0, True),
        (1, "lt", 2, True),
        (2, "lt", 2, False),
        (2, "lte", 2, True),
        (3, "lte", 2, False),
        ("b", "gt", "a", True),
        ("a", "lt", "B", False),
        ("10", "lt", "9", True),
        ("3", "gt", 2, False),
        (3, "gt", "2", False),
        (True, "gte", 0, False),
        (1, "lte", True, False),
        (None, "lte", 1, False),
        ([2], "gt", [1], False),
        (MISSING, "lt", 1, False),
        (MISSING, "gte", "", False),
        ("An ERROR here", "contains", "error", True),
        ("Straße", "contains", "STRASSE", True),
        ("abc", "contains", "d", False),
        ("abc1", "contains", 1, False),
        ([1, "a"], "contains", 1.0, True),
        ([1, "a"], "contains", True, False),
        (["A"], "contains", "a", False),
        ([None], "contains", None, True),
        ([[1]], "contains", [1], True),
        ({"a": 1}, "contains", "a", True),
        ({"a": 1}, "contains", "A", False),
        ({"a": "b"}, "contains", "b", False),
        ({"1": 1}, "contains", 1, False),
        (12, "contains", "1", False),
        (None, "contains", None, False),
        (MISSING, "contains", "", False),
        ("Hello", "startswith", "hE", True),
        ("Hello", "startswith", "", True),
        ("Hello", "startswith", "ello", False),
        (["a"], "startswith", "a", False),
        (1, "startswith", "1", False),
        (MISSING, "startswith", "", False),
        ("report.PDF", "endswith", ".pdf", True),
        ("report.pdf", "endswith", "report", False),
        (None, "endswith", "", False),
        (MISSING, "endswith", "", False),
        ("Order-17", "regex", r"order-\d+", True),
        ("an Order-17", "regex", r"order-\d+", False),
        ("Order-17x", "regex", r"order-\d+", False),
        ("a", "regex", "a|ab", True),
        ("ab", "regex", "a|ab", True),
        ("ab\n", "regex", "ab", False),
        ("ab\n", "regex", "ab$", False),
        (17, "regex", r"\d+", False),
        (["a"], "regex", ".*", False),
        (MISSING, "regex", ".*", False),
    ],
)
def test_an_operator_compares_without_coercion(
    actual: JsonValue | Missing, op: str, value: JsonValue, expected: bool
) -> None:
    """Types are strict: true is not 1, but 1 is 1.0. Each operator defines what a missing path means."""
    assert compare(actual, Operator(op), value) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("payload", SCOPE.payload),
        ("payload.items.0.name", "first"),
        ("payload.items.1", None),
        ("payload.items.2", MISSING),
        ("payload.items.-1", MISSING),
        ("payload.items.00", MISSING),
        ("payload.items.²", MISSING),
        ("payload.items." + "9" * 5000, MISSING),
        ("payload.items.name", MISSING),
        ("payload.branches.0.status", "succeeded"),
        ("payload.branches.build.status", "succeeded"),
        ("payload.branches.build.payload.x", 1),
        ("payload.branches.1.status", "failed"),
        ("payload.branches.7.status", "skipped"),
        ("payload.branches.nobody", MISSING),
        ("payload.branches.id", MISSING),
        ("payload.0", "zero"),
        ("payload.status.length", MISSING),
        ("payload.null.x", MISSING),
        ("context.customer.id", 7),
        ("event.type", "order.placed"),
        ("config.mode", "fast"),
    ],
)
def test_a_path_goes_through_objects_by_key_and_lists_by_position(
    path: str, expected: JsonValue | Missing
) -> None:
    assert look_up(path, SCOPE) == expected


@pytest.mark.parametrize(
    "path", ["", "paylod.x", "Payload.x", "payload.", "payload..x", ".payload", "payload.x "]
)
def test_a_path_that_leads_nowhere_is_reported_at_load(path: str) -> None:
    assert fault_in_path(path) is not None


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        (
            comparison("payload.status", "eq", "bad"),
            'the condition does not hold: payload.status eq "bad" is false (found "ok")',
        ),
        (
            comparison("payload.gone", "exists"),
            "the condition does not hold: payload.gone exists is false (there is no payload.gone)",
        ),
        (
            comparison("payload.n", "exists", False),
            "the condition does not hold: payload.n exists false is false (found 3)",
        ),
        (
            AllOf(
                (
                    comparison("payload.n", "gt", 2),
                    comparison("payload.n", "gt", 3),
                    comparison("payload.n", "gt", 4),
                )
            ),
            "the condition does not hold: payload.n gt 3 is false (found 3)",
        ),
        (
            AnyOf(
                (
                    comparison("payload.n", "gt", 4),
                    comparison("payload.n", "gt", 2),
                    comparison("payload.n", "gt", 3),
                )
            ),
            "the condition holds: payload.n gt 2 is true (found 3)",
        ),
        (
            Not(AllOf((comparison("payload.n", "gt", 2), comparison("payload.status", "startswith", "O")))),
            (
                "the condition does not hold: payload.n gt 2 is true (found 3); "
                'payload.status startswith "O" is true (found "ok")'
            ),
        ),
        (
            AnyOf(tuple(comparison("payload.n", "gt", limit) for limit in range(3, 8))),
            (
                "the condition does not hold: payload.n gt 3 is false (found 3); "
                "payload.n gt 4 is false (found 3); payload.n gt 5 is false (found 3); and 2 more"
            ),
        ),
    ],
)
def test_an_explanation_names_what_decided_and_what_it_saw(condition: Condition, sentence: str) -> None:
    """The explanation is one sentence."""
    assert explain_condition(evaluate(condition, SCOPE)) == sentence


def test_evaluation_goes_no_further_than_needed() -> None:
    """A part after the deciding one is not evaluated, so it cannot fail."""
    unreadable = comparison("payload.status", "regex", "(")
    first = AllOf((comparison("payload.n", "eq", 0), unreadable))
    second = AnyOf((comparison("payload.n", "eq", 3), unreadable))
    assert len(evaluate(first, SCOPE).evaluated) == len(evaluate(second, SCOPE).evaluated) == 1


@pytest.mark.parametrize(
    "condition",
    [
        comparison("config.token", "eq", "hunter2"),
        comparison("config.token", "regex", "hunter.*"),
        comparison("config.token", "in", ["hunter2", "swordfish"]),
        comparison("config.token", "exists"),
        comparison("config.token.0", "eq", "hunter2"),
        comparison("config.deep.token", "neq", "hunter2"),
        comparison("config.deep", "eq", {"token": "hunter2"}),
        comparison("config", "contains", "token"),
        comparison("config.url", "eq", "https://me:hunter2@host/"),
        comparison("config.url", "in", [["https://me:hunter2@host/" + "x" * 200]]),
    ],
)
def test_no_verdict_shows_a_secret(condition: Condition) -> None:
    """Neither a value under a secret key nor the value that it is compared with is shown."""
    verdict = evaluate(condition, SCOPE)
    assert "hunter" not in f"{verdict!r} {explain_condition(verdict)} {condition_result_to_json(verdict)}"
    assert "swordfish" not in repr(verdict)


def test_quoted_values_have_a_bounded_length() -> None:
    nested: JsonValue = 1
    for _ in range(250):
        nested = [nested]
    payload: JsonObject = {"long": "x" * 10**6, "many": list(range(10**5)), "deep": nested, "half": "\ud800"}
    parts = tuple(comparison(f"payload.{key}", "eq", "y" * 10**6) for key in payload)
    for evaluated in evaluate(AnyOf(parts), EvalContext(payload=payload)).evaluated:
        assert evaluated.found is not None
        assert len(evaluated.found) <= 81
        assert len(evaluated.expected) <= 81
        evaluated.found.encode()


def test_a_verdict_as_json() -> None:
    condition = AnyOf((comparison("payload.n", "lt", 1), comparison("payload.gone", "exists", False)))
    lt_entry = {
        "path": "payload.n",
        "op": "lt",
        "expected": "1",
        "found": "3",
        "missing": False,
        "holds": False,
    }
    gone_entry = {
        "path": "payload.gone",
        "op": "exists",
        "expected": "false",
        "found": None,
        "missing": True,
        "holds": True,
    }
    assert condition_result_to_json(evaluate(condition, SCOPE)) == {
        "holds": True,
        "explanation": "the condition holds: payload.gone exists false is true (there is no payload.gone)",
        "because": [gone_entry],
        "looked_at": [lt_entry, gone_entry],
    }


def test_a_regular_expression_that_takes_too_long_is_an_error() -> None:
    """The time of a match is limited. The error names the path, without the pattern and the text."""
    scope = EvalContext(payload={"x": "a" * 80 + "!"})
    started_at = time.process_time()  # CPU time, because the machine may be busy
    with pytest.raises(ConditionError, match=r"payload\.x .*longer than") as excinfo:
        evaluate(comparison("payload.x", "regex", "(a|aa)+$"), scope)
    assert time.process_time() - started_at < 5
    assert "aa" not in str(excinfo.value)


class Timer:
    """A clock that advances by `step` with each reading: a match takes one step."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.at = 0.0

    def __call__(self) -> float:
        self.at += self.step
        return self.at


def test_the_patterns_of_a_condition_share_half_of_what_is_left() -> None:
    """Each pattern is quick enough alone, but not all together; the next condition still has a budget."""
    budget = MatchBudget(Timer(BUDGET_SECONDS / 8))
    slow = AnyOf(tuple(comparison("payload.x", "regex", "b") for _ in range(20)))
    scope = EvalContext(payload={"x": "a"})
    with pytest.raises(ConditionError, match=r"payload\.x .*took too long"):
        evaluate_condition(slow, scope, is_secret=is_secret, budget=budget)
    quick = comparison("payload.x", "regex", "a")
    assert evaluate_condition(quick, scope, is_secret=is_secret, budget=budget).is_true


def test_where_nothing_is_left_no_pattern_is_tried() -> None:
    """Comparisons without a pattern are evaluated."""
    budget = MatchBudget(Timer(1.0))
    scope = EvalContext(payload={"x": "a"})
    assert evaluate_condition(
        comparison("payload.x", "regex", "a"), scope, is_secret=is_secret, budget=budget
    ).is_true
    with pytest.raises(ConditionError, match="took too long"):
        evaluate_condition(comparison("payload.x", "regex", "a"), scope, is_secret=is_secret, budget=budget)
    assert evaluate_condition(
        comparison("payload.x", "eq", "a"), scope, is_secret=is_secret, budget=budget
    ).is_true


def test_many_quick_matches_do_not_use_the_budget_up() -> None:
    """A job may end with a thousand events, and one pattern is matched against each."""
    budget = MatchBudget(Timer(FREE_SECONDS / 2))
    scope = EvalContext(payload={"x": "a"})
    for _ in range(1000):
        assert evaluate_condition(
            comparison("payload.x", "regex", "a"), scope, is_secret=is_secret, budget=budget
        ).is_true


def test_a_match_is_stopped_when_the_budget_is_spent() -> None:
    """The budget is CPU time, so a busy machine makes neither this test nor a condition fail."""
    scope = EvalContext(payload={"x": "a" * 80 + "!"})
    budget = MatchBudget(time.thread_time)
    started_at = time.thread_time()
    for _ in range(20):
        with pytest.raises(ConditionError, match="took too long"):
            evaluate_condition(
                comparison("payload.x", "regex", "(a|aa)+$"), scope, is_secret=is_secret, budget=budget
            )
    assert time.thread_time() - started_at < 4 * BUDGET_SECONDS


def test_a_stored_pattern_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ConditionError, match=r"payload\.status"):
        evaluate(comparison("payload.status", "regex", "("), SCOPE)
