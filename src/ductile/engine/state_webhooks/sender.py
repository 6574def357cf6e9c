"""The sender of state webhooks: takes what is due from the outbox, sends it, reports what came of it.

At least once, across crashes: an attempt is on disk before it is made, and is due again if nobody reports
it. Receivers do not feel each other: each has so many places of its own, fewer while it keeps us waiting, and
waits for nobody's answer but its own. No job ever waits for any of this.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonObject
from ductile.core.webhooks.concurrency import ConcurrencyLimit, ReceiverHealth, health_after
from ductile.core.webhooks.deliveries import DeliveryAttempt, may_attempt, next_attempt
from ductile.core.webhooks.signatures import (
    STANDARD_ID,
    STANDARD_SIGNATURE,
    STANDARD_TIMESTAMP,
    sign_body,
    sign_standard,
)
from ductile.engine.clock import Clock
from ductile.engine.state_webhooks.client import WebhookClient, WebhookRequest
from ductile.errors import StoreBusyError, StoreFullError
from ductile.store.model.deliveries import Delivery, DeliveryCapacity, DeliveryReport
from ductile.store.port import Store
from ductile.struct import replace
from ductile.telemetry.signals import Signal, SignalBus

#: Deliveries under way at once, and how many of them to one receiver that answers promptly. What waits for an
#: answer costs a socket. A quarter of the places can be taken by nobody but those who answer.
MAX_IN_FLIGHT = 256
MAX_PER_RECEIVER = 4
CONCURRENCY_LIMITS = {
    ReceiverHealth.UNKNOWN: ConcurrencyLimit(each=1, all=MAX_IN_FLIGHT // 2),
    ReceiverHealth.SLOW: ConcurrencyLimit(each=1, all=MAX_IN_FLIGHT // 4),
}
#: Receivers of whom it is remembered how they behaved.
MAX_REMEMBERED_RECEIVERS = 4096
#: An attempt that nobody reported is taken for lost so long after its time was up.
REPORT_SLACK = timedelta(seconds=5)
#: How long to leave a store alone that is full or locked.
PAUSE = timedelta(seconds=1)
#: What is being sent when the daemon stops may take so long to finish.
STOP_GRACE_SECONDS = 5.0

_INTERRUPTED = DeliveryAttempt(error="the daemon stopped while it was being sent")
_UNREPORTED = DeliveryAttempt(error="the daemon ended before it could tell what came of the last attempt")


class WebhookSender:
    def __init__(
        self,
        store: Store,
        poster: WebhookClient,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        signals: SignalBus,
        rng: Random,
    ) -> None:
        self._store = store
        self._poster = poster
        self._clock = clock
        self._snapshot = snapshot
        self._signals = signals
        self._rng = rng
        self._woken = asyncio.Event()
        #: Held while the store is asked for what is due.
        self._taking = asyncio.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._under_way: dict[asyncio.Task[None], Delivery] = {}
        self._manners: dict[str, ReceiverHealth] = {}

    def wake(self) -> None:
        """Something may be due: the outbox grew, or the clock was set."""
        self._woken.set()

    async def run(self) -> None:
        self._store.watch_outbox(self.wake)
        while not self._stopping:
            self._woken.clear()
            next_due_at = await self._patiently(self._send_due)
            if self._failure is not None:
                raise self._failure
            await self._clock.wait(next_due_at, self._woken)

    async def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Begin nothing more, and give what is being sent a little time; the rest is sent after a restart."""
        self._stopping = True
        self._woken.set()
        async with self._taking:
            pass  # else it could take what is given back below, and nobody would send it for a while
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=grace)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._poster.close()

    async def _send_due(self) -> datetime | None:
        """Take what there is room for and begin to send it; when the next one is due by time alone."""
        busy = Counter(delivery.receiver for delivery in self._under_way.values())
        room = DeliveryCapacity(
            all=MAX_IN_FLIGHT - len(self._under_way),
            each=MAX_PER_RECEIVER,
            busy=busy,
            manners=dict(self._manners),  # it is read by another thread
            shares=CONCURRENCY_LIMITS,
        )
        lost_at = self._clock.now() + self._snapshot().state_webhooks.timeout + REPORT_SLACK
        async with self._taking:
            taken = await self._store.take_deliveries(room, retry_at=lost_at)
            if self._stopping:
                for delivery in taken.deliveries:
                    await self._give_back(delivery)
                return None
        for delivery in taken.deliveries:
            task = asyncio.create_task(self._deliver(delivery), name=f"delivery {delivery.id}")
            self._under_way[task] = delivery
            task.add_done_callback(self._ended)
        return taken.next_due_at

    def _ended(self, task: asyncio.Task[None]) -> None:
        """There is room again, and a later event of the same job may be due now."""
        self._under_way.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
        self._woken.set()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            attempt = await self._attempt(delivery)
        except asyncio.CancelledError:
            # The attempt may or may not have arrived, so it is made again as soon as somebody can.
            await asyncio.shield(self._give_back(delivery))
            raise
        retry_at = None if attempt.delivered else self._retry_at(delivery, attempt)
        report = _report(delivery, attempt, retry_at)
        await self._patiently(lambda: self._store.report_delivery(report))
        self._tell(delivery, attempt, retry_at)

    def _remember(self, receiver: str, manner: ReceiverHealth) -> None:
        """The newest last, and not of everybody for ever: who submits jobs names the receivers."""
        self._manners.pop(receiver, None)
        self._manners[receiver] = manner
        if len(self._manners) > MAX_REMEMBERED_RECEIVERS:
            del self._manners[next(iter(self._manners))]

    async def _attempt(self, delivery: Delivery) -> DeliveryAttempt:
        """Send it, if it may still be sent, and remember how its receiver behaves."""
        began, snapshot = self._clock.now(), self._snapshot()
        most = snapshot.state_webhooks.max_attempts
        if not may_attempt(delivery.attempts, max_attempts=most):
            return _not_made(delivery, most)
        attempt = await self._post(delivery, snapshot, began)
        self._remember(delivery.receiver, health_after(attempt, self._clock.now() - began))
        return attempt

    async def _post(self, delivery: Delivery, snapshot: Snapshot, now: datetime) -> DeliveryAttempt:
        """Whatever is wrong with one delivery fails that one, and nobody else."""
        try:
            return await self._poster.post(build_request(delivery, snapshot, now), now)
        except Exception as fault:  # noqa: BLE001 - it would be due again at the next start, and the next
            return DeliveryAttempt(error=f"it could not be made ({type(fault).__name__})")

    async def _give_back(self, delivery: Delivery) -> None:
        """It is due at once, for the next daemon, as if this one had not taken it."""
        report = replace(_report(delivery, _INTERRUPTED, self._clock.now()), counts=False)
        await self._store.report_delivery(report)

    def _retry_at(self, delivery: Delivery, attempt: DeliveryAttempt) -> datetime | None:
        settings = self._snapshot().state_webhooks
        return next_attempt(
            attempt,
            attempts=delivery.attempts,
            max_attempts=settings.max_attempts,
            backoff_base=settings.backoff_base,
            now=self._clock.now(),
            rng=self._rng,
        )

    async def _patiently(self, ask: Callable[[], Awaitable[datetime | None]]) -> datetime | None:
        """Ask the store, again and again while it is full or locked: what is due stays due."""
        while True:
            try:
                return await ask()
            except (StoreFullError, StoreBusyError):
                await self._clock.wait(self._clock.now() + PAUSE, asyncio.Event())

    def _tell(self, delivery: Delivery, attempt: DeliveryAttempt, retry_at: datetime | None) -> None:
        data: JsonObject = {
            "delivery": delivery.id,
            "state": delivery.state,
            "attempts": delivery.attempts,
            "receiver": delivery.receiver,
            "http_status": attempt.http_status,
        }
        signal = Signal.DELIVERY_DELIVERED
        if not attempt.delivered:
            given_up = Signal.DELIVERY_GONE if attempt.gone else Signal.DELIVERY_DROPPED
            signal = given_up if retry_at is None else Signal.DELIVERY_FAILED
            data["error"] = attempt.error
        self._signals.emit(signal, job_id=delivery.job_id, data=data)


