"""Signals: the catalogue of named telemetry events, and the bus that carries them to logs and metrics.

A signal that reports a change is emitted after the change is on disk. Emitting calls each subscriber;
subscribers must not block and must not raise. Signals start no work: that is the job of
`ductile.store.notifier`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import TypeAlias

import msgspec

from ductile.core.json import JsonObject, JsonValue

#: Stack frames in the description of an error.
_MAX_FRAMES = 5


class SignalLevel(IntEnum):
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40


class Signal(StrEnum):
    SERVICE_STARTING = "service.starting"
    SERVICE_READY = "service.ready"
    SERVICE_STOPPING = "service.stopping"
    SERVICE_STOPPED = "service.stopped"
    SERVICE_FAILED = "service.failed"
    CONFIG_LOADED = "config.loaded"
    CONFIG_WARNING = "config.warning"
    CONFIG_REFUSED = "config.refused"
    PLUGIN_REFUSED = "plugin.refused"
    PLUGIN_INIT_FAILED = "plugin.init_failed"
    PLUGIN_DRAINING = "plugin.draining"
    PLUGIN_DRAINED = "plugin.drained"
    PLUGIN_DRAIN_ABANDONED = "plugin.drain_abandoned"
    JOB_ACCEPTED = "job.accepted"
    JOB_DEDUPLICATED = "job.deduplicated"
    JOB_CLAIMED = "job.claimed"
    JOB_STARTED = "job.started"
    JOB_EXITED = "job.exited"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_RETRYING = "job.retrying"
    JOB_FAILED = "job.failed"
    JOB_DEAD = "job.dead"
    JOB_INTERRUPTED = "job.interrupted"
    JOB_POSTPONED = "job.postponed"
    JOB_RECOVERED = "job.recovered"
    JOB_CANCELLING = "job.cancelling"
    JOB_SUPERSEDED = "job.superseded"
    JOB_STDERR = "job.stderr"
    JOB_SAID = "job.said"
    JOB_CHILD_CONFLICT = "job.child_conflict"
    EVENT_UNROUTED = "event.unrouted"
    EVENT_DROPPED = "event.dropped"
    STEP_BYPASSED = "step.bypassed"
    STATE_STALE = "state.stale"
    SCHEDULE_FIRED = "schedule.fired"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_DEFERRED = "schedule.deferred"
    BREAKER_CHANGED = "breaker.changed"
    CLOCK_JUMPED = "clock.jumped"
    SURVIVOR_ENDED = "survivor.ended"
    SURVIVOR_ALIVE = "survivor.alive"
    STORE_FULL = "store.full"
    STORE_BUSY = "store.busy"
    STORE_FAILED = "store.failed"
    STORE_LOG_DAMAGED = "store.log_damaged"
    STORE_RESCUED = "store.rescued"
    STORE_LOCK_RENEWED = "store.lock_renewed"
    RETENTION_PRUNED = "retention.pruned"
    DELIVERY_DELIVERED = "delivery.delivered"
    DELIVERY_FAILED = "delivery.failed"
    DELIVERY_DROPPED = "delivery.dropped"
    DELIVERY_GONE = "delivery.gone"
    WEBHOOK_LISTENING = "webhook.listening"
    WEBHOOK_ACCEPTED = "webhook.accepted"
    WEBHOOK_REFUSED = "webhook.refused"
    WEBHOOK_FAULT = "webhook.fault"
    API_LISTENING = "api.listening"
    API_REQUEST = "api.request"
    API_UNAUTHORIZED = "api.unauthorized"
    API_FAULT = "api.fault"
    LISTENER_REFUSED = "listener.refused"
    LISTENER_SAMPLED = "listener.sampled"
    LISTENER_CLOSED = "listener.closed"
    CONTROL_FAULT = "control.fault"


#: The level and the default message of each signal. `docs/reference/signals.md` is tested against it.
SIGNALS: dict[Signal, tuple[SignalLevel, str]] = {
    Signal.SERVICE_STARTING: (SignalLevel.INFO, "The daemon has its lock and begins to start."),
    Signal.SERVICE_READY: (SignalLevel.INFO, "Recovery is done; jobs run and requests are answered."),
    Signal.SERVICE_STOPPING: (
        SignalLevel.INFO,
        "Nothing new is started; running jobs get their time to finish.",
    ),
    Signal.SERVICE_STOPPED: (SignalLevel.INFO, "Everything is on disk and closed."),
    Signal.SERVICE_FAILED: (
        SignalLevel.ERROR,
        "A part of the daemon failed; it stops, and recovers when started.",
    ),
    Signal.CONFIG_LOADED: (SignalLevel.INFO, "A configuration is in force."),
    Signal.CONFIG_WARNING: (SignalLevel.WARN, "A setting is valid but probably a mistake."),
    Signal.CONFIG_REFUSED: (SignalLevel.ERROR, "A reload was refused; the old configuration stays in force."),
    Signal.PLUGIN_REFUSED: (SignalLevel.ERROR, "A configured plugin cannot run."),
    Signal.PLUGIN_INIT_FAILED: (
        SignalLevel.ERROR,
        "A plugin's init failed; it is marked unhealthy and still runs.",
    ),
    Signal.PLUGIN_DRAINING: (
        SignalLevel.INFO,
        "A plugin takes no new jobs; the accepted ones run before it is disabled.",
    ),
    Signal.PLUGIN_DRAINED: (SignalLevel.INFO, "No accepted work needs the plugin any more."),
    Signal.PLUGIN_DRAIN_ABANDONED: (
        SignalLevel.WARN,
        "A drain ended before the plugin was disabled; the plugin takes jobs again.",
    ),
    Signal.JOB_ACCEPTED: (SignalLevel.DEBUG, "A job is on the queue and on disk."),
    Signal.JOB_DEDUPLICATED: (SignalLevel.INFO, "A submission was a duplicate of an existing job."),
    Signal.JOB_CLAIMED: (
        SignalLevel.DEBUG,
        "A worker claimed a job; `waited_ms` is there the first time.",
    ),
    Signal.JOB_STARTED: (SignalLevel.DEBUG, "A plugin's process got its request, `ms_ago` milliseconds ago."),
    Signal.JOB_EXITED: (SignalLevel.DEBUG, "A plugin's process ended; its result is being stored."),
    Signal.JOB_SUCCEEDED: (SignalLevel.INFO, "A job succeeded."),
    Signal.JOB_RETRYING: (SignalLevel.WARN, "An attempt failed; the job will be tried again."),
    Signal.JOB_FAILED: (SignalLevel.ERROR, "A job failed and will not be tried again."),
    Signal.JOB_DEAD: (SignalLevel.ERROR, "A job is dead; `reason` says why."),
    Signal.JOB_INTERRUPTED: (SignalLevel.WARN, "The daemon stopped while a job ran; it will run again."),
    Signal.JOB_POSTPONED: (
        SignalLevel.WARN,
        "A process could not be started for lack of resources; nothing is started for a moment.",
    ),
    Signal.JOB_RECOVERED: (SignalLevel.WARN, "A job was found running after a crash."),
    Signal.JOB_CANCELLING: (SignalLevel.INFO, "A running job is being ended on request."),
    Signal.JOB_SUPERSEDED: (SignalLevel.WARN, "A result came too late and was only logged."),
    Signal.JOB_STDERR: (SignalLevel.WARN, "A plugin wrote to stderr."),
    Signal.JOB_SAID: (SignalLevel.INFO, "A plugin's response contained a log line."),
    Signal.JOB_CHILD_CONFLICT: (SignalLevel.ERROR, "A child job existed already: a defect of Ductile."),
    Signal.EVENT_UNROUTED: (SignalLevel.DEBUG, "An event matched no route."),
    Signal.EVENT_DROPPED: (SignalLevel.ERROR, "An event had crossed too many hops and was not passed on."),
    Signal.STEP_BYPASSED: (SignalLevel.INFO, "A step was bypassed, or a pipeline not started, by its `if`."),
    Signal.STATE_STALE: (
        SignalLevel.WARN,
        "A fact did not replace the state: a later-claimed job had written it.",
    ),
    Signal.SCHEDULE_FIRED: (SignalLevel.DEBUG, "A scheduled run was put on the queue."),
    Signal.SCHEDULE_SKIPPED: (SignalLevel.INFO, "A scheduled run was skipped."),
    Signal.SCHEDULE_DEFERRED: (
        SignalLevel.INFO,
        "A scheduled run waits until other polls of its plugin have ended.",
    ),
    Signal.BREAKER_CHANGED: (SignalLevel.WARN, "A circuit breaker opened, closed or lets a probe through."),
    Signal.CLOCK_JUMPED: (SignalLevel.WARN, "The clock was set, or the machine slept."),
    Signal.SURVIVOR_ENDED: (SignalLevel.WARN, "A plugin process that had outlived its daemon was killed."),
    Signal.SURVIVOR_ALIVE: (
        SignalLevel.ERROR,
        "A plugin process of an earlier daemon cannot be killed; the daemon does not start beside it.",
    ),
    Signal.STORE_FULL: (
        SignalLevel.ERROR,
        "The disk is full: submissions are refused, finished results are kept and retried.",
    ),
    Signal.STORE_BUSY: (
        SignalLevel.WARN,
        "Another process has locked the database: finished results are kept and retried.",
    ),
    Signal.STORE_FAILED: (SignalLevel.ERROR, "The store failed; the daemon exits and recovers when started."),
    Signal.STORE_LOG_DAMAGED: (
        SignalLevel.ERROR,
        "The write-ahead log was damaged: its readable part was recovered, and the log was copied to `kept`.",
    ),
    Signal.STORE_RESCUED: (
        SignalLevel.WARN,
        "The files of the store had been removed; `store` is a complete copy, at the old path if `put_back`.",
    ),
    Signal.STORE_LOCK_RENEWED: (
        SignalLevel.WARN,
        "The lock file had been removed or replaced and was created again; the store stayed locked.",
    ),
    Signal.RETENTION_PRUNED: (SignalLevel.DEBUG, "Rows older than their retention were removed."),
    Signal.DELIVERY_DELIVERED: (SignalLevel.DEBUG, "A receiver accepted a state webhook."),
    Signal.DELIVERY_FAILED: (SignalLevel.WARN, "A state webhook was not accepted; it will be sent again."),
    Signal.DELIVERY_DROPPED: (SignalLevel.ERROR, "A state webhook was given up after its last attempt."),
    Signal.DELIVERY_GONE: (SignalLevel.WARN, "A receiver answered 410; the state webhook is not sent again."),
    Signal.WEBHOOK_LISTENING: (SignalLevel.INFO, "The listener for webhooks takes requests at this address."),
    Signal.WEBHOOK_ACCEPTED: (SignalLevel.INFO, "A signed request was accepted; its jobs are on disk."),
    Signal.WEBHOOK_REFUSED: (SignalLevel.WARN, "A request to the listener for webhooks was refused."),
    Signal.WEBHOOK_FAULT: (
        SignalLevel.ERROR,
        "A webhook caused an unexpected error in Ductile; its sender got a 500.",
    ),
    Signal.API_LISTENING: (SignalLevel.INFO, "The HTTP API takes requests at this address."),
    Signal.API_REQUEST: (SignalLevel.INFO, "A request was answered; the token is logged by its name only."),
    Signal.API_UNAUTHORIZED: (SignalLevel.WARN, "A request had an unknown token."),
    Signal.API_FAULT: (
        SignalLevel.ERROR,
        "A request caused an unexpected error in Ductile; its caller got a 500.",
    ),
    Signal.LISTENER_REFUSED: (
        SignalLevel.WARN,
        "A listener refused or closed connections by itself: how many since the last report, by reason.",
    ),
    Signal.LISTENER_SAMPLED: (
        SignalLevel.WARN,
        "Requests without a known token that were counted, not logged one by one: how many, by status.",
    ),
    Signal.LISTENER_CLOSED: (
        SignalLevel.INFO,
        "A listener is closed: by a reload, or because the daemon stops.",
    ),
    Signal.CONTROL_FAULT: (
        SignalLevel.ERROR,
        "A command caused an unexpected error in Ductile; its caller got the error.",
    ),
}


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
        """Emit a signal. `message` and `level` default to those in `SIGNALS`."""
        default_level, default_message = SIGNALS[signal]
        event = SignalEvent(
            signal,
            level or default_level,
            default_message if message is None else message,
            plugin,
            job_id,
            data or {},
        )
        for subscriber in self._subscribers[signal]:
            subscriber(event)


def describe_error(error: BaseException) -> JsonObject:
    """Return the type and location of an unexpected error, without its message, which may be a secret."""
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"fault": type(error).__name__, "at": " < ".join(places[::-1])}
