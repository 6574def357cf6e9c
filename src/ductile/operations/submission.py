"""Submitting jobs, and the common fields of submissions: payload, keys, state webhook, calling job, trace.

Decides the meaning of `dedupe_key`, `dedupe_ttl`, `Idempotency-Key`, `state_webhook_url`,
`state_webhook_events`, `traceparent` and `X-Ductile-Job`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.durations import QuantityError, parse_duration
from ductile.core.events.model import NewEvent
from ductile.core.expressions.operators import json_equal
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.admission import (
    MAX_KEY_LENGTH,
    KeyNamespace,
    key_is_taken,
    namespaced_key,
    normalise_key,
)
from ductile.core.jobs.model import Job, JobStatus, NewJob, StateSubscription
from ductile.core.jobs.settlement import WebhookState
from ductile.core.json import JsonObject, JsonValue, nests_too_deep
from ductile.core.webhooks.deliveries import MAX_SUBSCRIPTIONS
from ductile.core.webhooks.url_policy import url_fault
from ductile.errors import RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.operation import scopes_for_command
from ductile.operations.plugins.lookup import default_command, known_command, runnable_plugin
from ductile.operations.request import DryRun, in_header, in_local_call, refused
from ductile.operations.response import Id, Response
from ductile.protocol.manifest.model import ExecutionMode
from ductile.protocol.manifest.schema import UnusableSchemaError, find_schema_violations
from ductile.store.model.jobs import Deduplicated, Submission
from ductile.struct import Value, about

#: W3C Trace Context: version, trace id, parent id, flags. Later versions may append more.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII
)
_NO_TRACE = "0" * 32
_MAX_QUOTED = 100
_MAX_ATTEMPTS = 1000


def _decode_ttl(name: str, value: JsonValue) -> timedelta:
    """Return a duration such as `1h`, or a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise refused(name, f"{name} has to be a duration, or a number of seconds")
    try:
        span = parse_duration(value) if isinstance(value, str) else timedelta(seconds=value)
    except QuantityError as error:
        raise refused(name, f"{name}: {error}", f"expected {error.expected}") from None
    except OverflowError:
        span = timedelta.max if not isinstance(value, str) and value > 0 else timedelta.min
    if span < timedelta():
        raise refused(name, f"{name} cannot be negative")
    return span


def _decode_states(name: str, value: JsonValue) -> tuple[str, ...]:
    """Return the requested states in the order of a job's life."""
    known = ", ".join(WebhookState)
    if not isinstance(value, list) or not value:
        raise refused(name, f"{name} has to be a list of states: {known}")
    states = [str(state) for state in WebhookState]
    unknown = [state for state in value if state not in states]
    if unknown:
        quoted = f"{unknown[0]!r}"[:_MAX_QUOTED]
        raise refused(name, f"{name}: {quoted} is not a state", f"The states are {known}.")
    return tuple(state for state in states if state in value)


class BaseSubmissionRequest(Value):
    """The fields of every request that submits work: a payload, its key, and where it comes from."""

    payload: Annotated[dict[str, Any] | None, about("Its payload.")] = None
    dedupe_key: Annotated[
        str | None,
        Meta(
            description="Start nothing if a job with this key has succeeded within its TTL; jobs with "
            "the same key run one after the other.",
            extra_json_schema={"maxLength": MAX_KEY_LENGTH},
        ),
    ] = None
    idempotency_key: Annotated[
        str | None,
        in_header(
            "Idempotency-Key",
            "Sent again while its job waits, runs or has succeeded, it starts nothing new.",
        ),
    ] = None
    traceparent: Annotated[
        str | None, in_header("traceparent", "W3C Trace Context; its trace id goes with the job.")
    ] = None
    inside_job: Annotated[
        str | None, in_header("X-Ductile-Job", "The job inside which this call is made.")
    ] = None
    delivery_id: Annotated[str | None, in_local_call("The sender's id of a webhook delivery: its key.")] = (
        None
    )
    dry_run: DryRun = False


class SubmissionRequest(BaseSubmissionRequest):
    """The fields of a request that submits one job or one run."""

    dedupe_ttl: Annotated[
        timedelta | None,
        Meta(
            description="How long the key counts, such as 1h, or in seconds; queued and running jobs "
            "are duplicates then, too.",
            extra={"decode": _decode_ttl},
            extra_json_schema={"type": ["string", "number", "null"]},
        ),
    ] = None
    state_webhook_url: Annotated[
        str | None, about("Called when the state changes; for a duplicate, by the existing job.")
    ] = None
    follow: Annotated[bool, in_local_call("The caller is about to follow what it prints.")] = False
    state_webhook_events: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="The states that are sent; all of them if it is absent.",
            extra={"decode": _decode_states},
            extra_json_schema={
                "type": ["array", "null"],
                "items": {"enum": [str(state) for state in WebhookState]},
                "minItems": 1,
            },
        ),
    ] = None


