"""The store's port: every verb is one transaction, and is durable when it returns.

What each verb means is written down as tests in `tests/contract/store`. Verbs take and give values;
they raise only `ductile.errors.StoreError`s, and `RefusedError` for what no store can hold. A write that
raised has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from ductile.core.events.model import NewContext
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Job, JobReason, NewJob
from ductile.core.jobs.outcomes import Outcome
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.runs.graph import Graph
from ductile.core.runs.state import NewRun
from ductile.errors import StoreFailedError
from ductile.store.invariants import Invariant
from ductile.store.model.deliveries import (
    Delivery,
    DeliveryCapacity,
    DeliveryReport,
    DeliveryStatus,
    TakenDeliveries,
)
from ductile.store.model.jobs import (
    CancelResult,
    ClaimedJob,
    InitKey,
    InitRecord,
    InitResult,
    NewInit,
    OverdueRuns,
    ReleaseResult,
    RetryResult,
    SettleResult,
    StoredEvent,
    SweepResult,
)
from ductile.store.model.maintenance import (
    ConfigOrigin,
    ConfigRecord,
    PluginVersion,
    PluginWork,
    PruneResult,
    RecentFailures,
    Retention,
    StoreStats,
)
from ductile.store.model.records import (
    BreakerRow,
    BreakerTransitionRow,
    ExecutionStats,
    FactRow,
    JobDetails,
    JobFilter,
    LedgerRow,
    LogFilter,
    LogRow,
    Page,
    PluginDepth,
    PluginState,
    QueueCounts,
    RunRecord,
    TransitionRow,
)
from ductile.store.model.schedules import FireResult, Firing, Occurrence, ScheduleEntry
from ductile.store.model.submission import EnqueueResult, Submission


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

    def enqueue(
        self, submission: Submission, told: Callable[[tuple[EnqueueResult, ...]], None] | None = None
    ) -> Awaitable[tuple[EnqueueResult, ...]]:
        """Put jobs on the queue, all or none; an answer for each, in order.

        They are written whether or not anybody waits for it. `told` is given the answers when they are on
        disk, before whoever waits goes on, and also if nobody waits any more.
        """
        ...

    def claim(
        self,
        *,
        owner: str,
        caps: Caps,
        limit: int,
        lease: timedelta,
        told: Callable[[tuple[ClaimedJob, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[ClaimedJob, ...]]:
        """Take up to `limit` jobs to run: oldest first, none above a cap, no key twice.

        It is asked for by the call, and not only when somebody waits for the answer. `told` is given the
        answer as with `enqueue`.
        """
        ...

    def claim_by_id(
        self,
        job_ids: Sequence[str],
        *,
        owner: str,
        lease: timedelta,
        told: Callable[[tuple[ClaimedJob, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[ClaimedJob, ...]]:
        """Take those of these jobs that are ready, whatever the caps: init, and runs without a daemon."""
        ...

    def enqueue_and_claim(
        self,
        job: NewJob,
        *,
        owner: str,
        lease: timedelta,
        limit: int | None,
        told: Callable[[tuple[ClaimedJob, ...]], None] | None = None,
    ) -> asyncio.Future[tuple[ClaimedJob, ...]]:
        """Submit a job and claim it in the same step, whatever waits in the queue.

        Nothing is submitted if `limit` jobs of its plugin run already.
        """
        ...

    def mark_working(self, job_id: str, execution: int) -> Awaitable[None]:
        """Record that the plugin has its request, for jobs whose state is pushed to a caller.

        It comes before whatever is settled by a later call, whoever waits for it and when.
        """
        ...

    async def settle(self, claimed: Job, outcome: Outcome, rules: Policy) -> SettleResult:
        """End an execution and apply all that follows, or nothing.

        `claimed` is the job as it was claimed for this execution; it may have been cancelled, given up or
        claimed again since. Once called, it is done even if the caller goes away.
        """
        ...

    async def cancel(self, job_id: str, rules: Policy) -> CancelResult:
        """End a queued job; ask for a running one to be ended. A run: with all of its steps."""
        ...

    async def cancel_overdue(self, rules: Policy) -> OverdueRuns:
        """Cancel the runs whose deadline has passed; one sweep's worth."""
        ...

    async def retry(self, job_id: str, rules: Policy, *, ended_at: datetime | None = None) -> RetryResult:
        """Put a failed or dead job back on the queue with fresh attempts; a run: what failed in it.

        With `ended_at` only if the job ended then: a cancel that came after the caller looked is kept.
        Retries and cancels are carried out in the order of the calls.
        """
        ...

    async def check_retry(self, job_id: str) -> RetryResult:
        """What `retry` would answer now; nothing is changed."""
        ...

    async def rerun(
        self, run_id: str, step_path: str, run: NewRun, rules: Policy
    ) -> EnqueueResult | RetryResult:
        """Begin a new run at a step of one that failed, with what that step was given."""
        ...

    async def check_rerun(self, run_id: str, step_path: str, graph: Graph) -> RetryResult:
        """What `rerun` by this graph would be refused for now, or `QUEUED`; nothing is changed."""
        ...

    async def release_due(self) -> ReleaseResult:
        """Let jobs whose retry time has come move on; at most one sweep's worth."""
        ...

    async def clamp_waits(self) -> int:
        """After the clock was set back: let no job wait longer than it was told to; one sweep's worth."""
        ...

    async def recover(self, rules: Policy) -> SweepResult:
        """Put jobs that were running when their daemon died back on the queue; one sweep's worth."""
        ...

    async def end_queued(
        self, reason: JobReason, rules: Policy, *, plugins: Sequence[str] | None = None, keep: bool = False
    ) -> SweepResult:
        """End queued jobs of these plugins (or, with `keep`, of all but these); one sweep's worth."""
        ...

    async def begin_init(self, key: InitKey, job: NewJob) -> InitResult:
        """Enqueue `job` if this version of the plugin was never initialised; else what came of it."""
        ...

    async def inits(self) -> tuple[InitRecord, ...]:
        """What came of every init, for each version of a plugin and its configuration."""
        ...

    # -- reading jobs

    async def job(self, job_id: str) -> Job | None:
        """The job, with its payload; from the log when retention has taken its row."""
        ...

    async def latest_with_key(self, plugin: str, command: str, dedupe_key: str) -> Job | None:
        """The newest job in the queue with this key, whatever became of it; with its payload."""
        ...

    async def blocking_job(self, job_id: str) -> Job | None:
        """The job that a held one waits for: the holder of its key, its predecessor, or another suspect."""
        ...

    async def jobs(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page[Job]:
        """Newest first, without payloads."""
        ...

    async def job_ids(self, beginning: str, *, limit: int) -> tuple[str, ...]:
        """Ids of jobs that begin so, in order, of those in the log too."""
        ...

    async def job_ids_ending(self, ending: str, *, limit: int) -> tuple[str, ...]:
        """Ids of jobs that end so, in order, of those in the log too; slower than by their beginning."""
        ...

    async def tree(self, job_id: str, *, limit: int) -> tuple[Job, ...]:
        """The job and its descendants, oldest first: at most so many, and none without what led to it."""
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

    async def run(self, run_id: str) -> RunRecord | None:
        """A pipeline run with its steps and what they answered; None if the job is no run."""
        ...

    async def account(self, job_id: str) -> JobDetails | None:
        """What came of a job, or of a run and its steps; without what it was given."""
        ...

    async def counts(self) -> QueueCounts: ...

    async def queue_depths(self) -> tuple[PluginDepth, ...]:
        """The queue plugin by plugin, of those that have something in it."""
        ...

    async def execution_stats(self, *, since: datetime, latest: int) -> tuple[ExecutionStats, ...]:
        """How executions ended since an instant, among so many of the latest."""
        ...

    async def pending_work(
        self, plugins: Sequence[str], *, after_writes: bool = False
    ) -> tuple[PluginWork, ...]:
        """What is queued, running or still to come for these plugins, of those that have something.

        With `after_writes` the answer includes every write that was asked for before this call.
        """
        ...

    async def outstanding(self, plugin: str, command: str) -> int:
        """How many jobs of this command are queued or running, whoever submitted them."""
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

    async def fire(self, firing: Firing) -> FireResult:
        """Account for a due schedule: occurrences, job and next instant together."""
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

    def watch_outbox(self, grew: Callable[[], None]) -> None:
        """Call `grew`, on the event loop of this call, after each commit that made a delivery due."""
        ...

    async def take_deliveries(self, room: DeliveryCapacity, *, retry_at: datetime) -> TakenDeliveries:
        """Due deliveries, each counted as attempted and due again at `retry_at` should we die now.

        No receiver is given more room than its own, and none waits for another; whoever has nothing under
        way comes first. The first attempts for
        one job are given in order, the next when the one before was reported.
        """
        ...

    async def report_delivery(self, report: DeliveryReport) -> None: ...

    async def resend(self, delivery_id: str) -> bool:
        """Make a completed delivery due again, with fresh attempts; False if there is none."""
        ...

    async def delivery(self, delivery_id: str) -> Delivery | None: ...

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

    async def record_config(
        self,
        config_hash: str,
        origin: ConfigOrigin,
        content: JsonObject,
        inits: Sequence[NewInit] = (),
        plugins: Mapping[str, PluginVersion] | None = None,
    ) -> tuple[InitResult, ...]:
        """Record a configuration and begin the inits that come with it, all or none; their answers."""
        ...

    async def config_history(self, *, limit: int) -> tuple[ConfigRecord, ...]:
        """Newest first."""
        ...

    async def index_log(self) -> int:
        """Index executions that cannot be found by their text yet; how many, at most one sweep's worth."""
        ...

    async def prune(self, retention: Retention) -> PruneResult:
        """Remove what has been kept long enough; one sweep's worth of each kind."""
        ...

    async def count_prunable(self, retention: Retention) -> Mapping[str, int]:
        """How many rows of each kind have been kept long enough."""
        ...

    # -- looking at the store itself

    async def check_files(self) -> None:
        """Raise `StoreFailedError` if the store has stopped, or its files were removed or replaced.

        After that nothing more is written.
        """
        ...

    async def is_full(self) -> bool:
        """Whether the last submission was refused because the disk is full.

        Something is written to see whether there is room again: while nobody submits, nothing else would.
        """
        ...

    def watch_failure(self, failed: Callable[[StoreFailedError], None]) -> None:
        """Call `failed`, on the event loop of this call, once the store has stopped writing for good."""
        ...

    async def violations(self, invariant: Invariant, *, limit: int) -> tuple[str, ...]:
        """The ids of rows that break an invariant; none in a sound store."""
        ...

    async def stats(self) -> StoreStats:
        """The store as a thing on a disk, looked through for damage."""
        ...

    async def recent_failures(self, *, since: datetime) -> RecentFailures:
        """What has gone wrong since an instant."""
        ...
