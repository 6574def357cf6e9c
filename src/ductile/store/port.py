"""The store's port: every verb is one transaction, and is durable when it returns.

What each verb means is written down as tests in `tests/contract/store`. Verbs take and give values;
they raise only `ductile.errors.StoreError`s, and `RefusedError` for what no store can hold. A write that
raised has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from ductile.core.admission import Caps
from ductile.core.jobs import Job, NewJob, Reason
from ductile.core.json_values import JsonObject
from ductile.core.outcomes import Outcome
from ductile.core.rules import Rules
from ductile.store.values import (
    BreakerRow,
    BreakerTransitionRow,
    CancelAnswer,
    Claim,
    ConfigOrigin,
    ConfigRecord,
    Delivery,
    DeliveryReport,
    DeliveryStatus,
    Enqueued,
    FactRow,
    Firing,
    FiringAnswer,
    InitAnswer,
    InitKey,
    JobFilter,
    LedgerRow,
    LogFilter,
    LogRow,
    Moved,
    NewContext,
    Occurrence,
    Page,
    PluginState,
    Pruned,
    QueueCounts,
    Released,
    Retention,
    RetryAnswer,
    ScheduleEntry,
    SettleAnswer,
    StoredEvent,
    Submission,
    TransitionRow,
)


class Store(Protocol):
    """Everything durable. Reads see every write that has returned."""

    @property
    def store_id(self) -> str:
        """Tells this store from every other; survivors of a crash are recognised by it."""
        ...

    async def close(self) -> None:
        """Commit what waits, then let go of every connection."""
        ...

    # -- jobs

    async def enqueue(self, submission: Submission) -> tuple[Enqueued, ...]:
        """Put jobs on the queue, all or none; an answer for each, in order (SPEC 4.5)."""
        ...

    async def claim(self, *, owner: str, caps: Caps, limit: int, lease: timedelta) -> tuple[Claim, ...]:
        """Take up to `limit` jobs to run: oldest first, none above a cap, no key twice (SPEC 4.4)."""
        ...

    async def claim_these(self, job_ids: Sequence[str], *, owner: str, lease: timedelta) -> tuple[Claim, ...]:
        """Take those of these jobs that are ready, whatever the caps: init, and runs without a daemon."""
        ...

    async def note_working(self, job_id: str, execution: int) -> None:
        """Record that the plugin has its request, for jobs whose state is pushed to a caller."""
        ...

    async def settle(self, job_id: str, execution: int, outcome: Outcome, rules: Rules) -> SettleAnswer:
        """End an execution and apply all that follows, or nothing (ENGINE 1)."""
        ...

    async def cancel(self, job_id: str, rules: Rules) -> CancelAnswer:
        """End a queued job; ask for a running one to be ended (ENGINE 3)."""
        ...

    async def retry(self, job_id: str) -> RetryAnswer:
        """Put a failed or dead job back on the queue with fresh attempts."""
        ...

    async def release_due(self) -> Released:
        """Let jobs whose retry time has come move on; at most one sweep's worth."""
        ...

    async def clamp_waits(self) -> int:
        """After the clock was set back: let no job wait longer than it was told to; one sweep's worth."""
        ...

    async def recover(self, rules: Rules) -> Moved:
        """Put jobs that were running when their daemon died back on the queue; one sweep's worth."""
        ...

    async def end_queued(
        self, reason: Reason, rules: Rules, *, plugins: Sequence[str] | None = None, keep: bool = False
    ) -> Moved:
        """End queued jobs of these plugins (or, with `keep`, of all but these); one sweep's worth."""
        ...

    async def begin_init(self, key: InitKey, job: NewJob) -> InitAnswer:
        """Enqueue `job` if this version of the plugin was never initialised; else what came of it."""
        ...

    # -- reading jobs

    async def job(self, job_id: str) -> Job | None:
        """The job, with its payload; from the log when retention has taken its row."""
        ...

    async def jobs(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page[Job]:
        """Newest first, without payloads."""
        ...

    async def tree(self, job_id: str) -> tuple[Job, ...]:
        """The job and all its descendants, oldest first."""
        ...

    async def transitions(self, job_id: str) -> tuple[TransitionRow, ...]: ...

    async def executions(self, job_id: str) -> tuple[LogRow, ...]:
        """Every execution of a job with its output, oldest first."""
        ...

    async def log(self, where: LogFilter, *, limit: int, cursor: str | None = None) -> Page[LogRow]:
        """Executions of all jobs, newest first, without their output."""
        ...

    async def event(self, event_id: str) -> StoredEvent | None: ...

    async def context(self, context_id: str) -> NewContext | None: ...

    async def counts(self) -> QueueCounts: ...

    async def outstanding(self, plugin: str, command: str) -> int:
        """How many jobs of this command are queued or running, whoever submitted them (SPEC 5.6)."""
        ...

    # -- plugins

    async def plugin_state(self, plugin: str) -> PluginState | None: ...

    async def facts(self, plugin: str, *, limit: int, cursor: str | None = None) -> Page[FactRow]:
        """Newest first."""
        ...

    async def breakers(self) -> tuple[BreakerRow, ...]: ...

    async def breaker_history(self, plugin: str, *, limit: int) -> tuple[BreakerTransitionRow, ...]:
        """Newest first."""
        ...

    async def reset_breaker(self, plugin: str, command: str | None = None) -> int:
        """Close the plugin's breakers; how many were not closed."""
        ...

    # -- schedules

    async def put_schedules(self, entries: Sequence[ScheduleEntry]) -> None:
        """Make these the schedules there are. One that is known with the same definition keeps its place."""
        ...

    async def schedules(self) -> tuple[ScheduleEntry, ...]: ...

    async def fire(self, firing: Firing) -> FiringAnswer:
        """Account for a due schedule: occurrences, job and next instant together (ENGINE 8)."""
        ...

    async def pause_schedule(self, plugin: str, schedule_id: str, *, paused: bool) -> bool:
        """Pause or resume; False if there is no such schedule."""
        ...

    async def occurrences(
        self, plugin: str, schedule_id: str, *, limit: int, cursor: str | None = None
    ) -> Page[Occurrence]:
        """Newest first."""
        ...

    # -- deliveries

    async def take_deliveries(self, *, limit: int, retry_at: datetime) -> tuple[Delivery, ...]:
        """Due deliveries, each counted as attempted and due again at `retry_at` should we die now."""
        ...

    async def report_delivery(self, report: DeliveryReport) -> None: ...

    async def resend(self, delivery_id: str) -> bool:
        """Make a completed delivery due again; False if there is none."""
        ...

    async def deliveries(
        self,
        *,
        job_id: str | None = None,
        status: DeliveryStatus | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page[Delivery]: ...

    # -- ledger, configuration, upkeep

    async def ledger(self, *, after: int, limit: int) -> tuple[LedgerRow, ...]:
        """Entries with a larger number than `after`, in order."""
        ...

    async def ledger_range(self) -> tuple[int, int]:
        """The lowest and the highest number held; (0, 0) if there is none."""
        ...

    async def record_config(self, config_hash: str, origin: ConfigOrigin, content: JsonObject) -> None: ...

    async def config_history(self, *, limit: int) -> tuple[ConfigRecord, ...]:
        """Newest first."""
        ...

    async def make_searchable(self) -> int:
        """Index executions that cannot be found by their text yet; how many, at most one sweep's worth."""
        ...

    async def prune(self, retention: Retention) -> Pruned:
        """Remove what has been kept long enough; one sweep's worth of each kind (SPEC 4.9)."""
        ...
