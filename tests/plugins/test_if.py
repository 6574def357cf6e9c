"""if emits under the type of the first true rule, with the conditions of pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.conditions import comparisons, evaluate, json_objects
from builders.shipped import PluginResult, ask, ask_raw
from ductile.core.expressions.conditions import PathComparison
from ductile.core.expressions.operators import Operator
from ductile.core.expressions.paths import EvalContext
from ductile.core.json import JsonObject

PAYLOAD = {
    "n": 5,
    "f": 5.0,
    "name": "Photo.JPG",
    "yes": True,
    "none": None,
    "tags": ["a", "b"],
    "deep": {"x": [7]},
}


def run_rules(*rules: dict[str, Any], otherwise: str | None = None) -> PluginResult:
    config = {"rules": list(rules), **({} if otherwise is None else {"else": otherwise})}
    return ask("if", "handle", config=config, payload=PAYLOAD)


def rule(path: str, op: str, value: Any = None, emit: str = "hit") -> dict[str, Any]:
    return {"when": {"path": path, "op": op, "value": value}, "emit": emit}


def test_the_first_true_rule_decides_and_the_payload_goes_on() -> None:
    rules = [
        rule("payload.n", "gt", 9, "large"),
        rule("payload.n", "gt", 3, "middle"),
        rule("payload.n", "gt", 1, "small"),
    ]
    response = run_rules(*rules)
    assert response.answer["result"] == "middle"
    assert response.events == [{"type": "middle", "payload": PAYLOAD}]


def test_else_is_emitted_if_no_rule_is_true() -> None:
    never = rule("payload.n", "eq", 0)
    assert run_rules(never, otherwise="other").event_types == ["other"]
    assert run_rules(never).events == []


#: Comparisons, each with its truth. All are tested in one run, which names the first one with another truth.
CASES = [
    ("payload.n", "eq", 5, True),
    ("payload.n", "eq", 5.0, True),
    ("payload.n", "eq", "5", False),
    ("payload.yes", "eq", 1, False),
    ("payload.yes", "eq", True, True),
    ("payload.deep", "eq", {"x": [7.0]}, True),
    ("payload.gone", "eq", None, True),
    ("payload.gone", "neq", 5, True),
    ("payload.gone", "neq", None, False),
    ("payload.gone", "in", [None], True),
    ("payload.n", "in", [4, 5], True),
    ("payload.n", "in", ["5"], False),
    ("payload.none", "exists", None, True),
    ("payload.none", "exists", False, False),
    ("payload.gone", "exists", False, True),
    ("payload.deep", "contains", "x", True),
    ("payload.deep.x.00", "exists", True, False),
    ("payload.gone", "exists", None, False),
    ("payload.deep.x.0", "gte", 7, True),
    ("payload.deep.x.1", "exists", None, False),
    ("payload.n", "lt", "6", False),
    ("payload.yes", "gte", 0, False),
    ("payload.gone", "lt", 6, False),
    ("payload.name", "lte", "Photo.JPG", True),
    ("payload.name", "contains", "oto", True),
    ("payload.name", "contains", "OTO", True),
    ("payload.tags", "contains", "a", True),
    ("payload.tags", "contains", "A", False),
    ("payload.name", "startswith", "photo", True),
    ("payload.name", "endswith", ".jpg", True),
    ("payload.n", "endswith", "5", False),
    ("payload.name", "regex", r"photo\.(jpg|png)", True),
    ("payload.name", "regex", "photo", False),
    ("context.owner", "eq", "Ada", True),
    ("event.type", "eq", "test", True),
    ("config.else", "eq", "end", True),
]


def test_conditions_mean_what_they_mean_in_pipelines() -> None:
    """Types are strict, 1 is 1.0, true is not 1, and a missing path is null or false."""
    rules = [
        {"when": when if not truth else {"not": when}, "emit": f"{path} {op} {value}"}
        for path, op, value, truth in CASES
        for when in [{"path": path, "op": op, "value": value}]
    ]
    assert run_rules(*rules, otherwise="end").answer["result"] == "end"


def is_usable(comparison: PathComparison) -> bool:
    """Return whether the plugin accepts the comparison, and the rules themselves do not matter to it."""
    if comparison.path.startswith("config"):
        return False
    if comparison.op is Operator.IN:
        return isinstance(comparison.value, list)
    texts = (Operator.STARTSWITH, Operator.ENDSWITH)
    return comparison.op not in texts or isinstance(comparison.value, str)


@settings(max_examples=15)
@given(json_objects, json_objects, st.lists(comparisons(), min_size=30, max_size=60))
def test_conditions_are_judged_as_in_the_core(
    payload: JsonObject, context: JsonObject, candidates: list[PathComparison]
) -> None:
    """The same condition means the same in a rule and in a step's `if`."""
    scope = EvalContext(payload=payload, context=context)
    rules: list[JsonObject] = [
        {"when": when if not evaluate(comparison, scope).is_true else {"not": when}, "emit": json.dumps(when)}
        for comparison in candidates
        if is_usable(comparison)
        for when in [{"path": comparison.path, "op": comparison.op.value, "value": comparison.value}]
    ]
    request = {
        "protocol": 2,
        "command": "handle",
        "config": {"rules": rules, "else": "the same"},
        "context": context,
        "event": {"payload": payload},
    }
    assert ask_raw("if", json.dumps(request).encode()).answer["result"] == "the same"


def test_all_any_not() -> None:
    yes, no = rule("payload.n", "eq", 5)["when"], rule("payload.n", "eq", 6)["when"]
    for condition, truth in [
        ({"all": [yes, no]}, False),
        ({"all": [yes, {"not": no}]}, True),
        ({"any": [no, yes]}, True),
        ({"any": []}, False),
        ({"all": []}, True),
    ]:
        assert bool(run_rules({"when": condition, "emit": "hit"}).events) is truth, condition


def test_the_event_s_dedupe_key_goes_with_it() -> None:
    """A redelivered event has the same dedupe key."""
    response = ask(
        "if",
        "handle",
        config={"rules": [], "else": "x"},
        payload={"a": 1},
        event={"dedupe_key": "k"},
    )
    assert response.events == [{"type": "x", "payload": {"a": 1}, "dedupe_key": "k"}]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rules": {}},
        {"rules": [5]},
        {"rules": [{"when": {"path": "payload.a", "op": "is"}, "emit": "x"}]},
        {"rules": [{"when": {"path": "env.a", "op": "eq"}, "emit": "x"}]},
        {"rules": [{"when": {"path": "payload.a", "op": "eq"}}]},
        {"rules": [{"when": {"path": "payload.a", "op": "in", "value": 5}, "emit": "x"}]},
        {"rules": [{"when": {"path": "payload.a", "op": "regex", "value": "("}, "emit": "x"}]},
        {"rules": [{"when": {"path": "payload.a", "op": "startswith", "value": 5}, "emit": "x"}]},
        {"rules": [{"when": {"not": {"any": [{}]}}, "emit": "x"}]},
        {"rules": [], "else": ""},
    ],
)
def test_invalid_rules_are_reported_by_health_and_handle(config: dict[str, Any]) -> None:
    for command in ("health", "handle"):
        response = ask("if", command, config=config, payload={})
        assert response.failed_for_good("rules") or response.failed_for_good("else")
