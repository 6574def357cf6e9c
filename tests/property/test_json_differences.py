"""Differences of two JSON values: none for equal ones, and each names a path where they differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.expressions.operators import json_equal
from ductile.core.expressions.paths import MISSING, Missing
from ductile.core.json import JsonValue
from ductile.core.json_differences import compare_values, parse_pattern

KEYS = st.sampled_from(["a", "b", "c"])
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 1.5])
    | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def value_at(value: JsonValue, path: tuple[str, ...]) -> JsonValue | Missing:
    current: JsonValue | Missing = value
    for key in path:
        if isinstance(current, dict):
            current = current.get(key, MISSING)
        elif isinstance(current, list) and int(key) < len(current):
            current = current[int(key)]
        else:
            return MISSING
    return current


@given(VALUES, VALUES)
def test_there_is_a_difference_exactly_if_the_values_differ(before: JsonValue, now: JsonValue) -> None:
    assert (compare_values(before, now) == ()) == json_equal(before, now)


@given(VALUES, VALUES)
def test_a_difference_holds_what_is_at_its_path(before: JsonValue, now: JsonValue) -> None:
    for difference in compare_values(before, now):
        assert difference.before == value_at(before, difference.path)
        assert difference.now == value_at(now, difference.path)


@given(VALUES, VALUES)
def test_ignoring_every_difference_leaves_none(before: JsonValue, now: JsonValue) -> None:
    """This holds also if each position and key is written as `*`."""
    paths = [difference.path for difference in compare_values(before, now)]
    assert compare_values(before, now, paths) == ()
    assert compare_values(before, now, [("*",) * len(path) for path in paths]) == ()


@given(VALUES, VALUES, st.lists(KEYS | st.just("*"), min_size=1, max_size=3))
def test_a_pattern_adds_no_difference(before: JsonValue, now: JsonValue, pattern: list[str]) -> None:
    ignored = compare_values(before, now, [tuple(pattern)])
    assert {difference.path for difference in ignored} <= {
        difference.path for difference in compare_values(before, now)
    }


def test_a_pattern_takes_out_everything_below_it() -> None:
    before: JsonValue = {"events": [{"payload": {"at": 1, "n": 1}}, {"payload": {"at": 2}}], "result": 1}
    now: JsonValue = {"events": [{"payload": {"at": 3, "n": 2}}, {"payload": {"at": 4}}], "result": 1}
    (difference,) = compare_values(before, now, [("events", "*", "payload", "at")])
    assert (difference.name, difference.before, difference.now) == ("events.0.payload.n", 1, 2)
    assert compare_values(before, now, [("events",)]) == ()


def test_patterns_are_read_from_text() -> None:
    assert parse_pattern("events.*.payload.at") == ("events", "*", "payload", "at")
    assert (parse_pattern(""), parse_pattern("a..b")) == (None, None)
