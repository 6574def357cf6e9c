"""Changes that the store publishes after a commit, and the in-process notifier that carries them.

A verb calls `Session.publish` inside its transaction. After COMMIT the store publishes the changes of all
requests in that commit, on the event loop, and only then resumes the callers that wait for them. A change is
published also if its caller was cancelled meanwhile. A request that failed publishes nothing.

The subscribers of each change, and their fallback polling interval (`Engine._subscribe` connects most; the
webhook sender, the log index, drains and event streams subscribe themselves):

- `JobsReady`: the dispatcher claims; polls every 30 s.
- `JobsEnqueued`: `job.accepted` and `job.deduplicated` are emitted for logs and metrics.
- `JobEnded`: waiting callers resume (they re-read the job every 5 s), the scheduler wakes up if the job was
  scheduled or a poll, a drain counts pending work (every 5 s), job logs are indexed, and the dispatcher stops
  waiting for an init.
- `CancelRequested`: the engine stops the job if it runs here; with several nodes, polls with every heartbeat.
- `RetryScheduled`, `DeadlineSet`, `FailureRecorded`: the timer loops of retries, of run deadlines and of
  failure notices wake earlier; they poll every minute.
- `SchedulesChanged`: the scheduler wakes up; it polls with every tick.
- `DeliveriesDue`: the webhook sender claims deliveries; polls every minute.
- `LedgerAppended`: event streams (`api.events`, polls every 15 s) and commands that follow a
  log or a run read further entries.
- `SessionEnded`: every node refuses the cookie of the session; the API reads all of them when it starts.
- `StoreFailed`: the daemon stops.
- `StoreUnavailable`, `StoreAvailable`: the daemon logs them.

With several nodes on one store, the changes of the others are published here as well, except `JobsEnqueued`
and those about the store itself. Subscribers must not rely on changes alone: one that is lost must only cost
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from ductile.core.jobs.model import SubmittedBy
from ductile.errors import StoreBusyError, StoreFailedError
from ductile.store.model.jobs import EnqueueResult
from ductile.struct import Value


class Change(Value):
    """One change that a commit made, of the type of its class."""


class JobsEnqueued(Change):
    """A submission was committed, with the results that its caller gets."""

    results: tuple[EnqueueResult, ...]


class JobsReady(Change):
    """At least one job may be claimable now that was not before."""


class JobEnded(Change):
    """A job reached a terminal state."""

    job_id: str
    plugin: str
    command: str
    submitted_by: SubmittedBy


class CancelRequested(Change):
    """The node that runs this job has to stop it."""

    job_id: str


class RetryScheduled(Change):
    """A job waits for its retry until this instant."""

    due_at: datetime


class DeadlineSet(Change):
    """A pipeline run is cancelled at this instant if it has not ended."""

    due_at: datetime


class SchedulesChanged(Change):
    """A schedule was paused or resumed."""


class DeliveriesDue(Change):
    """At least one state webhook became due."""


class FailureRecorded(Change):
    """A failure was recorded that a notice reports at this instant."""

    due_at: datetime


class LedgerAppended(Change):
    """At least one ledger entry was appended."""


class SessionEnded(Change):
    """A session of the dashboard was ended by signing out."""

    session_id: str


class StoreFailed(Change):
    """The store stopped writing for good."""

    error: StoreFailedError


class StoreUnavailable(Change):
    """The store takes no writes now. `StoreAvailable` follows when it does again."""

    error: StoreBusyError


class StoreAvailable(Change):
    """The store takes writes again."""


C = TypeVar("C", bound=Change)

#: Changes without content are single objects, so that a commit publishes each of them once.
JOBS_READY = JobsReady()
SCHEDULES_CHANGED = SchedulesChanged()
DELIVERIES_DUE = DeliveriesDue()
LEDGER_APPENDED = LedgerAppended()
STORE_AVAILABLE = StoreAvailable()


class Notifier:
    """Calls the subscribers of a change. All methods are called on the event loop."""

    def __init__(self) -> None:
        self._callbacks: dict[type[Change], list[Callable[[Any], None]]] = {}

    def subscribe(self, change: type[C], callback: Callable[[C], None]) -> Callable[[], None]:
        """Call `callback` for every change of this type; it must not block.

        Returns a function that ends the subscription.
        """
        callbacks = self._callbacks.setdefault(change, [])
        callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        return unsubscribe

    @contextmanager
    def watch(self, change: type[C]) -> Iterator[asyncio.Event]:
        """Yield an event that every change of this type sets. Clear it before reading the store."""
        changed = asyncio.Event()
        unsubscribe = self.subscribe(change, lambda _: changed.set())
        try:
            yield changed
        finally:
            unsubscribe()

    def publish(self, changes: Iterable[Change]) -> None:
        """Call the subscribers of each change in turn. One that raises does not stop the others."""
        for change in changes:
            for callback in tuple(self._callbacks.get(type(change), ())):
                try:
                    callback(change)
                except Exception as error:  # noqa: BLE001 - an error in one subscriber must not reach the others
                    context = {"message": "notification callback raised", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
