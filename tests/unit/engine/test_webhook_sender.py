"""The sender of state webhooks, on a real store and real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

from standardwebhooks import Webhook

from builders.clocks import SimulatedClock
from builders.configs import a_config, loaded
from builders.jobs import START, a_new_job, ok
from builders.receivers import ReceivedRequest, Receiver, Reply, a_receiver
from builders.stores import accept, claim_one, open_sqlite, settle, whole_ledger
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.secrets import Secret
from ductile.config.snapshot import Discovery, Snapshot
from ductile.core.jobs.model import LedgerKind, StateSubscription
from ductile.core.timestamps import format_timestamp
from ductile.core.webhooks.deliveries import PROMPT
from ductile.core.webhooks.signatures import sign_body
from ductile.engine.clock import SystemClock
from ductile.engine.state_webhooks.client import HttpWebhookClient
from ductile.engine.state_webhooks.sender import MAX_PER_RECEIVER, WebhookSender
from ductile.store.model.deliveries import DeliveryCapacity, DeliveryStatus
from ductile.store.port import Store
from ductile.struct import replace
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

_SETTINGS = "allow: [127.0.0.1], timeout: 20s, backoff_base: 1s"


@dataclass(slots=True)
class Bench:
    store: Store
    clock: SimulatedClock
    emitted: list[SignalEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, event: SignalEvent) -> None:
        self.emitted.append(event)
        self.changed.set()

    async def until(self, signal: Signal, count: int = 1) -> list[SignalEvent]:
        async with asyncio.timeout(60):
            while len(found := [each for each in self.emitted if each.signal is signal]) < count:
                self.changed.clear()
                await self.changed.wait()
        return found

    async def submit(self, receiver: Receiver, path: str = "/hook?canary=1") -> str:
        """Submit a job with a state webhook to this receiver."""
        return await accept(self.store, a_new_job(callback=StateSubscription(url=receiver.url(path))))


def a_snapshot(directory: Path, settings: str, more: str = "") -> Snapshot:
    config = a_config(directory, f"state_webhooks: {{{settings}}}\n{more}")
    return compile_snapshot(loaded(config), Discovery(installed={}, refused={}, warnings=()))


@asynccontextmanager
async def sending(
    directory: Path,
    settings: str = _SETTINGS,
    more: str = "",
    *,
    clock: SimulatedClock | None = None,
    snapshot: Callable[[], Snapshot] | None = None,
) -> AsyncIterator[tuple[Bench, WebhookSender]]:
    """The sender at work. Its clock stands still unless the test moves it."""
    configured = a_snapshot(directory, settings, more)
    used = clock or SimulatedClock()
    store = open_sqlite(directory / "state.db", clock=used, rng=Random(1))
    bench = Bench(store, used)
    signals = SignalBus()
    signals.subscribe(bench.note)
    deliveries = WebhookSender(
        store, HttpWebhookClient(), used, snapshot or (lambda: configured), signals, Random(1)
    )
    service = asyncio.create_task(deliveries.run())
    try:
        yield bench, deliveries
    finally:
        await deliveries.stop(0)
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        await store.close()


def answering(*statuses: int, **headers: str) -> Callable[[ReceivedRequest, int], Reply]:
    """These statuses one after the other, and the last one for ever."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _, before: Reply(status=statuses[min(before, len(statuses) - 1)], headers=named)


async def test_a_transition_is_sent_without_polling(tmp_path: Path) -> None:
    """A POST on every transition; the commit wakes the sender, no clock does."""
    with a_receiver() as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.clock.rest()
            job_id = await bench.submit(receiver)
            job = await claim_one(bench.store)
            await bench.store.mark_working(job.id, job.execution)
            await settle(bench.store, job, ok(result="hi"))
            await bench.until(Signal.DELIVERY_DELIVERED, 4)
        bodies = [request.body for request in receiver.requests]
    assert [body["state"] for body in bodies] == ["queued", "loading", "working", "done"]
    assert [body["previous_state"] for body in bodies] == [None, "queued", "loading", "working"]
    assert {body["job_id"] for body in bodies} == {job_id}
    assert bodies[-1]["result"] == "hi"
    assert [request.headers["x-ductile-sequence"] for request in receiver.requests] == ["1", "2", "3", "4"]


