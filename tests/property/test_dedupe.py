"""Duplicate submissions, and owners of dedupe keys."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import assume, example, given
from hypothesis import strategies as st

from builders.jobs import START
from ductile.core.jobs.admission import (
    KeyMatch,
    KeyNamespace,
    bare_key,
    find_duplicate,
    namespaced_key,
    normalise_key,
)

ages = st.integers(0, 10**6).map(lambda seconds: timedelta(seconds=seconds))
matches = st.lists(
    st.builds(
        KeyMatch, job_id=st.uuids().map(str), succeeded_at=st.none() | ages.map(lambda age: START - age)
    ),
    max_size=5,
).map(tuple)


@given(matches, ages, st.booleans())
def test_a_duplicate_is_a_recent_success_or_with_an_override_a_live_job(
    key_matches: tuple[KeyMatch, ...], window: timedelta, has_own_window: bool
) -> None:
    def matches_window(match: KeyMatch) -> bool:
        if match.succeeded_at is None:
            return has_own_window
        return START - match.succeeded_at <= window

    duplicate = find_duplicate(key_matches, window=window, has_own_window=has_own_window, now=START)
    assert (duplicate is None) == (not any(matches_window(match) for match in key_matches))
    assert duplicate is None or matches_window(duplicate)


@given(matches, ages)
def test_without_an_override_live_jobs_never_drop_anything(
    key_matches: tuple[KeyMatch, ...], window: timedelta
) -> None:
    duplicate = find_duplicate(key_matches, window=window, has_own_window=False, now=START)
    assert duplicate is None or duplicate.succeeded_at is not None


@given(st.text())
def test_keys_are_trimmed_and_blank_is_none(key: str) -> None:
    trimmed = normalise_key(key)
    assert trimmed == (key.strip() or None)
    assert normalise_key(trimmed) == trimmed
    assert normalise_key(f"  {key}\n") == trimmed


@given(st.text(), st.sampled_from(KeyNamespace), st.sampled_from(KeyNamespace))
def test_keys_of_different_namespaces_never_collide(
    key: str, namespace: KeyNamespace, other_namespace: KeyNamespace
) -> None:
    assume(namespace is not other_namespace)
    first, second = namespaced_key(namespace, key), namespaced_key(other_namespace, key)
    assert (first is None) == (second is None) == (normalise_key(key) is None)
    assert first is None or first != second


@given(st.sampled_from(KeyNamespace), st.lists(st.text("ab%", min_size=1), min_size=3, max_size=5), st.data())
def test_keys_of_different_owners_never_meet(
    namespace: KeyNamespace, words: list[str], data: st.DataObject
) -> None:
    """This holds also if a name has colons and the key of another owner begins with its second part."""
    cuts = st.lists(st.integers(1, len(words) - 1), min_size=2, max_size=2, unique=True)
    first, second = [(":".join(words[:cut]), ":".join(words[cut:])) for cut in data.draw(cuts)]
    assert namespaced_key(namespace, first[1], owner=first[0]) != namespaced_key(
        namespace, second[1], owner=second[0]
    )
    assert namespaced_key(namespace, first[1], owner=first[0]) != namespaced_key(
        namespace, first[1], owner=second[0]
    )


@given(st.sampled_from(KeyNamespace), st.text(min_size=1), st.text(min_size=1))
def test_the_same_key_in_the_same_namespace_is_the_same(
    namespace: KeyNamespace, key: str, owner: str
) -> None:
    assert namespaced_key(namespace, key, owner=owner) == namespaced_key(namespace, f" {key} ", owner=owner)


@given(st.text(), st.text())
def test_no_text_of_a_caller_reaches_into_another_namespace(text: str, other: str) -> None:
    """A key may contain colons; its namespace comes first."""
    explicit_key = namespaced_key(KeyNamespace.EXPLICIT, text)
    idempotency_key = namespaced_key(KeyNamespace.IDEMPOTENCY, other, owner="token")
    assert explicit_key is None or idempotency_key is None or explicit_key != idempotency_key


@given(st.sampled_from(KeyNamespace), st.text(), st.text(min_size=1))
@example(KeyNamespace.OWN, ":", "token")
def test_a_key_is_shown_as_it_was_given(namespace: KeyNamespace, key: str, owner: str) -> None:
    """Any text, namespace and owner is allowed. Only explicit keys have no owner."""
    stored = namespaced_key(namespace, key, owner=None if namespace is KeyNamespace.EXPLICIT else owner)
    assert bare_key(stored) == normalise_key(key)


def test_a_key_from_before_namespaces_were_joined_is_shown_as_it_was_given() -> None:
    assert bare_key("event:mail-7") == "mail-7"
    assert bare_key("key:event:mail-7") == "event:mail-7"
