"""The store's port: every verb is one transaction, and is durable when it returns.

A verb is a plain function over a `Session` in `ductile.store.verbs`; its signature and docstring are the
port's. `Store` binds each verb to the kind of transaction that it needs. An adapter implements `run_read`,
`run_write` and the methods that concern its own files or connections; it forwards no verb. The contract
suite in `tests/contract/store` defines what the verbs mean on every database.

Verbs take and return values. They raise `ductile.errors.StoreError`s, and `RefusedError` for values that no
store can hold. A write that raised has changed nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from enum import IntEnum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Job, Outcome
from ductile.core.policy import Policy
from ductile.errors import ContendedError
from ductile.store.cluster import Cluster
from ductile.store.model.maintenance import StoreStats
from ductile.store.notifier import Notifier
from ductile.store.session import Session
from ductile.store.verbs import ledger as ledger_verbs
from ductile.store.verbs import maintenance as maintenance_verbs
from ductile.store.verbs import notices as notice_verbs
from ductile.store.verbs import outbox as outbox_verbs
from ductile.store.verbs import plugins as plugin_verbs
from ductile.store.verbs import schedules as schedule_verbs
from ductile.store.verbs import statistics as statistics_verbs
from ductile.store.verbs import token_usage as token_verbs
from ductile.store.verbs.jobs import cancel as cancel_verbs
from ductile.store.verbs.jobs import insert as insert_verbs
from ductile.store.verbs.jobs import placement as placement_verbs
from ductile.store.verbs.jobs import queue as queue_verbs
from ductile.store.verbs.jobs import read as job_verbs
from ductile.store.verbs.jobs import retry as retry_verbs
from ductile.store.verbs.jobs import settle as settle_verbs
from ductile.struct import Value

P = ParamSpec("P")
R = TypeVar("R")

#: How often a verb is tried that loses races against other transactions. SQLite has one writer, so there are
#: no races.
MAX_TRIES = 5


class Priority(IntEnum):
    """The order in which waiting writes are taken for a batch, lowest first.

    Settling frees a worker, so it goes before submissions. Claims run after the submissions of their batch,
    whose jobs they may take.
    """

    SETTLE = 0
    CLAIM = 1
    CONFIGURE = 2
    ENQUEUE = 3
    MAINTENANCE = 4


class SettledJob(Value):
    """The job that a write settles: its row can be read together with those of other jobs."""

    seq: int


class ClaimCall(Value):
    """The arguments of a claim. Claims that are equal except for `limit` run as one."""

    owner: str
    caps: Caps
    limit: int
    lease: timedelta


#: A description of a write, by which several writes share work.
WriteHint: TypeAlias = SettledJob | ClaimCall | None


def _read(
    verb: Callable[Concatenate[Session, P], R],
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, R]]:
    """Bind a verb that only reads. It sees one snapshot, with every write that has returned."""

    @wraps(verb)
    async def call(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await store.run_read(lambda session: verb(session, *args, **kwargs))

    return call


def _write(
    priority: Priority,
    verb: Callable[Concatenate[Session, P], R],
    *,
    hint: Callable[P, WriteHint] = lambda *_args, **_kwargs: None,
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, R]]:
    """Bind a verb that writes. The call hands it to the writer before it suspends for the first time.

    From then on the verb is carried out, and its changes are published, also if the caller is cancelled. A
    verb that lost a race is run again, and raises `ContendedError` when it has lost `MAX_TRIES` of them.
    `hint` returns the `WriteHint` for the arguments of a call.
    """

    @wraps(verb)
    async def call(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def work(session: Session) -> R:
            return verb(session, *args, **kwargs)

        tries = 1
        while True:
            try:
                return await store.run_write(priority, work, hint(*args, **kwargs))
            except ContendedError:
                if tries == MAX_TRIES:
                    raise
                tries += 1

    return call


def _settled_job(claimed: Job, _outcome: Outcome, _policy: Policy) -> SettledJob:
    return SettledJob(seq=claimed.seq)


class Store(ABC):
    """Everything durable. `notifier` publishes the changes of each commit before the verb returns."""

    def __init__(self, store_id: str) -> None:
        #: Differs for every store. Orphan processes of a crashed daemon are recognised by it.
        self.store_id = store_id
        self.notifier = Notifier()
        #: The nodes that share this store; None if it is for one daemon only.
        self.cluster: Cluster | None = None

    # -- for an adapter to implement

    @abstractmethod
    def run_read(self, work: Callable[[Session], R]) -> Awaitable[R]:
        """Run `work` in a transaction that reads."""

    @abstractmethod
    def run_write(
        self, priority: Priority, work: Callable[[Session], R], hint: WriteHint = None
    ) -> Awaitable[R]:
        """Run `work` in a transaction that writes. `work` may run several times, and is committed once.

        `hint` describes `work`, so that the adapter can combine it with other requests.
        """

    @abstractmethod
    async def close(self) -> None:
        """Commit the waiting writes, then close every connection."""

    @abstractmethod
    async def check_files(self) -> None:
        """Raise `StoreFailedError` if the store has stopped, or its files were removed or replaced.

        After that nothing more is written.
        """

    @abstractmethod
    async def is_full(self) -> bool:
        """Return whether the last submission was refused because the disk is full.

        Writes a test row if so: an idle store would not notice by itself that there is room again.
        """

    @abstractmethod
    async def stats(self) -> StoreStats:
        """Return size, schema and damage of the store's files."""

    # -- the queue

    enqueue = _write(Priority.ENQUEUE, queue_verbs.enqueue)
    claim = _write(Priority.CLAIM, queue_verbs.claim, hint=ClaimCall)
    claim_by_id = _write(Priority.CLAIM, queue_verbs.claim_by_id)
    #: Not ENQUEUE: a job that bypasses the queue (a health check) does not wait behind many submissions.
    enqueue_and_claim = _write(Priority.SETTLE, queue_verbs.enqueue_and_claim)
    #: The priority of `settle`: the end of a quick job must not overtake the report that it works.
    mark_working = _write(Priority.SETTLE, queue_verbs.mark_working)
    settle = _write(Priority.SETTLE, settle_verbs.settle_execution, hint=_settled_job)
    cancel = _write(Priority.SETTLE, cancel_verbs.cancel)
    cancel_overdue = _write(Priority.SETTLE, cancel_verbs.cancel_overdue)
    #: The priority of `cancel`: cancels and retries of a job are carried out in the order of the calls.
    retry = _write(Priority.SETTLE, retry_verbs.retry)
    check_retry = _read(retry_verbs.check_retry)
    rerun = _write(Priority.ENQUEUE, retry_verbs.rerun)
    check_rerun = _read(retry_verbs.check_rerun)
    find_duplicates = _read(insert_verbs.find_duplicates)
    release_due = _write(Priority.CLAIM, insert_verbs.release_due)
    shorten_waits = _write(Priority.CLAIM, insert_verbs.shorten_waits)
    recover = _write(Priority.SETTLE, cancel_verbs.recover)
    jobs_without_node = _read(placement_verbs.jobs_without_node)
    place_jobs = _write(Priority.CLAIM, placement_verbs.place_jobs)
    end_queued = _write(Priority.MAINTENANCE, cancel_verbs.end_queued)
    begin_init = _write(Priority.ENQUEUE, plugin_verbs.begin_init)
    list_inits = _read(plugin_verbs.list_inits)

    # -- jobs and runs

    get_job = _read(job_verbs.get_job)
    list_jobs = _read(job_verbs.list_jobs)
    count_jobs = _read(job_verbs.count_jobs)
    short_payloads = _read(job_verbs.short_payloads)
    latest_with_key = _read(job_verbs.latest_with_key)
    blocking_job = _read(job_verbs.blocking_job)
    job_ids = _read(job_verbs.job_ids)
    job_ids_ending = _read(job_verbs.job_ids_ending)
    job_tree = _read(job_verbs.job_tree)
    list_transitions = _read(ledger_verbs.list_transitions)
    list_job_ledger = _read(ledger_verbs.list_job_ledger)
    list_executions = _read(job_verbs.list_executions)
    list_log = _read(job_verbs.list_log)
    get_event = _read(job_verbs.get_event)
    get_event_context = _read(job_verbs.get_event_context)
    get_run = _read(job_verbs.get_run)
    job_details = _read(job_verbs.job_details)
    queue_counts = _read(statistics_verbs.queue_counts)
    queue_depths = _read(statistics_verbs.queue_depths)
    execution_statistics = _read(statistics_verbs.execution_statistics)
    sample_executions = _read(statistics_verbs.sample_executions)
    #: A barrier: as a write of the lowest priority it sees every write that was requested before it.
    pending_work_behind_queued_writes = _write(Priority.MAINTENANCE, job_verbs.pending_work)
    pending_work = _read(job_verbs.pending_work)
    count_outstanding = _read(statistics_verbs.count_outstanding)

    # -- access tokens

    token_usage = _read(token_verbs.read_token_usage)

    # -- plugins

    plugin_state = _read(plugin_verbs.plugin_state)
    list_facts = _read(plugin_verbs.list_facts)
    list_breakers = _read(plugin_verbs.list_breakers)
    breaker_history = _read(plugin_verbs.breaker_history)
    reset_breaker = _write(Priority.SETTLE, plugin_verbs.reset_breaker)

    # -- schedules

    put_schedules = _write(Priority.ENQUEUE, schedule_verbs.put_schedules)
    list_schedules = _read(schedule_verbs.list_schedules)
    fire = _write(Priority.ENQUEUE, schedule_verbs.fire)
    pause_schedule = _write(Priority.ENQUEUE, schedule_verbs.pause_schedule)
    list_occurrences = _read(schedule_verbs.list_occurrences)

    # -- state webhooks

    claim_deliveries = _write(Priority.CLAIM, outbox_verbs.claim_deliveries)
    report_delivery = _write(Priority.SETTLE, outbox_verbs.report_delivery)
    resend = _write(Priority.ENQUEUE, outbox_verbs.resend)
    get_delivery = _read(outbox_verbs.get_delivery)
    list_deliveries = _read(outbox_verbs.list_deliveries)
    count_deliveries = _read(outbox_verbs.count_deliveries)
    lost_deliveries = _read(outbox_verbs.lost_deliveries)

    # -- failure notices

    send_failure_notice = _write(Priority.CLAIM, notice_verbs.send_failure_notice)
    notice_health = _read(notice_verbs.notice_health)

    # -- ledger, configurations, maintenance

    list_ledger = _read(ledger_verbs.list_ledger)
    ledger_range = _read(ledger_verbs.ledger_range)
    record_config = _write(Priority.CONFIGURE, maintenance_verbs.record_config)
    config_history = _read(maintenance_verbs.config_history)
    end_session = _write(Priority.CONFIGURE, maintenance_verbs.end_session)
    ended_sessions = _read(maintenance_verbs.ended_sessions)
    index_log = _write(Priority.MAINTENANCE, maintenance_verbs.index_log)
    prune = _write(Priority.MAINTENANCE, maintenance_verbs.prune)
    count_prunable = _read(maintenance_verbs.count_prunable)
    find_violations = _read(maintenance_verbs.find_violations)
    recent_failures = _read(statistics_verbs.recent_failures)
    read_digest = _read(statistics_verbs.read_digest)