def expect_follower(context: OperationContext, job_id: str, *, follow: bool) -> None:
    """Keep the job's output from its first byte on, for a caller that is about to follow it."""
    if follow and context.engine is not None:
        context.engine.live_output.expect_follower(job_id)


class Submitted(Response, kw_only=True):
    """The job is on disk. GET /job/{job_id} tells what becomes of it."""

    STATUS = 202

    job_id: Id
    status: Annotated[JobStatus, about("`queued`; of a duplicate, that of the existing job.")]
    execution_mode: ExecutionMode
    plugin: str
    command: str
    pipeline: Annotated[str | UnsetType, about("The pipeline that answers.")] = UNSET
    deduplicated: Annotated[bool, about("Whether the job existed already, and nothing was started.")]
    note: Annotated[str | UnsetType, about("What else the name stands for.")] = UNSET

    @property
    def http_message(self) -> str | None:
        return "This is a duplicate: the job exists already." if self.deduplicated else None


class PlannedSubmission(Response):
    """The response to a dry run: the job or run that would be submitted."""

    STATUS = HTTPStatus.OK

    plugin: str
    command: str
    pipeline: str | UnsetType = UNSET
    job_id: None = None
    dry_run: bool = True
    note: str | UnsetType = UNSET


class SubmissionOptions(Value):
    """The common fields of a submission, checked and as they are stored."""

    payload: JsonObject | None
    trace_id: str
    #: The key as it is stored: with the namespace of its source.
    dedupe_key: str | None = None
    #: Seconds that the key counts. If set, a queued or running job is a duplicate too.
    dedupe_ttl: float | None = None
    #: Without the `model` that state webhooks repeat: it depends on the plugin, see `subscription_of`.
    state_subscription: StateSubscription | None = None
    #: The hops of the new job: one more than those of the job inside which the call was made.
    hops: int = 0
    #: The job inside which the call was made.
    inside_job: str | None = None
    #: Whether the key is an `Idempotency-Key`: another payload with the same key is refused.
    idempotent: bool = False


async def read_submission_options(
    context: OperationContext, request: BaseSubmissionRequest
) -> SubmissionOptions:
    """Check the common fields of a submission. Reads the store only for a call from inside a job.

    Raises `RefusedError`.
    """
    if request.payload is not None and nests_too_deep(request.payload):
        raise refused("payload", "payload nests too deep")
    snapshot = context.snapshot()
    key, ttl, state_subscription = None, None, None
    if isinstance(request, SubmissionRequest):
        ttl, state_subscription = request.dedupe_ttl, _state_subscription(snapshot, request)
        if ttl is not None and ttl > snapshot.service.job_queue_retention:
            raise refused(
                "dedupe_ttl",
                "dedupe_ttl is longer than jobs are remembered",
                "Use a shorter one, or raise service.job_queue_retention.",
            )
    if request.dedupe_key or request.idempotency_key or request.delivery_id:
        key, ttl = _stored_key(context, request, ttl)
    caller = None if request.inside_job is None else await find_calling_job(context, request)
    # Limited, because a plugin that calls the API could loop for ever.
    if caller is not None and caller.hops >= snapshot.service.max_hops:
        raise RefusedError(
            f"this call comes from a chain of more than {snapshot.service.max_hops} hops",
            hint="Look for a loop, or raise service.max_hops.",
            details={"inside_job": caller.id},
        )
    trace_id = (caller and caller.trace_id) or parse_trace_id(request.traceparent)
    return SubmissionOptions(
        payload=request.payload,
        dedupe_key=key,
        dedupe_ttl=None if ttl is None else ttl.total_seconds(),
        state_subscription=state_subscription,
        hops=0 if caller is None else caller.hops + 1,
        trace_id=trace_id or make_trace_id(context.rng),
        inside_job=None if caller is None else caller.id,
        idempotent=key is not None and normalise_key(request.idempotency_key) is not None,
    )


def refuse_changed_payload(options: SubmissionOptions, existing: Job | None) -> None:
    """Raise `RefusedError` for an `Idempotency-Key` that was used with another payload.

    A `state_webhook_url` may differ: it is subscribed to the existing job.
    """
    if not options.idempotent or existing is None:
        return
    if not json_equal(existing.payload or {}, options.payload or {}):
        raise key_used_error(existing)


