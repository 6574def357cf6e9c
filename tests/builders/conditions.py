"""Random evaluation contexts, conditions and JSON values."""

from __future__ import annotations

from hypothesis import strategies as st

from ductile.core.expressions.conditions import (
    AllOf,
    AnyOf,
    Condition,
    ConditionResult,
    Not,
    PathComparison,
    evaluate_condition,
)
from ductile.core.expressions.operators import Operator
from ductile.core.expressions.paths import EvalContext
from ductile.core.json import JsonObject, JsonValue

#: Few keys, so that paths often find a value and values are often equal.
KEYS = ("a", "b", "0", "token")

scalars: st.SearchStrategy[JsonValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([2**53, 2**53 + 1, float(2**53)]),
    st.sampled_from([0.0, 1.0, -1.5]),
    st.sampled_from(["", "a", "A", "ab", "0", "ß", "ss"]),
)
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)
json_objects: st.SearchStrategy[JsonObject] = st.dictionaries(st.sampled_from(KEYS), json_values, max_size=3)
scopes = st.builds(EvalContext, payload=json_objects, context=json_objects, config=json_objects)


@st.composite
def paths(draw: st.DrawFn, roots: tuple[str, ...] = ("payload", "context", "config")) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3))
    return ".".join([draw(st.sampled_from(roots)), *keys])


@st.composite
def comparisons(draw: st.DrawFn) -> PathComparison:
    op = draw(st.sampled_from(Operator))
    values: st.SearchStrategy[JsonValue] = json_values
    if op is Operator.EXISTS:
        values = st.booleans()
    elif op is Operator.REGEX:
        values = st.sampled_from(["a", "a.*", "[0-9]", ""])
    return PathComparison(path=draw(paths()), op=op, value=draw(values))


conditions: st.SearchStrategy[Condition] = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AllOf(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AnyOf(tuple(parts))),
        inner.map(Not),
    ),
    max_leaves=6,
)


def is_secret(key: str) -> bool:
    return key == "token"


def evaluate(condition: Condition, scope: EvalContext) -> ConditionResult:
    return evaluate_condition(condition, scope, is_secret=is_secret)
