"""What every submission has in common, whichever door it comes through: payload, keys, callback, descent.

Owns the meaning of `dedupe_key`, `dedupe_ttl`, `Idempotency-Key`, `state_webhook_url`,
`state_webhook_events`, `traceparent` and `X-Ductile-Job`. What is submitted
is the business of its own module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from typing import Annotated, Any

from msgspec import Meta

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.durations import QuantityError, parse_duration
from ductile.core.expressions.operators import json_equal
from ductile.core.ids import make_trace_id
from ductile.core.jobs.dedupe import MAX_KEY_LENGTH, KeyNamespace, holds_key, namespaced_key, normalise_key
from ductile.core.jobs.model import Callback, Job, NewJob, SubmittedBy
from ductile.core.jobs.settlement import CallbackState
from ductile.core.json import JsonObject, JsonValue, nests_too_deep
from ductile.core.webhooks.deliveries import MAX_SUBSCRIPTIONS
from ductile.core.webhooks.url_policy import url_fault
from ductile.errors import RefusedError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.request import in_header
from ductile.protocol.manifest.schema import UnusableSchemaError, find_schema_violations
from ductile.store.model.submission import Deduplicated
from ductile.struct import Value, replace

#: W3C Trace Context: version, trace id, parent id, flags. Later versions may append more.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII
)
_NO_TRACE = "0" * 32
_SHOWN_STATE = 100
#: What most submissions hold: of these, only the payload is read here.
_PLAIN = {
    *("plugin", "command", "pipeline", "payload", "type", "event_type", "headers", "async"),
    *("result", "strict"),  # how the answer looks
}


def _decode_ttl(name: str, value: JsonValue) -> timedelta:
    """A duration as in the configuration, or a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise read.refused(name, f"{name} has to be a duration, or a number of seconds")
    try:
        span = parse_duration(value) if isinstance(value, str) else _seconds(value)
    except QuantityError as error:
        raise read.refused(name, f"{name}: {error}", f"expected {error.expected}") from None
    if span < timedelta():
        raise read.refused(name, f"{name} cannot be negative")
    return span


def _decode_states(name: str, value: JsonValue) -> tuple[str, ...]:
    """The chosen states in the order of a job's life."""
    known = ", ".join(CallbackState)
    if not isinstance(value, list) or not value:
        raise read.refused(name, f"{name} has to be a list of states: {known}")
    states = [str(state) for state in CallbackState]
    unknown = [each for each in value if each not in states]
    if unknown:
        shown = f"{unknown[0]!r}"[:_SHOWN_STATE]
        raise read.refused(name, f"{name}: {shown} is not a state", f"The states are {known}.")
    return tuple(state for state in states if state in value)


class Source(Value):
    """Through which door a submission came, and who stood there: the token, endpoint or schedule."""

    submitted_by: SubmittedBy
    detail: str | None = None
    #: Whose keys come through it, where that is not told by `detail`.
    owner: str | None = None


class KeyedRequest(Value):
    """The fields of every request that submits work: a payload, its key, and where it comes from."""

    payload: Annotated[dict[str, Any] | None, Meta(description="What the plugin is given.")] = None
    dedupe_key: Annotated[
        str | None,
        Meta(
            description="A succeeded job with this key makes it a duplicate.",
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


class SubmissionRequest(KeyedRequest):
    """The fields of a request that submits one job or one run."""

    dedupe_ttl: Annotated[
        timedelta | None,
        Meta(
            description="How long the key holds, such as 1h, or in seconds; jobs that still run count then.",
            extra={"decode": _decode_ttl},
            extra_json_schema={"type": ["string", "number", "null"]},
        ),
    ] = None
    state_webhook_url: Annotated[
        str | None,
        Meta(description="Called when the job's state changes; a duplicate's is called by the existing job."),
    ] = None
    state_webhook_events: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="The states that are sent to `state_webhook_url`; all of them if it is absent.",
            extra={"decode": _decode_states},
            extra_json_schema={
                "type": ["array", "null"],
                "items": {"enum": [str(state) for state in CallbackState]},
                "minItems": 1,
            },
        ),
    ] = None


