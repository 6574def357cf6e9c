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
class SenderUnderTest:
    store: Store
    clock: SimulatedClock
    emitted: list[SignalEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, event: SignalEvent) -> None:
        self.emitted.append(event)
        self.changed.set()

    async def until(self, signal: Signal, count: int = 1) -> list[SignalEvent]:
        async with asyncio.timeout(60):
            while len(events := [event for event in self.emitted if event.signal is signal]) < count:
                self.changed.clear()
                await self.changed.wait()
        return events

    async def submit(self, receiver: Receiver, path: str = "/hook?canary=1") -> str:
        """Submit a job with a state webhook to this receiver, and return its id."""
        return await accept(self.store, a_new_job(callback=StateSubscription(url=receiver.url(path))))


def a_snapshot(directory: Path, settings: str, more: str = "") -> Snapshot:
    config = a_config(directory, f"state_webhooks: {{{settings}}}\n{more}")
    return compile_snapshot(loaded(config), Discovery(installed={}, refused={}, warnings=()))


@asynccontextmanager
async def running_sender(
    directory: Path,
    settings: str = _SETTINGS,
    more: str = "",
    *,
    clock: SimulatedClock | None = None,
    snapshot: Callable[[], Snapshot] | None = None,
) -> AsyncIterator[tuple[SenderUnderTest, WebhookSender]]:
    """Run the sender with a clock that only the test advances."""
    default_snapshot = a_snapshot(directory, settings, more)
    sender_clock = clock or SimulatedClock()
    store = open_sqlite(directory / "state.db", clock=sender_clock, rng=Random(1))
    harness = SenderUnderTest(store, sender_clock)
    signals = SignalBus()
    signals.subscribe(harness.record)
    sender = WebhookSender(
        store, HttpWebhookClient(), sender_clock, snapshot or (lambda: default_snapshot), signals, Random(1)
    )
    service = asyncio.create_task(sender.run())
    try:
        yield harness, sender
    finally:
        await sender.stop(0)
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        await store.close()


def respond_with(*statuses: int, **headers: str) -> Callable[[ReceivedRequest, int], Reply]:
    """Return a function that responds with these statuses in order, and repeats the last one."""
    reply_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _, before: Reply(status=statuses[min(before, len(statuses) - 1)], headers=reply_headers)


async def test_a_transition_is_sent_without_polling(tmp_path: Path) -> None:
    """Every transition is sent; the commit wakes the sender, not the clock."""
    with a_receiver() as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.clock.rest()
            job_id = await harness.submit(receiver)
            job = await claim_one(harness.store)
            await harness.store.mark_working(job.id, job.execution)
            await settle(harness.store, job, ok(result="hi"))
            await harness.until(Signal.DELIVERY_DELIVERED, 4)
        bodies = [request.body for request in receiver.requests]
    assert [body["state"] for body in bodies] == ["queued", "loading", "working", "done"]
    assert [body["previous_state"] for body in bodies] == [None, "queued", "loading", "working"]
    assert {body["job_id"] for body in bodies} == {job_id}
    assert bodies[-1]["result"] == "hi"
    assert [request.headers["x-ductile-sequence"] for request in receiver.requests] == ["1", "2", "3", "4"]


async def test_it_is_signed_twice(tmp_path: Path) -> None:
    """The headers are `X-Foreman-Signature` and those of Standard Webhooks."""
    more = "tokens: [{name: hooks, key: a-shared-secret}]\n"
    with a_receiver() as receiver:
        snapshot = a_snapshot(tmp_path, f"{_SETTINGS}, secret_ref: hooks", more)
        store = open_sqlite(tmp_path / "state.db", clock=SystemClock().now, rng=Random(1))
        sender = WebhookSender(
            store, HttpWebhookClient(), SystemClock(), lambda: snapshot, SignalBus(), Random(1)
        )
        service = asyncio.create_task(sender.run())
        await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        (request,) = await asyncio.to_thread(receiver.wait_for, bool)
        await sender.stop()
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
        async with running_sender(tmp_path, settings, more) as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_DELIVERED)
        (request,) = receiver.requests
    assert request.headers["x-mine"].startswith("sha256=")
    assert "x-foreman-signature" not in request.headers


async def test_without_a_secret_nothing_is_signed(tmp_path: Path) -> None:
    with a_receiver() as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_DELIVERED)
        (request,) = receiver.requests
    assert not {name for name in request.headers if "signature" in name}
    assert request.headers["webhook-id"]


