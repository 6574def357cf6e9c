"""A comparison of configurations is complete, has no secrets, and is empty for equal ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.config.differences import ComparableConfig, comparable_file, compare_configs, summarise
from ductile.core.json import JsonValue

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
NAMES = st.text("abc", min_size=1, max_size=3)
CONFIGS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
MAPS = st.dictionaries(NAMES, CONFIGS, max_size=4)


def describe_differences(before: JsonValue, after: JsonValue) -> list[str]:
    differences = compare_configs(ComparableConfig(redacted=before), ComparableConfig(redacted=after))
    return [difference.describe() for difference in differences]


@given(MAPS)
def test_equal_configurations_have_no_differences(config: dict[str, JsonValue]) -> None:
    assert describe_differences(config, config) == []


@given(MAPS, MAPS)
def test_unequal_configurations_have_a_difference(
    before: dict[str, JsonValue], after: dict[str, JsonValue]
) -> None:
    """The differences of the opposite direction have added and removed exchanged."""
    forward, backward = describe_differences(before, after), describe_differences(after, before)
    assert bool(forward) == (repr(before) != repr(after)) or before == after
    assert len(forward) == len(backward)


def test_entries_of_lists_are_compared_by_their_names() -> None:
    """An inserted entry is the only difference; a changed order is a difference too."""
    first_step: JsonValue = {"id": "one", "uses": "a"}
    second_step: JsonValue = {"id": "two", "uses": "b"}
    assert describe_differences({"steps": [second_step]}, {"steps": [first_step, second_step]}) == [
        "+ steps[one].id: one",
        "+ steps[one].uses: a",
    ]
    assert describe_differences(
        {"steps": [first_step, second_step]}, {"steps": [second_step, first_step]}
    ) == ['~ steps (order): ["one", "two"] → ["two", "one"]']


def test_a_changed_secret_is_reported_without_its_value() -> None:
    old = comparable_file(b"tokens: [{name: a, key: hunter1}]\n", "tokens.yaml")
    new = comparable_file(b"tokens: [{name: a, key: hunter2}]\n", "tokens.yaml")
    assert old is not None
    assert new is not None
    (difference,) = compare_configs(old, new)
    assert difference.describe() == "~ tokens[a].key: ******** (its value has changed)"
    assert "hunter" not in repr(old) + repr(new)


def test_a_file_of_assignments_is_never_read_as_yaml() -> None:
    """A part of a value would look like a key."""
    config = comparable_file(b"A=hunter2: x\nnonsense\n", ".env")
    assert config is None
    config = comparable_file(b"export A=hunter2: x\n", "vars.yaml")
    assert config is not None
    assert config.redacted == {"A": "********"}


def test_the_default_of_a_variable_is_not_shown() -> None:
    config = comparable_file(b"service: {name: '${NAME:-hunter2}'}\n", "config.yaml")
    assert config is not None
    assert config.redacted == {"service": {"name": "${NAME}"}}


def test_a_summary_is_one_line() -> None:
    before = ComparableConfig(redacted={})
    after = ComparableConfig(
        redacted={"plugins": {"a": {"uses": "x", "warm": True}, "b": {}, "c": {}, "d": {}}}
    )
    assert summarise(compare_configs(before, after)) == "plugins.a, plugins.b, plugins.c and 1 more"
