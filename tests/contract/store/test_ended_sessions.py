"""Sessions of the dashboard that were signed out are remembered until their cookies expire."""

from __future__ import annotations

from datetime import timedelta

from builders.jobs import Clock
from builders.stores import StoreFactory
from ductile.store.notifier import SessionEnded
from ductile.store.port import Store


async def test_an_ended_session_is_known_to_the_next_daemon(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    until = store_factory.clock() + timedelta(days=7)
    await store.end_session("one", until)
    await store.end_session("one", until)  # the request was repeated
    await store.end_session("two", until)
    reopened = await store_factory.reopen()
    assert await reopened.ended_sessions() == {"one", "two"}


async def test_an_ended_session_is_forgotten_when_its_cookie_has_expired(store: Store, clock: Clock) -> None:
    await store.end_session("short", clock() + timedelta(hours=1))
    clock.advance(hours=1)
    assert await store.ended_sessions() == frozenset()
    await store.end_session("long", clock() + timedelta(days=7))
    assert await store.ended_sessions() == {"long"}


async def test_the_end_is_published_with_its_commit(store: Store, clock: Clock) -> None:
    """Requests that are under way on another connection are refused from then on."""
    ended: list[str] = []
    store.notifier.subscribe(SessionEnded, lambda change: ended.append(change.session_id))
    await store.end_session("one", clock() + timedelta(days=7))
    assert ended == ["one"]