async def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path) -> None:
    """A slow receiver delays no other, however many deliveries wait for it."""
    release = threading.Event()
    with a_receiver(lambda *_: Reply(after=release)) as slow, a_receiver() as quick:
        async with running_sender(tmp_path) as (harness, _):
            for _ in range(3 * MAX_PER_RECEIVER):
                await harness.submit(slow)
            await asyncio.to_thread(slow.wait_for, bool)
            for _ in range(2 * MAX_PER_RECEIVER):
                await harness.submit(quick)
            await harness.until(Signal.DELIVERY_DELIVERED, 2 * MAX_PER_RECEIVER)
            assert (len(slow.requests), len(quick.requests)) == (1, 2 * MAX_PER_RECEIVER)
            release.set()
            await harness.until(Signal.DELIVERY_DELIVERED, 5 * MAX_PER_RECEIVER)


async def test_many_dead_receivers_delay_no_other(tmp_path: Path) -> None:
    """Receivers that accept connections and never respond delay no other."""
    with ExitStack() as dead, a_receiver() as quick:
        silent = [dead.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(70)]
        async with running_sender(tmp_path, _SETTINGS.replace("20s", "10m")) as (harness, _):
            for listener in silent:
                hanging = Receiver(port=listener.getsockname()[1])
                for _ in range(MAX_PER_RECEIVER):
                    await harness.submit(hanging)
            await harness.submit(quick)
            await harness.until(Signal.DELIVERY_DELIVERED)
            assert not [event for event in harness.emitted if event.signal is Signal.DELIVERY_FAILED]


async def test_a_prompt_receiver_gets_concurrent_deliveries(tmp_path: Path) -> None:
    """A new receiver gets one delivery at a time; after its first response it gets the maximum."""
    release = threading.Event()
    with a_receiver(lambda _, before: Reply(after=release if before else None)) as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_DELIVERED)
            for _ in range(2 * MAX_PER_RECEIVER):
                await harness.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, lambda requests: len(requests) == 1 + MAX_PER_RECEIVER)
            await harness.clock.advance(seconds=PROMPT.total_seconds() + 1)
            release.set()
            await harness.until(Signal.DELIVERY_DELIVERED, 1 + 2 * MAX_PER_RECEIVER)


async def test_a_slow_receiver_gets_one_delivery_at_a_time(tmp_path: Path) -> None:
    """The concurrency of a receiver depends on the duration of its last response."""
    gates = [threading.Event() for _ in range(3)]
    with a_receiver(lambda _, before: Reply(after=gates[min(before, 2)])) as receiver:
        async with running_sender(tmp_path) as (harness, _):
            for _ in range(3 + MAX_PER_RECEIVER):
                await harness.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, lambda requests: len(requests) == 1)
            await harness.clock.advance(seconds=PROMPT.total_seconds() + 1)
            gates[0].set()
            await harness.until(Signal.DELIVERY_DELIVERED, 1)
            await asyncio.to_thread(receiver.wait_for, lambda requests: len(requests) == 2)
            gates[1].set()
            await harness.until(Signal.DELIVERY_DELIVERED, 2)
            await asyncio.to_thread(receiver.wait_for, lambda requests: len(requests) == 2 + MAX_PER_RECEIVER)
            gates[2].set()
            await harness.until(Signal.DELIVERY_DELIVERED, 3 + MAX_PER_RECEIVER)


async def test_a_later_event_does_not_overtake_one_that_is_on_its_way(tmp_path: Path) -> None:
    """First attempts of a job are sent in order; those of other jobs do not wait."""
    release = threading.Event()

    def delay_first(request: ReceivedRequest, _before: int) -> Reply:
        return Reply(after=release if request.path == "/slow" and request.body["state"] == "queued" else None)

    with a_receiver(delay_first) as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.submit(
                receiver, "/known"
            )  # a receiver that has answered gets concurrent deliveries
            await claim_one(harness.store)
            await harness.until(Signal.DELIVERY_DELIVERED, 2)
            await harness.submit(receiver, "/slow")
            await asyncio.to_thread(receiver.wait_for, lambda requests: len(requests) == 3)
            await claim_one(harness.store)
            await harness.submit(receiver, "/other")
            await harness.until(Signal.DELIVERY_DELIVERED, 3)
            assert [(received.path, received.body["state"]) for received in receiver.requests[2:]] == [
                ("/slow", "queued"),
                ("/other", "queued"),
            ]
            release.set()
            await harness.until(Signal.DELIVERY_DELIVERED, 5)
            assert receiver.requests[-1].body["state"] == "loading"