async def test_it_is_signed_twice(tmp_path: Path) -> None:
    """`X-Foreman-Signature`, and Standard Webhooks for those who have a library."""
    more = "tokens: [{name: hooks, key: a-shared-secret}]\n"
    with a_receiver() as receiver:
        snapshot = a_snapshot(tmp_path, f"{_SETTINGS}, secret_ref: hooks", more)
        store = open_sqlite(tmp_path / "state.db", clock=SystemClock().now, rng=Random(1))
        deliveries = WebhookSender(
            store, HttpWebhookClient(), SystemClock(), lambda: snapshot, SignalBus(), Random(1)
        )
        service = asyncio.create_task(deliveries.run())
        await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        (request,) = await asyncio.to_thread(receiver.wait_for, bool)
        await deliveries.stop()
        await service
        ((delivery,), _) = (await store.list_deliveries(limit=9)).rows, None
        await store.close()
    assert request.headers["x-foreman-signature"] == sign_body("a-shared-secret", request.raw)
    assert request.headers["webhook-id"] == delivery.id
    Webhook(b"a-shared-secret").verify(request.raw, dict(request.headers))


async def test_the_header_has_the_name_that_is_configured(tmp_path: Path) -> None:
    more = "tokens: [{name: hooks, key: s}]\n"
    settings = f"{_SETTINGS}, secret_ref: hooks, signature_header: X-Mine"
    with a_receiver() as receiver:
        async with sending(tmp_path, settings, more) as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_DELIVERED)
        (request,) = receiver.requests
    assert request.headers["x-mine"].startswith("sha256=")
    assert "x-foreman-signature" not in request.headers


async def test_without_a_secret_nothing_is_signed(tmp_path: Path) -> None:
    with a_receiver() as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_DELIVERED)
        (request,) = receiver.requests
    assert not {name for name in request.headers if "signature" in name}
    assert request.headers["webhook-id"]


async def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path) -> None:
    """A slow receiver never delays another, however much waits for it."""
    release = threading.Event()
    with a_receiver(lambda *_: Reply(after=release)) as slow, a_receiver() as quick:
        async with sending(tmp_path) as (bench, _):
            for _ in range(3 * MAX_PER_RECEIVER):
                await bench.submit(slow)
            await asyncio.to_thread(slow.wait_for, bool)
            for _ in range(2 * MAX_PER_RECEIVER):
                await bench.submit(quick)
            await bench.until(Signal.DELIVERY_DELIVERED, 2 * MAX_PER_RECEIVER)
            assert (len(slow.requests), len(quick.requests)) == (1, 2 * MAX_PER_RECEIVER)
            release.set()
            await bench.until(Signal.DELIVERY_DELIVERED, 5 * MAX_PER_RECEIVER)


async def test_many_dead_receivers_delay_no_other(tmp_path: Path) -> None:
    """Those who take the connection and never answer, with much to get, are not felt by others."""
    with ExitStack() as dead, a_receiver() as quick:
        silent = [dead.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(70)]
        async with sending(tmp_path, _SETTINGS.replace("20s", "10m")) as (bench, _):
            for each in silent:
                hanging = Receiver(port=each.getsockname()[1])
                for _ in range(MAX_PER_RECEIVER):
                    await bench.submit(hanging)
            await bench.submit(quick)
            await bench.until(Signal.DELIVERY_DELIVERED)
            assert not [each for each in bench.emitted if each.signal is Signal.DELIVERY_FAILED]


