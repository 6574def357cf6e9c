"""Rights of access tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.auth_scopes import (
    EVERYTHING,
    AccessLevel,
    AccessResource,
    Reach,
    allows,
    auth_scope,
    covers,
    decide_reach,
    expand_scopes,
    pipeline_scope,
    sees_only_own,
)

SUBJECTS = st.sampled_from([*AccessResource, "echo", "fetch"])
SCOPE = st.builds(auth_scope, SUBJECTS, st.sampled_from(AccessLevel))
GRANTED = st.lists(st.one_of(SCOPE, st.sampled_from(["read:jobs", "read:events"])), max_size=6).map(tuple)
NEEDED = st.lists(SCOPE, min_size=1, max_size=3).map(tuple)
PIPELINE = st.sampled_from(["chain", "other", "ro", "rw"]).map(pipeline_scope)
ANY_SCOPES = st.lists(st.one_of(SCOPE, PIPELINE, st.just(EVERYTHING)), max_size=5).map(tuple)
RESOURCE = st.sampled_from([AccessResource.JOBS, AccessResource.EVENTS])
LEVEL = st.sampled_from(AccessLevel)


@given(GRANTED, SUBJECTS)
def test_writing_includes_reading_and_reading_nothing_more(granted: tuple[str, ...], subject: str) -> None:
    """`rw` implies `ro` of the same subject only."""
    reads, writes = (
        allows(granted, (auth_scope(subject, AccessLevel.READ),)),
        allows(granted, (auth_scope(subject, AccessLevel.WRITE),)),
    )
    older = subject in (AccessResource.JOBS, AccessResource.EVENTS) and f"read:{subject}" in granted
    assert writes == (auth_scope(subject, AccessLevel.WRITE) in granted)
    assert reads == (writes or older or auth_scope(subject, AccessLevel.READ) in granted)


@given(GRANTED, GRANTED, NEEDED)
def test_more_scopes_never_allow_less(
    granted: tuple[str, ...], added: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    """A scope adds rights and takes none away."""
    if allows(granted, needed):
        assert allows((*granted, *added), needed)


@given(GRANTED, NEEDED)
def test_one_of_the_needed_is_enough(granted: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """`plugin:rw` or `<plugin>:rw` is enough."""
    assert allows(granted, needed) == any(allows(granted, (scope,)) for scope in needed)


@given(NEEDED | st.just(()))
def test_everything_and_nothing(needed: tuple[str, ...]) -> None:
    """`*` covers every needed scope; no scopes cover none; without a needed scope access is denied."""
    assert allows((EVERYTHING,), needed) == bool(needed)
    assert not allows((), needed)


@given(GRANTED)
def test_every_scope_covers_itself(granted: tuple[str, ...]) -> None:
    """Expanding twice gives the same scopes as once."""
    once = expand_scopes(granted)
    assert expand_scopes(tuple(once)) == once


@given(ANY_SCOPES, RESOURCE, LEVEL)
def test_reach_is_all_jobs_own_jobs_or_none(
    granted: tuple[str, ...], resource: AccessResource, level: AccessLevel
) -> None:
    """The scope for all jobs gives all; otherwise the same right over own jobs gives these; otherwise
    none.
    """
    full, own = auth_scope(resource, level), auth_scope(AccessResource.OWN, level)
    reach = decide_reach(granted, (full, own), own)
    assert (reach is Reach.ALL) == allows(granted, (full,))
    assert (reach is Reach.OWN) == (not allows(granted, (full,)) and allows(granted, (own,)))
    assert decide_reach(granted, (full,), None) in (Reach.ALL, Reach.NONE)


@given(ANY_SCOPES, ANY_SCOPES, RESOURCE, LEVEL)
def test_more_scopes_never_reach_less(
    granted: tuple[str, ...], added: tuple[str, ...], resource: AccessResource, level: AccessLevel
) -> None:
    own = auth_scope(AccessResource.OWN, level)
    needed = (auth_scope(resource, level), own)
    order = [Reach.NONE, Reach.OWN, Reach.ALL]
    before, after = (decide_reach(scopes, needed, own) for scopes in (granted, (*granted, *added)))
    assert order.index(before) <= order.index(after)


@given(ANY_SCOPES)
def test_only_a_token_that_may_not_read_all_jobs_sees_only_its_own(granted: tuple[str, ...]) -> None:
    """A token is limited to own jobs only if it has a scope for own jobs or a pipeline."""
    read = auth_scope(AccessResource.JOBS, AccessLevel.READ)
    for_agents = any(scope.startswith(("own:", "pipeline:")) for scope in granted)
    assert sees_only_own(granted) == (for_agents and not allows(granted, (read,)))


@given(ANY_SCOPES, PIPELINE)
def test_a_scope_of_a_pipeline_is_for_this_one_only(granted: tuple[str, ...], scope: str) -> None:
    """The name of a pipeline may be that of a right: `pipeline:rw` gives no `pipeline:ro`."""
    assert allows(granted, (scope,)) == (scope in granted or EVERYTHING in granted)


@given(ANY_SCOPES, st.one_of(SCOPE, PIPELINE, st.just(EVERYTHING)))
def test_a_token_gives_no_more_than_it_has(granted: tuple[str, ...], scope: str) -> None:
    """A scope that a token may give allows nothing that the token may not do. Own jobs are those of each
    token.
    """
    if not covers(granted, scope):
        return
    subject, _, right = scope.partition(":")
    if subject == AccessResource.OWN:
        assert allows(granted, (f"jobs:{right}",))
        assert allows(granted, ("events:ro",))
    elif subject in tuple(AccessResource) or scope == EVERYTHING:
        assert allows(granted, (scope,))
    else:
        assert allows(granted, (scope, "plugin:rw", f"plugin:{right}"))