async def test_a_retry_holds_back_no_later_event(tmp_path: Path) -> None:
    """After the first attempt has failed, later deliveries are sent."""

    def refuse_queued(request: ReceivedRequest, _before: int) -> Reply:
        return Reply(status=500 if request.body["state"] == "queued" else 200)

    with a_receiver(refuse_queued) as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.submit(receiver)
            await claim_one(harness.store)
            await harness.until(Signal.DELIVERY_FAILED)
            await harness.until(Signal.DELIVERY_DELIVERED)
            assert receiver.states() == ["queued", "loading"]


async def test_it_waits_longer_each_time_and_then_gives_up(tmp_path: Path) -> None:
    """The delay begins with 1 s and doubles; after `max_attempts` the delivery is dropped and recorded."""
    with a_receiver(respond_with(500)) as receiver:
        async with running_sender(tmp_path, f"{_SETTINGS}, max_attempts: 3") as (harness, _):
            job_id = await harness.submit(receiver)
            waits = []
            for attempt in (1, 2):
                await harness.until(Signal.DELIVERY_FAILED, attempt)
                (row,) = (await harness.store.list_deliveries(limit=9)).rows
                assert row.next_attempt_at is not None
                wait = row.next_attempt_at - harness.clock.now()
                waits.append(wait)
                await harness.clock.advance(seconds=wait.total_seconds())
            (dropped,) = await harness.until(Signal.DELIVERY_DROPPED)
            (row,) = (await harness.store.list_deliveries(limit=9)).rows
            entry = (await whole_ledger(harness.store))[-1]
    assert timedelta(seconds=1) <= waits[0] <= timedelta(seconds=2) <= waits[1] <= timedelta(seconds=3)
    assert len(receiver.requests) == 3
    assert len({request.raw for request in receiver.requests}) == 1
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert (row.status, row.last_status, row.attempts) == (DeliveryStatus.DROPPED, 500, 3)
    assert (entry.kind, entry.job_id, dropped.job_id) == (LedgerKind.DELIVERY_DROPPED, job_id, job_id)


async def test_a_receiver_that_asks_for_time_gets_it(tmp_path: Path) -> None:
    """The sender respects `Retry-After`."""
    with a_receiver(respond_with(429, 204, Retry_After="600")) as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_FAILED)
            await harness.clock.advance(seconds=599)
            assert len(receiver.requests) == 1
            await harness.clock.advance(seconds=1)
            await harness.until(Signal.DELIVERY_DELIVERED)


async def test_urls_are_in_no_signal_and_no_ledger(tmp_path: Path) -> None:
    """URLs may contain secrets; the host identifies the receiver."""
    with a_receiver(respond_with(500, 500, 204)) as receiver:
        async with running_sender(tmp_path, f"{_SETTINGS}, max_attempts: 2") as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_FAILED)
            await harness.clock.advance(seconds=3)
            await harness.until(Signal.DELIVERY_DROPPED)
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_DELIVERED)
            output = repr(harness.emitted) + repr(await whole_ledger(harness.store))
    assert "canary" not in output
    assert f"http://127.0.0.1:{receiver.port}" in output


async def test_a_delivery_in_flight_at_the_stop_may_finish(tmp_path: Path) -> None:
    release = threading.Event()
    with a_receiver(lambda *_: Reply(after=release)) as receiver:
        async with running_sender(tmp_path) as (harness, sender):
            await harness.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, bool)
            stopping = asyncio.create_task(sender.stop(30))
            await asyncio.sleep(0)
            release.set()
            await stopping
            (row,) = (await harness.store.list_deliveries(limit=9)).rows
    assert row.status is DeliveryStatus.DELIVERED


async def test_an_unfinished_delivery_is_sent_by_the_next_daemon_at_once(tmp_path: Path) -> None:
    """A delivery is sent at least once, across restarts."""
    release = threading.Event()
    clock = SimulatedClock()
    with a_receiver(lambda _, before: Reply(after=release if before == 0 else None)) as receiver:
        async with running_sender(tmp_path, clock=clock) as (harness, sender):
            await harness.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, bool)
            await sender.stop(0)
        async with running_sender(tmp_path, clock=clock) as (harness, _):
            await harness.until(Signal.DELIVERY_DELIVERED)
        release.set()
        first, second = receiver.requests
    assert (first.raw, first.headers["webhook-id"]) == (second.raw, second.headers["webhook-id"])