async def test_a_prompt_receiver_gets_concurrent_deliveries(tmp_path: Path) -> None:
    """One at a time until it is known; then as many as a receiver may have."""
    release = threading.Event()
    with a_receiver(lambda _, before: Reply(after=release if before else None)) as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_DELIVERED)
            for _ in range(2 * MAX_PER_RECEIVER):
                await bench.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, lambda got: len(got) == 1 + MAX_PER_RECEIVER)
            await bench.clock.advance(seconds=PROMPT.total_seconds() + 1)
            release.set()
            await bench.until(Signal.DELIVERY_DELIVERED, 1 + 2 * MAX_PER_RECEIVER)


async def test_a_slow_receiver_gets_one_delivery_at_a_time(tmp_path: Path) -> None:
    """What a receiver may take up depends on how long it took the last time."""
    gates = [threading.Event() for _ in range(3)]
    with a_receiver(lambda _, before: Reply(after=gates[min(before, 2)])) as receiver:
        async with sending(tmp_path) as (bench, _):
            for _ in range(3 + MAX_PER_RECEIVER):
                await bench.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, lambda got: len(got) == 1)
            await bench.clock.advance(seconds=PROMPT.total_seconds() + 1)
            gates[0].set()
            await bench.until(Signal.DELIVERY_DELIVERED, 1)
            await asyncio.to_thread(receiver.wait_for, lambda got: len(got) == 2)
            gates[1].set()
            await bench.until(Signal.DELIVERY_DELIVERED, 2)
            await asyncio.to_thread(receiver.wait_for, lambda got: len(got) == 2 + MAX_PER_RECEIVER)
            gates[2].set()
            await bench.until(Signal.DELIVERY_DELIVERED, 3 + MAX_PER_RECEIVER)


async def test_a_later_event_does_not_overtake_one_that_is_on_its_way(tmp_path: Path) -> None:
    """First attempts go out in order for each job; those of other jobs do not wait."""
    release = threading.Event()

    def slow_to_the_first(request: ReceivedRequest, _before: int) -> Reply:
        return Reply(after=release if request.path == "/slow" and request.body["state"] == "queued" else None)

    with a_receiver(slow_to_the_first) as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.submit(receiver, "/known")  # a receiver that has answered gets concurrent deliveries
            await claim_one(bench.store)
            await bench.until(Signal.DELIVERY_DELIVERED, 2)
            await bench.submit(receiver, "/slow")
            await asyncio.to_thread(receiver.wait_for, lambda got: len(got) == 3)
            await claim_one(bench.store)
            await bench.submit(receiver, "/other")
            await bench.until(Signal.DELIVERY_DELIVERED, 3)
            assert [(each.path, each.body["state"]) for each in receiver.requests[2:]] == [
                ("/slow", "queued"),
                ("/other", "queued"),
            ]
            release.set()
            await bench.until(Signal.DELIVERY_DELIVERED, 5)
            assert receiver.requests[-1].body["state"] == "loading"


async def test_a_retry_holds_back_no_later_event(tmp_path: Path) -> None:
    """Once its first attempt has failed, what follows goes out."""

    def no_to_queued(request: ReceivedRequest, _before: int) -> Reply:
        return Reply(status=500 if request.body["state"] == "queued" else 200)

    with a_receiver(no_to_queued) as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.submit(receiver)
            await claim_one(bench.store)
            await bench.until(Signal.DELIVERY_FAILED)
            await bench.until(Signal.DELIVERY_DELIVERED)
            assert receiver.states() == ["queued", "loading"]


