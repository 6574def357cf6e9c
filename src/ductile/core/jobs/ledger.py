"""The kinds of ledger entries."""

from __future__ import annotations

from ductile.core.json import JsonObject
from ductile.struct import DescribedEnum, Value, field


class LedgerKind(DescribedEnum):
    JOB_TRANSITION = "job.transition", "A job went from one state to another."
    JOB_DEDUPLICATED = "job.deduplicated", "A submission was a duplicate; the existing job is named."
    JOB_CANCEL_REQUESTED = "job.cancel_requested", "Cancellation of a running job was requested."
    JOB_RESULT_SUPERSEDED = (
        "job.result_superseded",
        "A result came after its job had moved on; only the log keeps it.",
    )
    CHILD_CONFLICT = (
        "job.child_conflict",
        "A child job existed already: a defect, since an execution settles once.",
    )
    EVENT_DROPPED = "event.dropped", "An event was not passed on because it had crossed too many hops."
    SWITCH = "core.switch", "A step was bypassed, or a pipeline not started, by its `if`."
    RUN_STALLED = "run.stalled", "A pipeline run had no live step left and was ended: a defect."
    STATE_STALE = "state.stale", "A fact did not replace the state: a later-claimed job had written it."
    BREAKER_CHANGED = "breaker.changed", "A circuit breaker changed its state."
    SCHEDULE_FIRED = "schedule.fired", "A scheduled run was put on the queue."
    SCHEDULE_SKIPPED = "schedule.skipped", "One or more scheduled runs were skipped."
    SCHEDULE_DEFERRED = (
        "schedule.deferred",
        "A scheduled run waits until other polls of its plugin have ended.",
    )
    SCHEDULE_PAUSED = "schedule.paused", "A schedule was paused."
    SCHEDULE_RESUMED = "schedule.resumed", "A paused schedule was resumed."
    CONFIG_LOADED = "config.loaded", "A configuration was loaded."
    DELIVERY_DELIVERED = "delivery.delivered", "A receiver accepted a state webhook."
    DELIVERY_DROPPED = "delivery.dropped", "A state webhook was given up after its last attempt."
    DELIVERY_GONE = "delivery.gone", "A receiver answered 410; the state webhook is not sent again."


class LedgerEntry(Value):
    kind: LedgerKind
    job_id: str | None = None
    run_id: str | None = None
    data: JsonObject = field(default_factory=dict)