class SlowStore:
    """A real store that returns claimed deliveries when the test allows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claimed = asyncio.Event()
        self.released = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def claim_deliveries(self, *args: Any, **kwargs: Any) -> Any:
        claims = await self._store.claim_deliveries(*args, **kwargs)
        if claims.deliveries:
            self.claimed.set()
            await self.released.wait()
        return claims


async def test_a_delivery_claimed_at_the_stop_is_due_at_once(tmp_path: Path) -> None:
    """The delivery was not sent, so it is due at once."""
    clock, snapshot = SimulatedClock(), a_snapshot(tmp_path, _SETTINGS)
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    slow = SlowStore(store)
    with a_receiver() as receiver:
        await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        sender = WebhookSender(
            cast("Store", slow), HttpWebhookClient(), clock, lambda: snapshot, SignalBus(), Random(1)
        )
        service = asyncio.create_task(sender.run())
        await slow.claimed.wait()
        stopping = asyncio.create_task(sender.stop(0))
        await asyncio.sleep(0)  # the stop has begun
        slow.released.set()
        await stopping
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        await store.close()
        assert receiver.requests == []
        async with running_sender(tmp_path, clock=clock) as (harness, _):
            await harness.until(Signal.DELIVERY_DELIVERED)


async def test_a_delivery_cut_off_by_a_crash_is_due_again_after_its_lease(tmp_path: Path) -> None:
    """The attempt is counted before it is made, and has no stored result."""
    clock = SimulatedClock()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    with a_receiver() as receiver:
        await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        await store.claim_deliveries(
            DeliveryCapacity(total=1, per_receiver=1), retry_at=START + timedelta(seconds=25)
        )
        await store.close()
        async with running_sender(tmp_path, clock=clock) as (harness, _):
            await harness.clock.advance(seconds=24)
            assert receiver.requests == []
            await harness.clock.advance(seconds=1)
            await harness.until(Signal.DELIVERY_DELIVERED)


async def test_a_request_that_cannot_be_made_is_dropped_and_delays_no_other(tmp_path: Path) -> None:
    """A delivery that cannot be signed fails like one that cannot be sent; others continue."""
    more = "tokens: [{name: hooks, key: s}]\n"
    settings = f"{_SETTINGS}, secret_ref: hooks, max_attempts: 1"
    valid_snapshot = a_snapshot(tmp_path, settings, more)
    snapshots = [replace(valid_snapshot, state_webhook_secret=Secret("canary\udcff"))]
    with a_receiver() as receiver:
        async with running_sender(tmp_path, snapshot=lambda: snapshots[-1]) as (harness, _):
            await harness.submit(receiver)
            (dropped,) = await harness.until(Signal.DELIVERY_DROPPED)
            snapshots.append(valid_snapshot)
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_DELIVERED)
    assert dropped.data["error"] == "the request could not be made (UnicodeEncodeError)"
    assert "canary" not in repr(harness.emitted)


async def test_a_delivery_that_crashed_in_its_last_attempt_is_dropped_and_recorded(tmp_path: Path) -> None:
    """Attempts are counted before they are made, so `max_attempts` holds across crashes."""
    clock = SimulatedClock()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    with a_receiver() as receiver:
        job_id = await accept(store, a_new_job(callback=StateSubscription(url=receiver.url())))
        for _ in range(2):
            await store.claim_deliveries(DeliveryCapacity(total=1, per_receiver=1), retry_at=START)
        await store.close()
        async with running_sender(tmp_path, f"{_SETTINGS}, max_attempts: 2", clock=clock) as (harness, _):
            (dropped,) = await harness.until(Signal.DELIVERY_DROPPED)
            entry = (await whole_ledger(harness.store))[-1]
        assert receiver.requests == []
    assert (entry.kind, entry.job_id) == (LedgerKind.DELIVERY_DROPPED, job_id)
    assert dropped.data["error"] == "the daemon ended before it could store the result of the last attempt"


async def test_a_delivery_dropped_by_a_lower_limit_keeps_its_error(tmp_path: Path) -> None:
    """A reload may leave a delivery no attempt; its error names that and the earlier error."""
    snapshots = [a_snapshot(tmp_path, f"{_SETTINGS}, max_attempts: 4")]
    with a_receiver(respond_with(500)) as receiver:
        async with running_sender(tmp_path, snapshot=lambda: snapshots[-1]) as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_FAILED, 1)
            await harness.clock.advance(seconds=3)
            (_, failed) = await harness.until(Signal.DELIVERY_FAILED, 2)
            snapshots.append(a_snapshot(tmp_path, f"{_SETTINGS}, max_attempts: 1"))
            await harness.clock.advance(seconds=9)
            (dropped,) = await harness.until(Signal.DELIVERY_DROPPED)
            (row,) = (await harness.store.list_deliveries(limit=9)).rows
    assert len(receiver.requests) == 2
    error = f"{failed.data['error']}; not sent again, because max_attempts is 1"
    assert (dropped.data["error"], row.last_error, row.last_status) == (error, error, 500)


async def test_a_stop_in_the_only_attempt_does_not_count(tmp_path: Path) -> None:
    """An attempt that a stop interrupts is not counted."""
    release = threading.Event()
    clock, settings = SimulatedClock(), f"{_SETTINGS}, max_attempts: 1"
    with a_receiver(lambda _, before: Reply(after=release if before == 0 else None)) as receiver:
        async with running_sender(tmp_path, settings, clock=clock) as (harness, sender):
            await harness.submit(receiver)
            await asyncio.to_thread(receiver.wait_for, bool)
            await sender.stop(0)
        async with running_sender(tmp_path, settings, clock=clock) as (harness, _):
            (delivered,) = await harness.until(Signal.DELIVERY_DELIVERED)
        release.set()
    assert delivered.data["attempts"] == 1


async def test_a_delivery_can_be_sent_again_by_hand(tmp_path: Path) -> None:
    """A delivery that is sent again has all its attempts."""
    with a_receiver(respond_with(500, 500, 204)) as receiver:
        async with running_sender(tmp_path, f"{_SETTINGS}, max_attempts: 1") as (harness, _):
            await harness.submit(receiver)
            (dropped,) = await harness.until(Signal.DELIVERY_DROPPED)
            assert await harness.store.resend(str(dropped.data["delivery"]))
            await harness.until(Signal.DELIVERY_DROPPED, 2)
            assert await harness.store.resend(str(dropped.data["delivery"]))
            await harness.until(Signal.DELIVERY_DELIVERED)


async def test_a_host_that_is_no_longer_allowed_is_not_called(tmp_path: Path) -> None:
    """The present rules count, not those at the time of the submission."""
    with a_receiver() as receiver:
        async with running_sender(tmp_path, "max_attempts: 1") as (harness, _):
            await harness.submit(receiver)
            (dropped,) = await harness.until(Signal.DELIVERY_DROPPED)
        assert receiver.requests == []
    assert "not a public address" in str(dropped.data["error"])


async def test_a_body_is_what_it_was_when_the_state_changed(tmp_path: Path) -> None:
    """A body is stored when it is created; a later retry sends the same timestamp."""
    with a_receiver(respond_with(500, 204)) as receiver:
        async with running_sender(tmp_path) as (harness, _):
            await harness.submit(receiver)
            await harness.until(Signal.DELIVERY_FAILED)
            await harness.clock.advance(seconds=60)
            await harness.until(Signal.DELIVERY_DELIVERED)
    bodies: list[dict[str, Any]] = [request.body for request in receiver.requests]
    assert bodies[0] == bodies[1]
    assert bodies[0]["timestamp"] == format_timestamp(START)


async def test_a_delivery_claimed_too_late_is_left_for_the_next_start(tmp_path: Path) -> None:
    """A stop during the claim sends none of the claimed deliveries."""
    clock, snapshot = SimulatedClock(), a_snapshot(tmp_path, _SETTINGS)
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    with a_receiver() as receiver:
        sender = WebhookSender(store, HttpWebhookClient(), clock, lambda: snapshot, SignalBus(), Random(1))
        await SenderUnderTest(store, clock).submit(receiver)
        service = asyncio.create_task(sender.run())
        await asyncio.sleep(0)  # the sender waits for its claim
        await sender.stop(0)
        async with asyncio.timeout(60):
            await service
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("delivery")]
        (row,) = (await store.list_deliveries(limit=5)).rows
        assert row.status is DeliveryStatus.PENDING
    await store.close()