class SubmissionOptions(Value):
    """A submission as far as it does not matter what is submitted."""

    payload: JsonObject | None
    trace_id: str
    #: As it is stored: with the namespace of its door.
    dedupe_key: str | None = None
    #: Seconds; given, a job that is queued or running counts as a duplicate too.
    dedupe_ttl: float | None = None
    #: Without a model, which depends on what is run.
    callback: Callback | None = None
    #: Of the new job. A call from inside a job is one hop further than that job.
    hops: int = 0
    #: The job that made this call, if one did and it is known.
    inside_job: str | None = None
    #: Whether the key is an `Idempotency-Key`: then the same key means the same payload, or a mistake.
    idempotent: bool = False


async def read_submission_options(
    context: OperationContext, door: Source, given: JsonObject
) -> SubmissionOptions:
    """Read it, or raise what is wrong with it. Touches the store only for a call from inside a job."""
    if given.keys() <= _PLAIN:
        return SubmissionOptions(payload=_payload(given), trace_id=make_trace_id(context.rng))
    snapshot = context.snapshot()
    key, ttl = _key(snapshot, door, given)
    caller = await find_calling_job(context, given)
    return SubmissionOptions(
        payload=_payload(given),
        dedupe_key=key,
        dedupe_ttl=None if ttl is None else ttl.total_seconds(),
        callback=_callback(snapshot, given),
        hops=_hops(snapshot, caller),
        trace_id=_trace_of(context.rng, caller, read.optional_text(given, "traceparent")),
        inside_job=None if caller is None else caller.id,
        idempotent=normalise_key(read.optional_text(given, "idempotency_key")) is not None,
    )


def refuse_changed_payload(intake: SubmissionOptions, existing: Job | None) -> None:
    """Refuse an `Idempotency-Key` that was used with another payload.

    A `state_webhook_url` may differ: it is subscribed to the job that is there.
    """
    if not intake.idempotent or existing is None:
        return
    if not json_equal(existing.payload or {}, intake.payload or {}):
        raise RefusedError(
            "this Idempotency-Key was used with another body",
            hint="Use a new key for a new request.",
            details={"job_id": existing.id},
        )


def refuse_without_subscription(answer: Deduplicated) -> None:
    """Refuse a duplicate whose state webhook URL could not be subscribed to the job that is there."""
    if answer.subscribed is False:
        raise RefusedError(
            f"this job has {MAX_SUBSCRIPTIONS} state webhook URLs already; this one was not added",
            hint=f"Ask for its state instead: GET /job/{answer.job_id}",
            details={"job_id": answer.job_id, "field": "state_webhook_url"},
        )


async def refuse_reused_key(
    context: OperationContext, intake: SubmissionOptions, jobs: Iterable[NewJob]
) -> None:
    """As `refuse_other_body`, before anything is enqueued and whatever became of the job with the key.

    A failed one is no duplicate, and the same call runs again; it says all the same what the key was for.
    """
    if not intake.idempotent or intake.dedupe_key is None or intake.dedupe_ttl is None:
        return
    window = timedelta(seconds=intake.dedupe_ttl)
    for job in jobs:
        latest = await context.store.latest_with_key(job.plugin, job.command, intake.dedupe_key)
        if latest is not None and holds_key(latest.completed_at, window=window, now=context.now()):
            refuse_changed_payload(intake, latest)


def callback_of(intake: SubmissionOptions, plugin: PluginInstance | None = None) -> Callback | None:
    """The callback with its model: the payload's, else the one in the plugin's configuration."""
    if intake.callback is None:
        return None
    model = (intake.payload or {}).get("model")
    if not isinstance(model, str) and plugin is not None:
        model = plugin.config.reveal().get("model")
    return replace(intake.callback, model=model if isinstance(model, str) else None)


def refuse_invalid_payload(plugin: PluginInstance, command: str, payload: JsonObject | None) -> None:
    """With `validate_input`, a payload has to fit the command's schema."""
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


def _payload(given: JsonObject) -> JsonObject | None:
    payload = read.optional_object(given, "payload")
    if payload is not None and nests_too_deep(payload):
        raise read.refused("payload", "payload nests too deep")
    return payload


