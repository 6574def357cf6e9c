"""The effects of a change of the configuration, as a comparison of names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.engine.reload.effects import NameChanges, compare_names

NAMED_VALUES = st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.integers(0, 3), max_size=8)


@given(NAMED_VALUES)
def test_an_unchanged_configuration_has_no_effect(named: dict[str, int]) -> None:
    assert compare_names(named, dict(named)) == NameChanges()


@given(NAMED_VALUES, NAMED_VALUES)
def test_the_way_back_has_the_opposite_effect(before: dict[str, int], after: dict[str, int]) -> None:
    forward, backward = compare_names(before, after), compare_names(after, before)
    assert (forward.added, forward.removed, forward.changed) == (
        backward.removed,
        backward.added,
        backward.changed,
    )


@given(NAMED_VALUES, NAMED_VALUES)
def test_the_effects_lead_from_one_to_the_other(before: dict[str, int], after: dict[str, int]) -> None:
    """No change is missing, and no name is in two groups."""
    changes = compare_names(before, after)
    kept = {name: value for name, value in before.items() if name not in changes.removed}
    changed_values = {name: after[name] for name in (*changes.added, *changes.changed)}
    assert kept | changed_values == after
    assert len({*changes.added, *changes.removed, *changes.changed}) == len(
        (*changes.added, *changes.removed, *changes.changed)
    )
