"""Laws of baggage over all claims and all inherited values."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from builders.conditions import KEYS, json_objects, paths, scopes
from ductile.core.expressions.baggage import BaggageError, BaggageItem, add_baggage
from ductile.core.expressions.operators import json_equal
from ductile.core.expressions.paths import EvalContext, look_up
from ductile.core.json import JsonObject, JsonValue


def are_apart(items: tuple[BaggageItem, ...]) -> bool:
    """Return whether no claim lies within another; other baggage is refused when it is read."""
    targets = [item.target for item in items]
    return not any(
        target != other and target[: len(other)] == other for target in targets for other in targets
    )


claims = (
    st.lists(
        st.builds(
            BaggageItem,
            target=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(tuple),
            source=paths(("payload", "context")),
            spread=st.booleans(),
        ),
        max_size=3,
    )
    .map(tuple)
    .filter(are_apart)
)


def leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    """Yield the path and value of everything in the baggage that is not an object with entries."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif value != {}:
        yield path, value


def value_at(baggage: JsonObject, path: tuple[str, ...]) -> JsonValue:
    value: JsonValue = baggage
    for key in path:
        assert isinstance(value, dict)
        value = value[key]
    return value


@given(claims, json_objects, scopes)
def test_inherited_baggage_never_changes(
    items: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> None:
    before = json.dumps([inherited, scope.payload, scope.context])
    baggage = apply_or_explain(items, inherited, scope)
    assert json.dumps([inherited, scope.payload, scope.context]) == before
    if isinstance(baggage, dict):
        for path, value in leaves(inherited):
            assert json_equal(value_at(baggage, path), value)


@given(claims, json_objects, scopes)
def test_claimed_baggage_is_there_and_can_be_claimed_again(
    items: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> None:
    """A step that runs again finds its own claims and changes nothing."""
    baggage = apply_or_explain(items, inherited, scope)
    if isinstance(baggage, str):
        return
    for item in items:
        source_value = look_up(item.source, scope)
        kept_value = value_at(baggage, item.target)
        if item.spread:
            assert isinstance(kept_value, dict)
            assert isinstance(source_value, dict)
            assert all(json_equal(kept_value[key], value) for key, value in source_value.items())
    assert json_equal(add_baggage(items[-1:], baggage, scope), baggage)


@given(claims, json_objects, scopes)
def test_claims_are_the_same_after_a_round_trip_through_the_store(
    items: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> None:
    def through_json(value: JsonObject) -> JsonObject:
        read: JsonObject = json.loads(json.dumps(value))
        return read

    restored_scope = EvalContext(payload=through_json(scope.payload), context=through_json(scope.context))
    before, after = (
        apply_or_explain(items, inherited, scope),
        apply_or_explain(items, through_json(inherited), restored_scope),
    )
    if isinstance(before, dict) and isinstance(after, dict):
        assert json_equal(after, through_json(before))
    else:
        assert before == after


def apply_or_explain(
    items: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> JsonObject | str:
    """Return the baggage, or the error that prevents it."""
    try:
        return add_baggage(items, inherited, scope)
    except BaggageError as error:
        return str(error)
