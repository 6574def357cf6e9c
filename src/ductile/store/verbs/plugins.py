"""State, facts, circuit breakers and init results of plugins."""

from __future__ import annotations

from datetime import timedelta

from ductile.core.jobs.failures import Breaker, BreakerReason, BreakerState
from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerKind, NewJob, SubmittedBy
from ductile.core.jobs.settlement import Settlement, SettleView
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.jobs import InitKey, InitRecord, InitResult, InitStatus
from ductile.store.model.records import BreakerRow, BreakerTransitionRow, FactRow, Page, PluginState
from ductile.store.rows import from_json, read_breaker, read_page, row_reader, timestamp_or_none, to_json
from ductile.store.session import Session
from ductile.store.verbs.jobs.insert import is_live, submit_job
from ductile.store.verbs.ledger import append_ledger, has_occurrence, write_occurrence
from ductile.struct import asdict, replace

#: An init that crashes interrupted is begun at most this often.
MAX_INIT_TRIES = 3
#: Reasons of an end that is not the plugin's: the init is begun again.
_INCONCLUSIVE = frozenset(
    {
        JobReason.ORPHANED,
        JobReason.CANCELLED,
        JobReason.PURGED,
        JobReason.PLUGIN_REMOVED,
        JobReason.NO_NODE,
    }
)


def write_plugin_effects(session: Session, job: Job, view: SettleView, settlement: Settlement) -> None:
    """Write the consequences of a job's end for its plugin: fact, state, schedule and breaker."""
    if settlement.fact is not None:
        session.execute(
            "insert_fact",
            plugin=job.plugin,
            fact_type=settlement.fact.fact_type,
            job_id=job.id,
            execution=job.execution,
            command=job.command,
            body=to_json(settlement.fact.body),
            at=session.timestamp,
        )
    if settlement.state is not None:
        session.execute(
            "write_state",
            plugin=job.plugin,
            state=to_json(settlement.state),
            claim_seq=job.claim_seq,
            at=session.timestamp,
        )
    for skip in settlement.skipped:
        occurrence = Occurrence(
            plugin=job.plugin,
            schedule_id=str(view.schedule_id),
            outcome=OccurrenceOutcome.SKIPPED,
            **asdict(skip),
        )
        if not has_occurrence(session, occurrence):  # an instant comes again after the clock was set back
            write_occurrence(session, occurrence)
    if settlement.next_occurrence is not None:
        session.execute(
            "set_next_occurrence",
            plugin=job.plugin,
            schedule_id=view.schedule_id,
            next_at=format_timestamp(settlement.next_occurrence.start_at),
            nominal_at=format_timestamp(settlement.next_occurrence.nominal_at),
            at=session.timestamp,
        )
    if settlement.breaker is not None:
        before, after = view.breaker or Breaker(), settlement.breaker
        _write_breaker(session, job.plugin, job.command, before, after, settlement.breaker_reason, job.id)


# -- circuit breakers


def _write_breaker(
    session: Session,
    plugin: str,
    command: str,
    before: Breaker,
    after: Breaker,
    reason: BreakerReason | None,
    job_id: str | None,
) -> None:
    """Write the row. With a reason, the change of state is recorded too."""
    key = {"plugin": plugin, "command": command, "at": session.timestamp}
    row = asdict(after) | {
        "opened_at": timestamp_or_none(after.opened_at),
        "last_failure_at": timestamp_or_none(after.last_failure_at),
    }
    session.execute("write_breaker", **key, **row)
    if reason is None:
        return
    session.execute(
        "insert_breaker_transition",
        **key,
        from_state=before.state,
        to_state=after.state,
        failures=after.failures,
        reason=reason,
        job_id=job_id,
    )
    data = {"plugin": plugin, "command": command, "from": before.state, "to": after.state, "reason": reason}
    append_ledger(session, LedgerKind.BREAKER_CHANGED, data, job_id=job_id)


def reset_breaker(session: Session, plugin: str, command: str | None = None) -> int:
    """Close the plugin's breakers, or that of one command. Returns how many were not closed."""
    reset = 0
    for row in session.fetch_all("all_breakers"):
        before = read_breaker(row[2:8])
        if row[0] != plugin or command not in (None, row[1]):
            continue
        was_closed = before.state is BreakerState.CLOSED
        if was_closed and before.failures == 0:
            continue
        reason = None if was_closed else BreakerReason.MANUAL_RESET
        _write_breaker(session, plugin, row[1], before, Breaker(), reason, None)
        reset += not was_closed
    return reset


