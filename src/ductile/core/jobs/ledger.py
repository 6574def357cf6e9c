"""The ledger's vocabulary: every kind of entry there is, and what it tells."""

from __future__ import annotations

from enum import StrEnum

from ductile.core.json import JsonObject
from ductile.struct import Value, field


class LedgerKind(StrEnum):
    JOB_TRANSITION = "job.transition"
    JOB_DEDUPLICATED = "job.deduplicated"
    JOB_CANCEL_REQUESTED = "job.cancel_requested"
    JOB_RESULT_SUPERSEDED = "job.result_superseded"
    CHILD_CONFLICT = "job.child_conflict"
    EVENT_DROPPED = "event.dropped"
    SWITCH = "core.switch"
    RUN_STALLED = "run.stalled"
    STATE_STALE = "state.stale"
    BREAKER_CHANGED = "breaker.changed"
    SCHEDULE_FIRED = "schedule.fired"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_DEFERRED = "schedule.deferred"
    SCHEDULE_PAUSED = "schedule.paused"
    SCHEDULE_RESUMED = "schedule.resumed"
    CONFIG_LOADED = "config.loaded"
    DELIVERY_DELIVERED = "delivery.delivered"
    DELIVERY_DROPPED = "delivery.dropped"
    DELIVERY_GONE = "delivery.gone"


LEDGER_KINDS: dict[LedgerKind, str] = {
    LedgerKind.JOB_TRANSITION: "A job went from one state to another.",
    LedgerKind.JOB_DEDUPLICATED: "A submission was a duplicate; the existing job is named.",
    LedgerKind.JOB_CANCEL_REQUESTED: "Cancellation of a running job was requested.",
    LedgerKind.JOB_RESULT_SUPERSEDED: "A result came after its job had moved on; only the log keeps it.",
    LedgerKind.CHILD_CONFLICT: "A child job existed already: a defect, since an execution settles once.",
    LedgerKind.EVENT_DROPPED: "An event was not passed on because it had crossed too many hops.",
    LedgerKind.SWITCH: "A step was bypassed, or a pipeline not started, by its `if`.",
    LedgerKind.RUN_STALLED: "A pipeline run had no live step left and was ended: a defect.",
    LedgerKind.STATE_STALE: "A fact did not replace the state: a later-claimed job had written it.",
    LedgerKind.BREAKER_CHANGED: "A circuit breaker changed its state.",
    LedgerKind.SCHEDULE_FIRED: "A scheduled run was put on the queue.",
    LedgerKind.SCHEDULE_SKIPPED: "One or more scheduled runs were skipped.",
    LedgerKind.SCHEDULE_DEFERRED: "A scheduled run waits until other polls of its plugin have ended.",
    LedgerKind.SCHEDULE_PAUSED: "A schedule was paused.",
    LedgerKind.SCHEDULE_RESUMED: "A paused schedule was resumed.",
    LedgerKind.CONFIG_LOADED: "A configuration was loaded.",
    LedgerKind.DELIVERY_DELIVERED: "A receiver accepted a state webhook.",
    LedgerKind.DELIVERY_DROPPED: "A state webhook was given up after its last attempt.",
    LedgerKind.DELIVERY_GONE: "A receiver answered 410; the state webhook is not sent again.",
}


class LedgerEntry(Value):
    kind: LedgerKind
    job_id: str | None = None
    run_id: str | None = None
    data: JsonObject = field(default_factory=dict)