async def test_it_waits_longer_each_time_and_then_gives_up(tmp_path: Path) -> None:
    """Backoff from 1 s, doubling; after `max_attempts` it is dropped and recorded."""
    with a_receiver(answering(500)) as receiver:
        async with sending(tmp_path, f"{_SETTINGS}, max_attempts: 3") as (bench, _):
            job_id = await bench.submit(receiver)
            waits = []
            for attempt in (1, 2):
                await bench.until(Signal.DELIVERY_FAILED, attempt)
                (row,) = (await bench.store.list_deliveries(limit=9)).rows
                assert row.next_attempt_at is not None
                wait = row.next_attempt_at - bench.clock.now()
                waits.append(wait)
                await bench.clock.advance(seconds=wait.total_seconds())
            (dropped,) = await bench.until(Signal.DELIVERY_DROPPED)
            (row,) = (await bench.store.list_deliveries(limit=9)).rows
            entry = (await whole_ledger(bench.store))[-1]
    assert timedelta(seconds=1) <= waits[0] <= timedelta(seconds=2) <= waits[1] <= timedelta(seconds=3)
    assert len(receiver.requests) == 3
    assert len({request.raw for request in receiver.requests}) == 1
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert (row.status, row.last_status, row.attempts) == (DeliveryStatus.DROPPED, 500, 3)
    assert (entry.kind, entry.job_id, dropped.job_id) == (LedgerKind.DELIVERY_DROPPED, job_id, job_id)


async def test_a_receiver_that_asks_for_time_gets_it(tmp_path: Path) -> None:
    """`Retry-After` is obeyed."""
    with a_receiver(answering(429, 204, Retry_After="600")) as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_FAILED)
            await bench.clock.advance(seconds=599)
            assert len(receiver.requests) == 1
            await bench.clock.advance(seconds=1)
            await bench.until(Signal.DELIVERY_DELIVERED)


async def test_urls_are_in_no_signal_and_no_ledger(tmp_path: Path) -> None:
    """URLs may hold secrets; the host is enough to identify the receiver."""
    with a_receiver(answering(500, 500, 204)) as receiver:
        async with sending(tmp_path, f"{_SETTINGS}, max_attempts: 2") as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_FAILED)
            await bench.clock.advance(seconds=3)
            await bench.until(Signal.DELIVERY_DROPPED)
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_DELIVERED)
            shown = repr(bench.emitted) + repr(await whole_ledger(bench.store))
    assert "canary" not in shown
    assert f"http://127.0.0.1:{receiver.port}" in shown


async def test_a_delivery_in_flight_at_the_stop_may_finish(tmp_path: Path) -> None:
    release = threading.Event()
    with a_receiver(lambda *_: Reply(after=release)) as receiver:
        async with sending(tmp_path) as (bench, deliveries):
            await bench.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, bool)
            stopping = asyncio.create_task(deliveries.stop(30))
            await asyncio.sleep(0)
            release.set()
            await stopping
            (row,) = (await bench.store.list_deliveries(limit=9)).rows
    assert row.status is DeliveryStatus.DELIVERED


async def test_an_unfinished_delivery_is_sent_by_the_next_daemon_at_once(tmp_path: Path) -> None:
    """At least once, across restarts."""
    release = threading.Event()
    clock = SimulatedClock()
    with a_receiver(lambda _, before: Reply(after=release if before == 0 else None)) as receiver:
        async with sending(tmp_path, clock=clock) as (bench, deliveries):
            await bench.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, bool)
            await deliveries.stop(0)
        async with sending(tmp_path, clock=clock) as (bench, _):
            await bench.until(Signal.DELIVERY_DELIVERED)
        release.set()
        first, second = receiver.requests
    assert (first.raw, first.headers["webhook-id"]) == (second.raw, second.headers["webhook-id"])