def begin_probe(session: Session, plugin: str, command: str, job_id: str) -> None:
    """Make an open breaker half open, with this job as its probe.

    A breaker in another state stays as it is.
    """
    row = session.fetch_one("breaker", plugin=plugin, command=command)
    before = Breaker() if row is None else read_breaker(row)
    if before.state is BreakerState.OPEN:
        after = replace(before, state=BreakerState.HALF_OPEN, probe_job_id=job_id)
        _write_breaker(session, plugin, command, before, after, BreakerReason.COOLDOWN_ELAPSED, job_id)


# -- init: once for each version of a plugin and its configuration


def begin_init(session: Session, key: InitKey, job: NewJob) -> InitResult:
    """Enqueue `job` if this version was never initialised. Otherwise return the earlier result."""
    row = session.fetch_one("init_record", **asdict(key))
    status, tries, job_id, error = row or (InitStatus.PENDING, 0, None, None)
    if status != InitStatus.PENDING:
        return InitResult(status=InitStatus(status), job_id=job_id, error=error)
    if is_live(session, job_id):
        return InitResult(status=InitStatus.PENDING, job_id=job_id)
    if tries >= MAX_INIT_TRIES:
        result = InitResult(
            status=InitStatus.FAILED, job_id=job_id, error=f"init did not come to an end in {tries} tries"
        )
    else:
        submit_job(session, job, timedelta(0))
        result, tries = InitResult(status=InitStatus.PENDING, job_id=job.id), tries + 1
    session.execute("put_init", **asdict(key), **asdict(result), tries=tries, at=session.timestamp)
    return result


def record_init(session: Session, job: Job, settlement: Settlement) -> None:
    """Record the result of an init in the transaction that ends it. Other jobs are ignored."""
    if job.command != "init" or job.submitted_by is not SubmittedBy.CORE or not settlement.is_terminal:
        return
    succeeded = settlement.status is JobStatus.SUCCEEDED
    if succeeded or settlement.transitions[0].reason not in _INCONCLUSIVE:
        status = InitStatus.SUCCEEDED if succeeded else InitStatus.FAILED
        error = None if succeeded else settlement.last_error
        session.execute("finish_init", job_id=job.id, status=status, error=error, at=session.timestamp)


def list_inits(session: Session) -> tuple[InitRecord, ...]:
    """Return every init, for each version of a plugin and its configuration."""
    return tuple(_read_init((_read_init_key(row[:3]), *row[3:])) for row in session.fetch_all("inits"))


# -- reading

_read_init_key = row_reader(InitKey)
_read_init = row_reader(InitRecord, status=InitStatus, updated_at=parse_timestamp)
_read_fact = row_reader(FactRow, body=from_json, created_at=parse_timestamp)
_read_breaker_transition = row_reader(BreakerTransitionRow, created_at=parse_timestamp)


def plugin_state(session: Session, plugin: str) -> PluginState | None:
    row = session.fetch_one("plugin_state", plugin=plugin)
    if row is None:
        return None
    return PluginState(plugin=plugin, state=from_json(row[0]), updated_at=parse_timestamp(row[2]))


def list_facts(session: Session, plugin: str, *, limit: int, cursor: str | None = None) -> Page[FactRow]:
    """Return the plugin's facts, newest first."""
    return read_page(session, "facts_of_plugin", {"plugin": plugin}, _read_fact, limit=limit, cursor=cursor)


def list_breakers(session: Session) -> tuple[BreakerRow, ...]:
    return tuple(
        BreakerRow(
            plugin=row[0], command=row[1], breaker=read_breaker(row[2:8]), updated_at=parse_timestamp(row[8])
        )
        for row in session.fetch_all("all_breakers")
    )


def breaker_history(session: Session, plugin: str, *, limit: int) -> tuple[BreakerTransitionRow, ...]:
    """Return the changes of the plugin's breakers, newest first."""
    rows = session.fetch_all("breaker_history", plugin=plugin, limit=limit)
    return tuple(map(_read_breaker_transition, rows))
