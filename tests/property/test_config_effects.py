"""What a change of the configuration does, as a comparison of names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.engine.reload.effects import NameChanges, compare_names

NAMED = st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.integers(0, 3), max_size=8)


@given(NAMED)
def test_an_unchanged_configuration_has_no_effect(named: dict[str, int]) -> None:
    assert compare_names(named, dict(named)) == NameChanges()


@given(NAMED, NAMED)
def test_the_way_back_has_the_opposite_effect(before: dict[str, int], after: dict[str, int]) -> None:
    there, back = compare_names(before, after), compare_names(after, before)
    assert (there.added, there.removed, there.changed) == (back.removed, back.added, back.changed)


@given(NAMED, NAMED)
def test_the_effects_lead_from_one_to_the_other(before: dict[str, int], after: dict[str, int]) -> None:
    """Nothing is missing and nothing is named twice."""
    changes = compare_names(before, after)
    kept = {name: value for name, value in before.items() if name not in changes.removed}
    taken = {name: after[name] for name in (*changes.added, *changes.changed)}
    assert kept | taken == after
    assert len({*changes.added, *changes.removed, *changes.changed}) == len(
        (*changes.added, *changes.removed, *changes.changed)
    )