class SlowToTake:
    """A real store that hands out taken deliveries when the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.taken = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def claim_deliveries(self, *given: Any, **named: Any) -> Any:
        found = await self._store.claim_deliveries(*given, **named)
        if found.deliveries:
            self.taken.set()
            await self.go_on.wait()
        return found


async def test_a_delivery_claimed_at_the_stop_is_due_at_once(tmp_path: Path) -> None:
    """It was never sent, so it is due at once."""
    clock, snapshot = SimulatedClock(), a_snapshot(tmp_path, _SETTINGS)
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    slow = SlowToTake(store)
    with a_receiver() as receiver:
        await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        deliveries = WebhookSender(
            cast("Store", slow), HttpWebhookClient(), clock, lambda: snapshot, SignalBus(), Random(1)
        )
        service = asyncio.create_task(deliveries.run())
        await slow.taken.wait()
        stopping = asyncio.create_task(deliveries.stop(0))
        await asyncio.sleep(0)  # it has begun to stop
        slow.go_on.set()
        await stopping
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        await store.close()
        assert receiver.requests == []
        async with sending(tmp_path, clock=clock) as (bench, _):
            await bench.until(Signal.DELIVERY_DELIVERED)


async def test_a_delivery_cut_off_by_a_crash_is_due_again_after_its_lease(tmp_path: Path) -> None:
    """The attempt was counted before it was made, and has no stored result."""
    clock = SimulatedClock()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    with a_receiver() as receiver:
        await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        await store.claim_deliveries(
            DeliveryCapacity(total=1, per_receiver=1), retry_at=START + timedelta(seconds=25)
        )
        await store.close()
        async with sending(tmp_path, clock=clock) as (bench, _):
            await bench.clock.advance(seconds=24)
            assert receiver.requests == []
            await bench.clock.advance(seconds=1)
            await bench.until(Signal.DELIVERY_DELIVERED)


async def test_a_request_that_cannot_be_made_is_dropped_and_delays_no_other(tmp_path: Path) -> None:
    """A delivery that cannot be signed fails as one that cannot be sent; others go on."""
    more = "tokens: [{name: hooks, key: s}]\n"
    settings = f"{_SETTINGS}, secret_ref: hooks, max_attempts: 1"
    good = a_snapshot(tmp_path, settings, more)
    used = [replace(good, state_webhook_secret=Secret("canary\udcff"))]
    with a_receiver() as receiver:
        async with sending(tmp_path, snapshot=lambda: used[-1]) as (bench, _):
            await bench.submit(receiver)
            (dropped,) = await bench.until(Signal.DELIVERY_DROPPED)
            used.append(good)
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_DELIVERED)
    assert dropped.data["error"] == "the request could not be made (UnicodeEncodeError)"
    assert "canary" not in repr(bench.emitted)


async def test_a_delivery_that_crashed_in_its_last_attempt_is_dropped_and_recorded(tmp_path: Path) -> None:
    """Bounded by `max_attempts` across crashes: attempts are counted before they are made."""
    clock = SimulatedClock()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    with a_receiver() as receiver:
        job_id = await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        for _ in range(2):
            await store.claim_deliveries(DeliveryCapacity(total=1, per_receiver=1), retry_at=START)
        await store.close()
        async with sending(tmp_path, f"{_SETTINGS}, max_attempts: 2", clock=clock) as (bench, _):
            (dropped,) = await bench.until(Signal.DELIVERY_DROPPED)
            entry = (await whole_ledger(bench.store))[-1]
        assert receiver.requests == []
    assert (entry.kind, entry.job_id) == (LedgerKind.DELIVERY_DROPPED, job_id)
    assert dropped.data["error"] == "the daemon ended before it could store the result of the last attempt"


async def test_a_delivery_dropped_by_a_lower_limit_keeps_its_error(tmp_path: Path) -> None:
    """A reload may leave a delivery no attempt; its error names that and the earlier error."""
    used = [a_snapshot(tmp_path, f"{_SETTINGS}, max_attempts: 4")]
    with a_receiver(answering(500)) as receiver:
        async with sending(tmp_path, snapshot=lambda: used[-1]) as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_FAILED, 1)
            await bench.clock.advance(seconds=3)
            (_, failed) = await bench.until(Signal.DELIVERY_FAILED, 2)
            used.append(a_snapshot(tmp_path, f"{_SETTINGS}, max_attempts: 1"))
            await bench.clock.advance(seconds=9)
            (dropped,) = await bench.until(Signal.DELIVERY_DROPPED)
            (row,) = (await bench.store.list_deliveries(limit=9)).rows
    assert len(receiver.requests) == 2
    said = f"{failed.data['error']}; not sent again, because max_attempts is 1"
    assert (dropped.data["error"], row.last_error, row.last_status) == (said, said, 500)


async def test_a_stop_in_the_only_attempt_does_not_count(tmp_path: Path) -> None:
    """At least once, across restarts: what a stop cut off is given back with its attempt."""
    release = threading.Event()
    clock, settings = SimulatedClock(), f"{_SETTINGS}, max_attempts: 1"
    with a_receiver(lambda _, before: Reply(after=release if before == 0 else None)) as receiver:
        async with sending(tmp_path, settings, clock=clock) as (bench, deliveries):
            await bench.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, bool)
            await deliveries.stop(0)
        async with sending(tmp_path, settings, clock=clock) as (bench, _):
            (delivered,) = await bench.until(Signal.DELIVERY_DELIVERED)
        release.set()
    assert delivered.data["attempts"] == 1


async def test_a_delivery_can_be_sent_again_by_hand(tmp_path: Path) -> None:
    """Deliveries can be re-sent, with all their attempts."""
    with a_receiver(answering(500, 500, 204)) as receiver:
        async with sending(tmp_path, f"{_SETTINGS}, max_attempts: 1") as (bench, _):
            await bench.submit(receiver)
            (dropped,) = await bench.until(Signal.DELIVERY_DROPPED)
            assert await bench.store.resend(str(dropped.data["delivery"]))
            await bench.until(Signal.DELIVERY_DROPPED, 2)
            assert await bench.store.resend(str(dropped.data["delivery"]))
            await bench.until(Signal.DELIVERY_DELIVERED)


async def test_a_host_that_is_no_longer_allowed_is_not_called(tmp_path: Path) -> None:
    """The rules of now count, not those of when it was submitted."""
    with a_receiver() as receiver:
        async with sending(tmp_path, "max_attempts: 1") as (bench, _):
            await bench.submit(receiver)
            (dropped,) = await bench.until(Signal.DELIVERY_DROPPED)
        assert receiver.requests == []
    assert "not a public address" in str(dropped.data["error"])


async def test_a_body_is_what_it_was_when_the_state_changed(tmp_path: Path) -> None:
    """Bodies are frozen at creation; a retry much later sends the same instant."""
    with a_receiver(answering(500, 204)) as receiver:
        async with sending(tmp_path) as (bench, _):
            await bench.submit(receiver)
            await bench.until(Signal.DELIVERY_FAILED)
            await bench.clock.advance(seconds=60)
            await bench.until(Signal.DELIVERY_DELIVERED)
    bodies: list[dict[str, Any]] = [request.body for request in receiver.requests]
    assert bodies[0] == bodies[1]
    assert bodies[0]["timestamp"] == format_timestamp(START)


async def test_a_delivery_claimed_too_late_is_left_for_the_next_start(tmp_path: Path) -> None:
    """A stop while deliveries are being taken starts none of them."""
    clock, snapshot = SimulatedClock(), a_snapshot(tmp_path, _SETTINGS)
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    with a_receiver() as receiver:
        deliveries = WebhookSender(
            store, HttpWebhookClient(), clock, lambda: snapshot, SignalBus(), Random(1)
        )
        await Bench(store, clock).submit(receiver)
        service = asyncio.create_task(deliveries.run())
        await asyncio.sleep(0)  # it has asked the store, whose answer comes from another thread
        await deliveries.stop(0)
        async with asyncio.timeout(60):
            await service
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("delivery")]
        (row,) = (await store.list_deliveries(limit=5)).rows
        assert row.status is DeliveryStatus.PENDING
    await store.close()
