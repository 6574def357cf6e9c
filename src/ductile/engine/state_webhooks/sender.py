"""The sender of state webhooks: claims due deliveries of the outbox, sends them, stores their results.

Delivery is at least once, across crashes: an attempt is stored before it is made and becomes due again if no
result is stored for it. Receivers do not delay each other: each has a number of concurrent deliveries of its
own, which is smaller while it is slow. No job waits for a delivery.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonObject
from ductile.core.webhooks.deliveries import (
    ConcurrencyLimit,
    DeliveryAttempt,
    ReceiverHealth,
    health_after,
    may_attempt,
    next_attempt,
)
from ductile.core.webhooks.signatures import (
    STANDARD_ID,
    STANDARD_SIGNATURE,
    STANDARD_TIMESTAMP,
    sign_body,
    sign_standard,
)
from ductile.engine.clock import Clock, retry_until_available
from ductile.engine.state_webhooks.client import WebhookClient, WebhookRequest
from ductile.store.model.deliveries import Delivery, DeliveryCapacity, DeliveryReport
from ductile.store.notifier import DeliveriesDue
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus

#: The most concurrent deliveries: in total, and to one receiver that answers promptly. Each costs a socket.
MAX_IN_FLIGHT = 256
MAX_PER_RECEIVER = 4
#: Limits for receivers that are unknown or slow. Together they have three quarters: the last quarter is for
#: those that answer promptly.
CONCURRENCY_LIMITS = {
    ReceiverHealth.UNKNOWN: ConcurrencyLimit(per_receiver=1, total=MAX_IN_FLIGHT // 2),
    ReceiverHealth.SLOW: ConcurrencyLimit(per_receiver=1, total=MAX_IN_FLIGHT // 4),
}
#: The most receivers whose health is remembered. Submitters name them, so their number must be bounded.
MAX_REMEMBERED_RECEIVERS = 4096
#: An attempt without a stored result is made again this long after its timeout.
REPORT_MARGIN = timedelta(seconds=5)
#: The longest sleep, in case a notice about the outbox was missed.
POLL_INTERVAL = timedelta(minutes=1)
#: How long `stop` waits for deliveries in flight.
STOP_GRACE_SECONDS = 5.0

_INTERRUPTED = DeliveryAttempt(error="the daemon stopped while the webhook was being sent")
_UNREPORTED = DeliveryAttempt(error="the daemon ended before it could store the result of the last attempt")


class WebhookSender:
    def __init__(
        self,
        store: Store,
        client: WebhookClient,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        signals: SignalBus,
        rng: Random,
    ) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._snapshot = snapshot
        self._signals = signals
        self._rng = rng
        self._woken = asyncio.Event()
        #: Held while deliveries are claimed, so that `stop` waits for a claim that is under way.
        self._claiming = asyncio.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._in_flight: dict[asyncio.Task[None], Delivery] = {}
        #: The health of receivers, least recently used first.
        self._health: dict[str, ReceiverHealth] = {}

    def wake(self) -> None:
        """Send due deliveries now: the outbox grew, or the clock was set."""
        self._woken.set()

    async def run(self) -> None:
        """Send due deliveries until stopped. Raises the error of a delivery, such as a failed store."""
        self._store.notifier.subscribe(DeliveriesDue, lambda _: self.wake())
        while not self._stopping:
            self._woken.clear()
            next_due_at = await retry_until_available(self._clock, self._send_due)
            if self._failure is not None:
                raise self._failure
            poll_at = self._clock.now() + POLL_INTERVAL
            await self._clock.wait(min(next_due_at or poll_at, poll_at), self._woken)

    async def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Claim no more deliveries, wait `grace` seconds for those in flight, and release the others."""
        self._stopping = True
        self._woken.set()
        async with self._claiming:
            pass  # A claim that is under way releases its deliveries before this continues.
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=grace)
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        await self._client.close()

    async def _send_due(self) -> datetime | None:
        """Start as many due deliveries as the limits allow. Returns the time at which the next is due."""
        capacity = DeliveryCapacity(
            total=MAX_IN_FLIGHT - len(self._in_flight),
            per_receiver=MAX_PER_RECEIVER,
            busy=Counter(delivery.receiver for delivery in self._in_flight.values()),
            health=dict(self._health),  # A copy: the store's thread reads it.
            limits=CONCURRENCY_LIMITS,
        )
        retry_at_if_no_result = self._clock.now() + self._snapshot().state_webhooks.timeout + REPORT_MARGIN
        async with self._claiming:
            claimed = await self._store.claim_deliveries(capacity, retry_at=retry_at_if_no_result)
            if self._stopping:
                for delivery in claimed.deliveries:
                    await self._release(delivery)
                return None
        for delivery in claimed.deliveries:
            task = asyncio.create_task(self._deliver(delivery), name=f"delivery {delivery.id}")
            self._in_flight[task] = delivery
            task.add_done_callback(self._on_delivery_done)
        return claimed.next_due_at

    def _on_delivery_done(self, task: asyncio.Task[None]) -> None:
        """Wake the loop: a slot is free, and a later event of the same job may be due."""
        self._in_flight.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
        self._woken.set()

    async def _deliver(self, delivery: Delivery) -> None:
        """Make one attempt, store its result and emit its signal."""
        try:
            attempt = await self._attempt(delivery)
        except asyncio.CancelledError:
            # The request may or may not have arrived, so it is sent again after a restart.
            await asyncio.shield(self._release(delivery))
            raise
        settings = self._snapshot().state_webhooks
        retry_at = None
        if not attempt.delivered:
            retry_at = next_attempt(
                attempt,
                attempts=delivery.attempts,
                max_attempts=settings.max_attempts,
                backoff_base=settings.backoff_base,
                now=self._clock.now(),
                rng=self._rng,
            )
        report = DeliveryReport(
            id=delivery.id, attempt=attempt, retry_at=retry_at, attempts=delivery.attempts
        )
        await retry_until_available(self._clock, lambda: self._store.report_delivery(report))
        data: JsonObject = {
            "delivery": delivery.id,
            "state": delivery.state,
            "attempts": delivery.attempts,
            "receiver": delivery.receiver,
            "http_status": attempt.http_status,
        }
        signal = Signal.DELIVERY_DELIVERED
        if not attempt.delivered:
            final = Signal.DELIVERY_GONE if attempt.gone else Signal.DELIVERY_DROPPED
            signal = final if retry_at is None else Signal.DELIVERY_FAILED
            data["error"] = attempt.error
        self._signals.emit(signal, job_id=delivery.job_id, data=data)

    async def _attempt(self, delivery: Delivery) -> DeliveryAttempt:
        """Send the delivery, if it has attempts left, and remember the receiver's health."""
        began, snapshot = self._clock.now(), self._snapshot()
        max_attempts = snapshot.state_webhooks.max_attempts
        if not may_attempt(delivery.attempts, max_attempts=max_attempts):
            if delivery.last_error is None:  # The daemon ended during the last attempt.
                return _UNREPORTED
            error = f"{delivery.last_error}; not sent again, because max_attempts is {max_attempts}"
            return DeliveryAttempt(http_status=delivery.last_status, error=error)
        try:
            attempt = await self._client.post(build_request(delivery, snapshot, began), began)
        except Exception as fault:  # noqa: BLE001 - raised, the delivery would be due again at every start
            attempt = DeliveryAttempt(error=f"the request could not be made ({type(fault).__name__})")
        self._health.pop(delivery.receiver, None)
        self._health[delivery.receiver] = health_after(attempt, self._clock.now() - began)
        if len(self._health) > MAX_REMEMBERED_RECEIVERS:
            del self._health[next(iter(self._health))]
        return attempt

    async def _release(self, delivery: Delivery) -> None:
        """Make the delivery due at once, without counting the attempt."""
        await self._store.report_delivery(
            DeliveryReport(
                id=delivery.id,
                attempt=_INTERRUPTED,
                retry_at=self._clock.now(),
                counts=False,
                attempts=delivery.attempts,
            )
        )


def build_request(delivery: Delivery, snapshot: Snapshot, now: datetime) -> WebhookRequest:
    """Return the HTTP request of a delivery. Its body was stored with the transition; it is signed now."""
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