def key_used_error(existing: Job) -> RefusedError:
    """Return the error for an `Idempotency-Key` that another call has used for this job."""
    return RefusedError(
        "this Idempotency-Key was used with another body",
        hint="Use a new key for a new request.",
        details={"job_id": existing.id},
    )


def refuse_without_subscription(existing: Deduplicated) -> None:
    """Raise `RefusedError` if the state webhook URL could not be subscribed to the existing job."""
    if existing.subscribed is False:
        raise RefusedError(
            f"this job has {MAX_SUBSCRIPTIONS} state webhook URLs already; this one was not added",
            hint=f"Ask for its state instead: GET /job/{existing.job_id}",
            details={"job_id": existing.job_id, "field": "state_webhook_url"},
        )


async def refuse_reused_key(
    context: OperationContext, options: SubmissionOptions, jobs: Iterable[NewJob]
) -> None:
    """Refuse like `refuse_changed_payload`, but before anything is enqueued, and also if the job has failed.

    A failed job is no duplicate, so the call would be accepted.
    """
    for job in jobs:
        refuse_changed_payload(options, await find_key_holder(context, options, job))


async def find_key_holder(context: OperationContext, options: SubmissionOptions, job: NewJob) -> Job | None:
    """Return the latest job with the `Idempotency-Key` of a submission, also if it has failed."""
    if not options.idempotent or options.dedupe_key is None or options.dedupe_ttl is None:
        return None
    latest = await context.store.latest_with_key(job.plugin, job.command, options.dedupe_key)
    window = timedelta(seconds=options.dedupe_ttl)
    if latest is None or not key_is_taken(latest.completed_at, window=window, now=context.now()):
        return None
    return latest


def subscription_of(
    options: SubmissionOptions, plugin: PluginInstance | None = None
) -> StateSubscription | None:
    """Return the state subscription with the `model` that state webhooks repeat.

    That is `payload.model`, else `plugins.NAME.config.model`.
    """
    if options.state_subscription is None:
        return None
    return options.state_subscription.with_model_of(
        options.payload, {} if plugin is None else plugin.config.reveal()
    )


def refuse_invalid_payload(plugin: PluginInstance, command: str, payload: JsonObject | None) -> None:
    """Raise `RefusedError` for a payload that violates the command's schema, if `validate_input` is set."""
    declared = plugin.installed.manifest.commands.get(command) if plugin.installed else None
    if not plugin.validate_input or declared is None or declared.input_schema is None:
        return
    try:
        faults = find_schema_violations(payload or {}, declared.input_schema)
    except UnusableSchemaError as error:
        raise RefusedError(
            f"the input_schema of {plugin.name} {command} cannot be used: {error}",
            hint=f"Correct the manifest, or set plugins.{plugin.name}.validate_input to false.",
        ) from error
    if faults:
        raise RefusedError(
            f"{faults[0].field}: {faults[0].message}",
            hint=f"See the schema of {plugin.name} {command}: GET /plugin/{plugin.name}",
            details={"faults": [{"field": fault.field, "message": fault.message} for fault in faults]},
        )


def _stored_key(
    context: OperationContext, request: BaseSubmissionRequest, ttl: timedelta | None
) -> tuple[str | None, timedelta | None]:
    """Return the key as it is stored, and how long it counts; None for the configured time.

    Raises `RefusedError` for a key that is too long, and for two keys.
    """
    source, configured_ttl = context.source, context.snapshot().service.dedupe_ttl
    owner = source.key_owner or source.detail or source.submitted_by
    if (delivery := normalise_key(request.delivery_id)) is not None:
        return namespaced_key(KeyNamespace.DELIVERY, delivery, owner=owner), configured_ttl
    dedupe_key, idempotency_key = normalise_key(request.dedupe_key), normalise_key(request.idempotency_key)
    for key, name in ((dedupe_key, "dedupe_key"), (idempotency_key, "Idempotency-Key")):
        if key is not None and len(key) > MAX_KEY_LENGTH:
            raise refused(name, f"{name} is longer than {MAX_KEY_LENGTH} characters")
    if idempotency_key is None:
        if context.sees_only_own:
            # The key of another token would disclose its job, and subscribe this token to its end.
            return namespaced_key(KeyNamespace.OWN, dedupe_key, owner=source.token), ttl
        return namespaced_key(KeyNamespace.EXPLICIT, dedupe_key), ttl
    if dedupe_key is not None:
        raise RefusedError(
            "there are both an Idempotency-Key and a dedupe_key", hint="Send the one that is meant."
        )
    key = namespaced_key(KeyNamespace.IDEMPOTENCY, idempotency_key, owner=owner)
    return key, configured_ttl if ttl is None else ttl


