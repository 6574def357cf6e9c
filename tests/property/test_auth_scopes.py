"""The rights of a token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.auth_scopes import (
    EVERYTHING,
    AccessLevel,
    AccessResource,
    allows,
    auth_scope,
    expand_scopes,
)

SUBJECTS = st.sampled_from([*AccessResource, "echo", "fetch"])
SCOPE = st.builds(auth_scope, SUBJECTS, st.sampled_from(AccessLevel))
GRANTED = st.lists(st.one_of(SCOPE, st.sampled_from(["read:jobs", "read:events"])), max_size=6).map(tuple)
NEEDED = st.lists(SCOPE, min_size=1, max_size=3).map(tuple)


@given(GRANTED, SUBJECTS)
def test_writing_includes_reading_and_reading_nothing_more(granted: tuple[str, ...], subject: str) -> None:
    """Rw implies ro, of the same subject only."""
    reads, writes = (
        allows(granted, (auth_scope(subject, AccessLevel.READ),)),
        allows(granted, (auth_scope(subject, AccessLevel.WRITE),)),
    )
    older = subject in (AccessResource.JOBS, AccessResource.EVENTS) and f"read:{subject}" in granted
    assert writes == (auth_scope(subject, AccessLevel.WRITE) in granted)
    assert reads == (writes or older or auth_scope(subject, AccessLevel.READ) in granted)


@given(GRANTED, GRANTED, NEEDED)
def test_more_scopes_never_allow_less(
    granted: tuple[str, ...], more: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    """A scope adds, and none takes away."""
    if allows(granted, needed):
        assert allows((*granted, *more), needed)


@given(GRANTED, NEEDED)
def test_one_of_the_needed_is_enough(granted: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """`plugin:rw` or `<plugin>:rw`."""
    assert allows(granted, needed) == any(allows(granted, (each,)) for each in needed)


@given(NEEDED | st.just(()))
def test_everything_and_nothing(needed: tuple[str, ...]) -> None:
    """`*` covers every needed scope; no scopes cover none; without a needed scope access is denied."""
    assert allows((EVERYTHING,), needed) == bool(needed)
    assert not allows((), needed)


@given(GRANTED)
def test_every_scope_covers_itself(granted: tuple[str, ...]) -> None:
    """Implying twice implies no more than once."""
    once = expand_scopes(granted)
    assert expand_scopes(tuple(once)) == once
