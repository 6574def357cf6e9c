"""Laws of baggage over all claims and all that was inherited."""

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


def apart(wanted: tuple[BaggageItem, ...]) -> bool:
    """No claim lies within another: such baggage is refused when it is read."""
    targets = [one.target for one in wanted]
    return not any(one != other and one[: len(other)] == other for one in targets for other in targets)


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
    .filter(apart)
)


def leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    """Everything in the baggage that is no object with entries: what can be relied on."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif value != {}:
        yield path, value


def at(baggage: JsonObject, path: tuple[str, ...]) -> JsonValue:
    found: JsonValue = baggage
    for key in path:
        assert isinstance(found, dict)
        found = found[key]
    return found


@given(claims, json_objects, scopes)
def test_inherited_baggage_never_changes(
    wanted: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> None:
    before = json.dumps([inherited, scope.payload, scope.context])
    made = attempted(wanted, inherited, scope)
    assert json.dumps([inherited, scope.payload, scope.context]) == before
    if isinstance(made, dict):
        for path, value in leaves(inherited):
            assert json_equal(at(made, path), value)


@given(claims, json_objects, scopes)
def test_claimed_baggage_is_there_and_can_be_claimed_again(
    wanted: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> None:
    """A step that is run again finds its own claims and changes nothing."""
    made = attempted(wanted, inherited, scope)
    if isinstance(made, str):
        return
    for one in wanted:
        found = look_up(one.source, scope)
        kept = at(made, one.target)
        if one.spread:
            assert isinstance(kept, dict)
            assert isinstance(found, dict)
            assert all(json_equal(kept[key], value) for key, value in found.items())
    assert json_equal(add_baggage(wanted[-1:], made, scope), made)


@given(claims, json_objects, scopes)
def test_claims_are_the_same_after_a_round_trip_through_the_store(
    wanted: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext
) -> None:
    def stored(value: JsonObject) -> JsonObject:
        read: JsonObject = json.loads(json.dumps(value))
        return read

    again = EvalContext(payload=stored(scope.payload), context=stored(scope.context))
    before, after = attempted(wanted, inherited, scope), attempted(wanted, stored(inherited), again)
    if isinstance(before, dict) and isinstance(after, dict):
        assert json_equal(after, stored(before))
    else:
        assert before == after


def attempted(wanted: tuple[BaggageItem, ...], inherited: JsonObject, scope: EvalContext) -> JsonObject | str:
    """The baggage, or why there is none."""
    try:
        return add_baggage(wanted, inherited, scope)
    except BaggageError as error:
        return str(error)
