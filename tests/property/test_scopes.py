"""What a token may do (SPEC 8.1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.scopes import EVERYTHING, Right, Subject, allows, covered, scope

SUBJECTS = st.sampled_from([*Subject, "echo", "fetch"])
SCOPE = st.builds(scope, SUBJECTS, st.sampled_from(Right))
GRANTED = st.lists(st.one_of(SCOPE, st.sampled_from(["read:jobs", "read:events"])), max_size=6).map(tuple)
NEEDED = st.lists(SCOPE, min_size=1, max_size=3).map(tuple)


@given(GRANTED, SUBJECTS)
def test_writing_includes_reading_and_reading_nothing_more(granted: tuple[str, ...], subject: str) -> None:
    """SPEC 8.1: rw implies ro, of the same subject only."""
    reads, writes = (
        allows(granted, (scope(subject, Right.READ),)),
        allows(granted, (scope(subject, Right.WRITE),)),
    )
    older = subject in (Subject.JOBS, Subject.EVENTS) and f"read:{subject}" in granted
    assert writes == (scope(subject, Right.WRITE) in granted)
    assert reads == (writes or older or scope(subject, Right.READ) in granted)


@given(GRANTED, GRANTED, NEEDED)
def test_more_scopes_never_allow_less(
    granted: tuple[str, ...], more: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    """SPEC 8.1: a scope adds, and none takes away."""
    if allows(granted, needed):
        assert allows((*granted, *more), needed)


@given(GRANTED, NEEDED)
def test_one_of_the_needed_is_enough(granted: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """SPEC 8: `plugin:rw` or `<plugin>:rw`."""
    assert allows(granted, needed) == any(allows(granted, (each,)) for each in needed)


@given(NEEDED | st.just(()))
def test_everything_and_nothing(needed: tuple[str, ...]) -> None:
    """SPEC 8.1: `*` meets every need there is; no scopes meet none; what nobody can meet stays closed."""
    assert allows((EVERYTHING,), needed) == bool(needed)
    assert not allows((), needed)


@given(GRANTED)
def test_what_is_covered_covers_itself(granted: tuple[str, ...]) -> None:
    """SPEC 8.1: implying twice implies no more than once."""
    once = covered(granted)
    assert covered(tuple(once)) == once
