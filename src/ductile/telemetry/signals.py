"""Signals: the catalogue of named telemetry events, and the bus that carries them to logs and metrics.

A signal that reports a change is emitted after the change is on disk. Emitting calls each subscriber;
subscribers must not block and must not raise. Signals start no work: that is the job of
`ductile.store.notifier`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Self, TypeAlias

import msgspec

from ductile.core.json import JsonObject, JsonValue

#: Stack frames in the description of an error.
_MAX_FRAMES = 5


class SignalLevel(IntEnum):
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40


DEBUG, INFO, WARN, ERROR = SignalLevel


class Signal(StrEnum):
    """Every signal: its name, its usual level and its usual message.

    `docs/reference/signals.md` is tested against it.
    """

    level: SignalLevel
    message: str

    def __new__(cls, name: str, level: SignalLevel, message: str) -> Self:
        signal = str.__new__(cls, name)
        signal._value_ = name
        signal.level = level
        signal.message = message
        return signal

    SERVICE_STARTING = "service.starting", INFO, "The daemon has its lock and begins to start."
    SERVICE_READY = "service.ready", INFO, "Recovery is done; jobs run and requests are answered."
    SERVICE_STOPPING = "service.stopping", INFO, "Nothing new is started; running jobs get time to finish."
    SERVICE_STOPPED = "service.stopped", INFO, "Everything is on disk and closed."
    SERVICE_FAILED = (
        "service.failed",
        ERROR,
        "A part of the daemon failed; it stops, and the next start recovers.",
    )
    NODE_LEADING = "node.leading", INFO, "This node now plans the schedules and removes expired data."
    NODE_LOST = "node.lost", WARN, "Another node was silent for too long; its jobs run elsewhere."
    NODE_FENCED = (
        "node.fenced",
        ERROR,
        "The lease was not renewed in time: this node has killed its processes and starts nothing.",
    )
    JOBS_WITHOUT_NODE = "jobs.without_node", WARN, "No live node may run queued jobs of a plugin: they wait."
    JOBS_PLACED = "jobs.placed", INFO, "Jobs that waited for a node that may run them are ready."
    NODE_RENEWED = "node.renewed", INFO, "The store answers again; this node starts jobs."
    CONFIG_LOADED = "config.loaded", INFO, "A configuration is in force."
    CONFIG_WARNING = "config.warning", WARN, "A setting is valid but probably a mistake."
    CONFIG_REFUSED = "config.refused", ERROR, "A reload was refused; the old configuration stays in force."
    PLUGIN_REFUSED = "plugin.refused", ERROR, "A configured plugin cannot run."
    PLUGIN_INIT_FAILED = "plugin.init_failed", ERROR, "A plugin's init failed; it is unhealthy, but runs."
    PLUGIN_DRAINING = "plugin.draining", INFO, "A plugin takes no new jobs; the accepted ones run first."
    PLUGIN_DRAINED = "plugin.drained", INFO, "No accepted work needs the plugin any more."
    PLUGIN_DRAIN_ABANDONED = (
        "plugin.drain_abandoned",
        WARN,
        "A drain ended before the plugin was disabled; the plugin takes jobs again.",
    )
    JOB_ACCEPTED = "job.accepted", DEBUG, "A job is on the queue and on disk."
    JOB_DEDUPLICATED = "job.deduplicated", INFO, "A submission was a duplicate of an existing job."
    JOB_CLAIMED = "job.claimed", DEBUG, "A worker claimed a job; `waited_ms` is there the first time."
    JOB_STARTED = "job.started", DEBUG, "A plugin's process got its request, `ms_ago` milliseconds ago."
    JOB_EXITED = "job.exited", DEBUG, "A plugin's process ended; its result is being stored."
    JOB_SUCCEEDED = "job.succeeded", INFO, "A job succeeded."
    JOB_RETRYING = "job.retrying", WARN, "An attempt failed; the job will be tried again."
    JOB_FAILED = "job.failed", ERROR, "A job failed and will not be tried again."
    JOB_DEAD = "job.dead", ERROR, "A job is dead; `reason` says why."
    JOB_INTERRUPTED = "job.interrupted", WARN, "The daemon stopped while a job ran; it will run again."
    JOB_POSTPONED = (
        "job.postponed",
        WARN,
        "A process could not be started for lack of resources; nothing is started for a moment.",
    )
    JOB_RECOVERED = "job.recovered", WARN, "A job was found running after a crash."
    JOB_CANCELLING = "job.cancelling", INFO, "A running job is being ended on request."
    JOB_SUPERSEDED = "job.superseded", WARN, "A result came too late and was only logged."
    JOB_STDERR = "job.stderr", WARN, "A plugin wrote to stderr."
    JOB_SAID = "job.said", INFO, "A plugin's response contained a log line."
    JOB_CHILD_CONFLICT = "job.child_conflict", ERROR, "A child job existed already: a bug in Ductile."
    EVENT_UNROUTED = "event.unrouted", DEBUG, "An event matched no route."
    EVENT_DROPPED = "event.dropped", ERROR, "An event had crossed too many hops and was not passed on."
    STEP_BYPASSED = "step.bypassed", INFO, "A step was skipped, or a pipeline not started, by its `if`."
    STATE_STALE = "state.stale", WARN, "A fact did not replace the state, which a later job had written."
    SCHEDULE_FIRED = "schedule.fired", DEBUG, "A scheduled run was put on the queue."
    SCHEDULE_SKIPPED = "schedule.skipped", INFO, "A scheduled run was skipped."
    SCHEDULE_DEFERRED = "schedule.deferred", INFO, "A scheduled run waits for other polls of its plugin."
    BREAKER_CHANGED = "breaker.changed", WARN, "A circuit breaker opened, closed or lets a probe through."
    CLOCK_JUMPED = "clock.jumped", WARN, "The clock was set, or the machine slept."
    ORPHAN_ENDED = "survivor.ended", WARN, "A plugin process that had outlived its daemon was killed."
    ORPHAN_ALIVE = (
        "survivor.alive",
        ERROR,
        "A plugin process of an earlier daemon cannot be killed; the daemon does not start beside it.",
    )
    STORE_FULL = "store.full", ERROR, "The disk is full: no job is accepted, finished results are kept."
    STORE_BUSY = (
        "store.busy",
        WARN,
        "The database is locked or away: no job is accepted, finished results are kept and retried.",
    )
    STORE_AVAILABLE = "store.available", INFO, "The database can be used again."
    STORE_FAILED = "store.failed", ERROR, "The store failed; the daemon exits and recovers when started."
    STORE_LOG_DAMAGED = (
        "store.log_damaged",
        ERROR,
        "The write-ahead log was damaged: its readable part was recovered, and the log was copied to `kept`.",
    )
    STORE_RESCUED = (
        "store.rescued",
        WARN,
        "The files of the store had been removed; `store` is a complete copy, at the old path if `put_back`.",
    )
    STORE_LOCK_RENEWED = (
        "store.lock_renewed",
        WARN,
        "The lock file had been removed or replaced and was created again; the store stayed locked.",
    )
    RETENTION_PRUNED = "retention.pruned", DEBUG, "Rows older than their retention were removed."
    DELIVERY_DELIVERED = "delivery.delivered", DEBUG, "A receiver accepted a state webhook."
    DELIVERY_FAILED = "delivery.failed", WARN, "A state webhook was not accepted; it will be sent again."
    DELIVERY_DROPPED = "delivery.dropped", ERROR, "A state webhook was given up after its last attempt."
    DELIVERY_GONE = "delivery.gone", WARN, "A receiver answered 410; the state webhook is not sent again."
    WEBHOOK_LISTENING = "webhook.listening", INFO, "The listener for webhooks takes requests at this address."
    WEBHOOK_ACCEPTED = "webhook.accepted", INFO, "A signed request was accepted; its jobs are on disk."
    WEBHOOK_REFUSED = "webhook.refused", WARN, "A request to the listener for webhooks was refused."
    WEBHOOK_FAULT = "webhook.fault", ERROR, "A webhook caused an unexpected error; its sender got a 500."
    API_LISTENING = "api.listening", INFO, "The HTTP API takes requests at this address."
    API_REQUEST = "api.request", INFO, "A request was answered; the token is logged by its name only."
    API_UNAUTHORIZED = "api.unauthorized", WARN, "A request had an unknown token."
    API_FAULT = "api.fault", ERROR, "A request caused an unexpected error; its caller got a 500."
    LISTENER_REFUSED = (
        "listener.refused",
        WARN,
        "A listener refused or closed connections by itself: how many since the last report, by reason.",
    )
    LISTENER_SAMPLED = (
        "listener.sampled",
        WARN,
        "Requests without a known token that were counted, not logged one by one: how many, by status.",
    )
    LISTENER_CLOSED = "listener.closed", INFO, "A listener is closed, by a reload or by a stop."
    CONTROL_FAULT = "control.fault", ERROR, "A command caused an unexpected error; its caller got it."


class SignalEvent(msgspec.Struct, frozen=True):
    """One emitted signal. A plain msgspec struct: several are created for each job."""

    signal: Signal
    level: SignalLevel
    message: str
    plugin: str | None = None
    job_id: str | None = None
    data: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)


Subscriber: TypeAlias = Callable[[SignalEvent], None]


class SignalBus:
    """Calls the subscribers of a signal, in the order of their subscription."""

    def __init__(self) -> None:
        self._subscribers: dict[Signal, tuple[Subscriber, ...]] = dict.fromkeys(Signal, ())

    def subscribe(self, subscriber: Subscriber, only: Iterable[Signal] = Signal) -> None:
        for signal in only:
            self._subscribers[signal] += (subscriber,)

    def emit(
        self,
        signal: Signal,
        message: str | None = None,
        *,
        plugin: str | None = None,
        job_id: str | None = None,
        level: SignalLevel | None = None,
        data: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Emit a signal. `message` and `level` replace the usual ones."""
        text = signal.message if message is None else message
        event = SignalEvent(signal, level or signal.level, text, plugin, job_id, data or {})
        for subscriber in self._subscribers[signal]:
            subscriber(event)


def describe_error(error: BaseException) -> JsonObject:
    """Return the type and location of an unexpected error, without its message, which may be a secret."""
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"fault": type(error).__name__, "at": " < ".join(places[::-1])}
