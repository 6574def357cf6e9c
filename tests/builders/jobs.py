"""Jobs, events, outcomes and rules for tests: every field has a harmless default and may be chosen.

Time and randomness are controlled by the test: `Clock` moves only on request, `some_rng` is seeded.
"""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from ductile.core.events.model import EventRoute, EventRouteTable, NewEvent
from ductile.core.jobs.failures import BreakerPolicy, RetryPolicy
from ductile.core.jobs.model import (
    Completed,
    Evidence,
    Failed,
    Job,
    JobReason,
    JobStatus,
    NewJob,
    PluginEvent,
    PluginResponse,
    SubmittedBy,
    TimedOut,
)
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import FactRule, PluginPolicy, Policy
from ductile.store.model.records import LogRow

START = datetime(2026, 2, 8, 10, 0, tzinfo=UTC)
#: Environment variable with the first number of ids, for a second process of a test.
FIRST_ID = "DUCTILE_TEST_FIRST_ID"
_numbers = itertools.count(int(os.environ.get(FIRST_ID, "1")))


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **span: float) -> datetime:
        self.now += timedelta(**span)
        return self.now


def some_rng(seed: int = 1) -> Random:
    return Random(seed)


def an_id() -> str:
    """Return an id that no other test value has."""
    return f"00000000-0000-7000-8000-{next(_numbers):012x}"


def a_new_job(plugin: str = "echo", command: str = "handle", **fields: Any) -> NewJob:
    defaults: dict[str, Any] = {
        "id": an_id(),
        "submitted_by": SubmittedBy.API,
        "max_attempts": 4,
        "payload": {"n": 1},
    }
    return NewJob(plugin=plugin, command=command, **(defaults | fields))


def a_job(plugin: str = "echo", command: str = "handle", **fields: Any) -> Job:
    """Return a job, by default a running one in its first attempt."""
    status: JobStatus = fields.get("status", JobStatus.RUNNING)
    defaults: dict[str, Any] = dict.fromkeys(
        (
            "hold", "submitted_detail", "dedupe_key", "completed_at", "next_retry_at", "last_error",
            "parent_job_id", "source_event_id", "event_context_id", "run_id", "step_path", "trace_id",
            "cancel_requested_at", "owner", "lease_until", "callback",
        )
    )  # fmt: skip
    defaults |= {
        "id": an_id(),
        "seq": 1,
        "status": status,
        "reason": JobReason.CLAIMED if status is JobStatus.RUNNING else JobReason.SUBMITTED,
        "attempt": 1,
        "max_attempts": 4,
        "execution": 1 if status is JobStatus.RUNNING else 0,
        "submitted_by": SubmittedBy.API,
        "created_at": START,
        "started_at": START if status is JobStatus.RUNNING else None,
        "hops": 0,
        "claim_seq": 10,
        "suspect": False,
    }
    return Job(plugin=plugin, command=command, **(defaults | fields))


def an_event(event_type: str = "found", **fields: Any) -> NewEvent:
    defaults: dict[str, Any] = {"id": an_id(), "source": "api", "payload": {"from": "outside"}}
    return NewEvent(type=event_type, **(defaults | fields))


def emitted(
    event_type: str = "found", payload: JsonObject | None = None, key: str | None = None
) -> PluginEvent:
    return PluginEvent(type=event_type, payload={"item": 1} if payload is None else payload, dedupe_key=key)


def ok(
    *events: PluginEvent,
    result: JsonValue = "done",
    state: JsonObject | None = None,
    artifacts: tuple[JsonValue, ...] = (),
    **evidence: Any,
) -> Completed:
    response = PluginResponse(ok=True, result=result, events=events, state_updates=state, artifacts=artifacts)
    return Completed(response=response, evidence=some_evidence(**evidence))


def failed(*, permanent: bool = False, error: str = "it broke", **evidence: Any) -> Failed:
    return Failed(
        reason=JobReason.PLUGIN_ERROR, error=error, permanent=permanent, evidence=some_evidence(**evidence)
    )


def timed_out() -> TimedOut:
    return TimedOut(error="still running at its deadline", evidence=some_evidence(signal=15, exit_code=None))


def some_evidence(**fields: Any) -> Evidence:
    defaults: dict[str, Any] = {
        "stdout": '{"status":"ok"}',
        "stderr": "",
        "exit_code": 0,
        "duration": timedelta(milliseconds=12),
    }
    return Evidence(**(defaults | fields))


def some_policy(
    *routes: EventRoute, facts: dict[str, tuple[FactRule, ...]] | None = None, **fields: Any
) -> Policy:
    """Return a policy with these routes; retries wait ten seconds at first and a minute at most."""
    retry = RetryPolicy(backoff_base=timedelta(seconds=10), backoff_max=timedelta(minutes=1))
    names = {"echo", "source", "sink", "other", *(facts or {}), *(route.plugin for route in routes)}
    plugins = {
        name: PluginPolicy(
            retry=retry,
            breaker=BreakerPolicy(threshold=3, reset_after=timedelta(minutes=30)),
            facts=(facts or {}).get(name, ()),
        )
        for name in names
    }
    return Policy(plugins=plugins, routes=EventRouteTable.of(routes), **fields)


def a_route(event_type: str = "found", *, source: str = "source", to: str = "sink") -> EventRoute:
    plugin, _, command = to.partition(".")
    return EventRoute(source=source, event_type=event_type, plugin=plugin, command=command or "handle")


def a_log_row(**fields: Any) -> LogRow:
    names = (
        "submitted_detail dedupe_key parent_job_id source_event_id event_context_id run_id step_path trace_id"
    )
    empty: dict[str, Any] = dict.fromkeys([*names.split(), "signal", "error"])
    defaults: dict[str, Any] = {
        "seq": 1,
        "id": "x-1",
        "job_id": an_id(),
        "execution": 1,
        "attempt": 1,
        "max_attempts": 1,
        "plugin": "echo",
        "command": "poll",
        "status": LogStatus.SUCCEEDED,
        "reason": JobReason.COMPLETED,
        "job_status": JobStatus.SUCCEEDED,
        "job_reason": JobReason.COMPLETED,
        "exit_code": 0,
        "duration": timedelta(seconds=1),
        "submitted_by": SubmittedBy.CLI,
        "created_at": START,
        "started_at": START,
        "completed_at": START,
        "stderr": "",
    }
    return LogRow(**(empty | defaults | fields))