def _state_subscription(snapshot: Snapshot, request: SubmissionRequest) -> StateSubscription | None:
    """Return the state subscription of the request. Raises `RefusedError` for a URL that is not allowed."""
    url = request.state_webhook_url
    if url is None:
        if request.state_webhook_events is not None:
            raise refused("state_webhook_events", "state_webhook_events needs a state_webhook_url")
        return None
    # The URL may hold a secret of its receiver, so the error does not repeat it.
    if (fault := url_fault(url, snapshot.state_webhooks.allow)) is not None:
        raise refused("state_webhook_url", f"state_webhook_url cannot be used: {fault}")
    return StateSubscription(url=url, events=request.state_webhook_events)


async def find_calling_job(context: OperationContext, request: BaseSubmissionRequest) -> Job | None:
    """Return the job inside which the call is made, if the request names one that exists."""
    job_id = normalise_key(request.inside_job)
    return None if job_id is None else await context.store.get_job(job_id)


def parse_trace_id(traceparent: str | None) -> str | None:
    """Return the trace id of a W3C `traceparent`; None if it is malformed, as the standard says."""
    match = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent is not None else None
    return None if match is None or match["trace"] == _NO_TRACE else match["trace"]


MaxAttempts: TypeAlias = Annotated[
    int | None,
    Meta(
        ge=1, le=_MAX_ATTEMPTS, description="How often it is tried; without it, as the plugin's `retry` says."
    ),
]


class RunCommand(SubmissionRequest, kw_only=True):
    plugin: Annotated[str, about("Name of the plugin, as it is configured.")]
    command: Annotated[
        str | None, about("Its command: `handle` with a payload, else `poll`, as far as it has them.")
    ] = None
    max_attempts: MaxAttempts = None


async def run_command(context: OperationContext, request: RunCommand) -> Submitted | PlannedSubmission:
    """Put one job of a plugin's command on the queue."""
    return await submit_job(context, request)


async def submit_job(
    context: OperationContext, request: RunCommand, event: NewEvent | None = None
) -> Submitted | PlannedSubmission:
    """Submit like `run_command`. With the event of a webhook, the job has the payload of the event.

    A webhook's payload is not validated: its sender could do nothing about it and would send it again.
    """
    snapshot = context.snapshot()
    plugin = runnable_plugin(snapshot, request.plugin)
    default = default_command(plugin, has_payload=request.payload is not None)
    command = known_command(plugin, request.command or default)
    # A path without a command was authorised before its body was read, as for the default command without a
    # payload. With a payload the default is another one.
    context.require_scope(*scopes_for_command(snapshot, plugin.name, command))
    options = await read_submission_options(context, request)
    if event is None:
        refuse_invalid_payload(plugin, command, options.payload)
    if request.dry_run:
        return PlannedSubmission(plugin=plugin.name, command=command)
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=plugin.name,
        command=command,
        submitted_by=context.source.submitted_by,
        submitted_detail=context.source.detail,
        max_attempts=request.max_attempts or plugin.retry.max_attempts,
        payload=options.payload if event is None else None,
        source_event_id=None if event is None else event.id,
        dedupe_key=options.dedupe_key,
        dedupe_ttl=options.dedupe_ttl,
        hops=options.hops,
        trace_id=options.trace_id,
        callback=subscription_of(options, plugin),
        configured_callback=snapshot.policy.state_webhook(plugin.name, command, options.payload),
    )
    if options.idempotent:
        await refuse_reused_key(context, options, (job,))
    expect_follower(context, job.id, follow=request.follow)
    submission = Submission(jobs=(job,), event=event, dedupe_window=snapshot.service.dedupe_ttl)
    (result,) = await context.enqueue(submission)
    status = JobStatus.QUEUED
    if duplicate := isinstance(result, Deduplicated):
        existing = await context.store.get_job(result.job_id)
        refuse_changed_payload(options, existing)
        refuse_without_subscription(result)
        status = status if existing is None else existing.status
    return Submitted(
        job_id=result.job_id,
        status=status,
        execution_mode=ExecutionMode.ASYNC,
        plugin=plugin.name,
        command=command,
        deduplicated=duplicate,
    )