def build_request(delivery: Delivery, snapshot: Snapshot, now: datetime) -> WebhookRequest:
    """The delivery with its headers. The body was frozen with the transition; the signature is of now."""
    settings, secret = snapshot.state_webhooks, snapshot.state_webhook_secret
    body, timestamp = delivery.body.encode(), int(now.timestamp())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"ductile/{__version__}",
        "X-Ductile-Sequence": str(delivery.sequence),
        STANDARD_ID: delivery.id,
        STANDARD_TIMESTAMP: str(timestamp),
    }
    if secret is not None:
        key = secret.reveal()
        headers[settings.signature_header] = sign_body(key, body)
        headers[STANDARD_SIGNATURE] = sign_standard(
            key, message_id=delivery.id, timestamp=timestamp, body=body
        )
    return WebhookRequest(
        url=delivery.url, body=body, headers=headers, timeout=settings.timeout, allow=settings.allow
    )


def _not_made(delivery: Delivery, max_attempts: int) -> DeliveryAttempt:
    """Why there is no attempt left. What came of an earlier one is known only if somebody lived to tell it.

    Then the last may have ended with the daemon, or they were fewer when it was planned: `max_attempts` may
    be lowered meanwhile. What is said here is true of both.
    """
    if delivery.last_error is None:
        return _UNREPORTED
    told = f"{delivery.last_error}; it is not sent again, as max_attempts is {max_attempts}"
    return DeliveryAttempt(http_status=delivery.last_status, error=told)


def _report(delivery: Delivery, attempt: DeliveryAttempt, retry_at: datetime | None) -> DeliveryReport:
    return DeliveryReport(
        id=delivery.id,
        delivered=attempt.delivered,
        http_status=attempt.http_status,
        error=attempt.error,
        retry_at=retry_at,
        gone=attempt.gone,
    )