def _key(snapshot: Snapshot, door: Source, given: JsonObject) -> tuple[str | None, timedelta | None]:
    """The key as it is stored, and its own window if it has one."""
    owner = door.owner or door.detail or door.submitted_by
    if (delivery := normalise_key(read.optional_text(given, "delivery_id"))) is not None:
        return namespaced_key(KeyNamespace.DELIVERY, delivery, owner=owner), snapshot.service.dedupe_ttl
    ttl = _window(snapshot, given)
    own = _bounded(normalise_key(read.optional_text(given, "dedupe_key")), "dedupe_key")
    idempotency = _bounded(normalise_key(read.optional_text(given, "idempotency_key")), "Idempotency-Key")
    if idempotency is None:
        return namespaced_key(KeyNamespace.EXPLICIT, own), ttl
    if own is not None:
        raise RefusedError(
            "there are both an Idempotency-Key and a dedupe_key", hint="Send the one that is meant."
        )
    usual = snapshot.service.dedupe_ttl
    return namespaced_key(KeyNamespace.IDEMPOTENCY, idempotency, owner=owner), usual if ttl is None else ttl


def _bounded(key: str | None, name: str) -> str | None:
    if key is not None and len(key) > MAX_KEY_LENGTH:
        raise read.refused(name, f"{name} is longer than {MAX_KEY_LENGTH} characters")
    return key


def _window(snapshot: Snapshot, given: JsonObject) -> timedelta | None:
    """A window that outlasts the jobs it compares with would promise what nobody can keep."""
    ttl = None if given.get("dedupe_ttl") is None else _decode_ttl("dedupe_ttl", given["dedupe_ttl"])
    if ttl is not None and ttl > snapshot.service.job_queue_retention:
        raise read.refused(
            "dedupe_ttl",
            "dedupe_ttl is longer than jobs are remembered",
            "Use a shorter one, or raise service.job_queue_retention.",
        )
    return ttl


def _seconds(count: float) -> timedelta:
    try:
        return timedelta(seconds=count)
    except OverflowError:
        return timedelta.max if count > 0 else timedelta.min


def _callback(snapshot: Snapshot, given: JsonObject) -> Callback | None:
    url = read.optional_text(given, "state_webhook_url")
    wanted = given.get("state_webhook_events")
    chosen = None if wanted is None else _decode_states("state_webhook_events", wanted)
    if url is None:
        if chosen is not None:
            raise read.refused("state_webhook_events", "state_webhook_events needs a state_webhook_url")
        return None
    # The URL may hold a secret of its receiver, so it is not repeated in the error.
    if (fault := url_fault(url, snapshot.state_webhooks.allow)) is not None:
        raise read.refused("state_webhook_url", f"state_webhook_url cannot be used: {fault}")
    return Callback(url=url, events=chosen)


async def find_calling_job(context: OperationContext, given: JsonObject) -> Job | None:
    """The job inside which the call is made, if it says so and there is one."""
    inside = normalise_key(read.optional_text(given, "inside_job"))
    return None if inside is None else await context.store.job(inside)


def _hops(snapshot: Snapshot, caller: Job | None) -> int:
    """A plugin that calls the API from its own job must not be able to go round for ever."""
    hops = 0 if caller is None else caller.hops + 1
    if hops > snapshot.service.max_hops:
        raise RefusedError(
            f"this call comes from a chain of more than {snapshot.service.max_hops} hops",
            hint="Look for a loop, or raise service.max_hops.",
            details={"inside_job": None if caller is None else caller.id},
        )
    return hops


def _trace_of(rng: Random, caller: Job | None, traceparent: str | None) -> str:
    """The job's that made the call, else the caller's own, else a new one."""
    if caller is not None and caller.trace_id is not None:
        return caller.trace_id
    return parse_trace_id(traceparent) or make_trace_id(rng)


def parse_trace_id(traceparent: str | None) -> str | None:
    """The trace id of a W3C `traceparent`; a malformed one counts as absent, as the standard asks."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent is not None else None
    return None if found is None or found["trace"] == _NO_TRACE else found["trace"]
