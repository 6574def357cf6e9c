"""Webhooks: taking in what others send, and what became of the state webhooks that we send."""

from __future__ import annotations

import asyncio
from functools import lru_cache

import msgspec

from ductile.config.secrets import looks_secret
from ductile.config.snapshot import EventTarget, PipelineTarget, PluginTarget, Snapshot, WebhookEndpoint
from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import SubmittedBy
from ductile.core.json import JsonObject, JsonValue, nests_too_deep
from ductile.core.suggest import did_you_mean
from ductile.core.webhooks.signatures import (
    SignatureForm,
    SignatureScheme,
    delivery_id,
    explain_bad_signature,
    verify_signature,
)
from ductile.core.webhooks.url_policy import redact_url
from ductile.errors import ConfigError, ConflictError, DeniedError, NotFoundError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant
from ductile.operations.jobs.submit import submit
from ductile.operations.submission import Source
from ductile.store.model.deliveries import Delivery, DeliveryStatus
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE

_SOURCE = "webhook"
#: Words in the names of headers that carry proofs, also inside of longer words, and before `key` those of the
#: keys that are one: `x-functions-key` is, Bitbucket's `x-event-key` and `idempotency-key` are not.
_PROOFS = frozenset(("auth", "authentication", "session", "csrf", "xsrf", "dpop"))
_INSIDE = ("signature", "token", "secret", "hmac", "oidc", "cert")
_KEYRINGS = frozenset(("function", "functions", "hook", "shared", "subscription", "webhook"))


class InvalidSignatureError(DeniedError):
    """What its sender is told is the same for all; `why` is for our own log."""

    def __init__(self, why: str) -> None:
        super().__init__("denied")
        self.why = why


def find_endpoint(snapshot: Snapshot, path: str) -> WebhookEndpoint:
    for endpoint in snapshot.webhooks:
        if endpoint.path == path:
            return endpoint
    raise NotFoundError("there is no webhook at this path")


async def receive(
    context: OperationContext, endpoint: WebhookEndpoint, headers: dict[str, str], body: bytes
) -> JsonObject:
    """Verify a request and put what it is about on the queue. `headers` have lower-case names.

    Who is not genuine learns nothing, not even why.
    """
    scheme = endpoint.scheme
    now = context.now()
    if not verify_signature(scheme, endpoint.secret.reveal(), headers, body, now):
        raise InvalidSignatureError(explain_bad_signature(scheme, headers, now))
    payload = payload_from_body(body)
    if scheme.form is SignatureForm.SLACK and payload.get("type") == "url_verification":
        return {"challenge": payload.get("challenge"), "message": "verified"}
    given: JsonObject = {}
    if (delivery := delivery_id(scheme, headers, body, payload)) is not None:
        given["delivery_id"] = delivery
    if "traceparent" in headers:
        given["traceparent"] = headers["traceparent"]
    shown = safe_headers(headers, scheme)
    # Ids of deliveries are the path's: a name can be given to another endpoint, with another sender.
    door = Source(submitted_by=SubmittedBy.WEBHOOK, detail=endpoint.name, owner=endpoint.path)
    event_type = f"webhook.{endpoint.name}"
    match endpoint.target:
        case PluginTarget(plugin=plugin, command=command):
            event = NewEvent(
                id=make_id(now, context.rng),
                type=event_type,
                source=_SOURCE,
                payload=payload,
                headers=shown,
                dedupe_key=delivery,
            )
            given["plugin"], given["command"] = plugin, command
            answer = await submit(context, door, given, event)
            told = {name: answer[name] for name in ("job_id", "status", "deduplicated")}
            return {**told, "message": "accepted"}
        case PipelineTarget(pipeline=pipeline):
            given |= {"payload": payload, "event_type": event_type, "headers": dict(shown)}
            return await _start_pipeline(context, door, given | {"pipeline": pipeline, "async": True})
        case EventTarget(event_type=kind):
            given |= {"payload": payload, "headers": dict(shown)}
            return await _publish(context, door, given | {"type": kind})


def payload_from_body(body: bytes) -> JsonObject:
    """A JSON object as it is; any other JSON, text or bytes under `body`."""
    try:
        value: JsonValue = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _text(body)
    if nests_too_deep(value):
        return _text(body)
    return value if isinstance(value, dict) else {"body": value}


def _text(body: bytes) -> JsonObject:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode  # noqa: PLC0415 - hardly anybody sends bytes

        return {"body": b64encode(body).decode(), "encoding": "base64"}


def safe_headers(headers: dict[str, str], scheme: SignatureScheme) -> dict[str, str]:
    """The headers that a plugin may see: no credentials, no signature."""
    return {name: value for name, value in headers.items() if name != scheme.header and _is_harmless(name)}


@lru_cache(maxsize=256)
def _is_harmless(header: str) -> bool:
    """Remembered: what signed calls are sent with hardly varies."""
    return not _tells_who(header) and not looks_secret(header)


def _tells_who(header: str) -> bool:
    """Whether a header is there to prove something: headers say so in more ways than settings do. How the
    name ends does not matter: what `x-secret-header` holds is the secret.
    """
    *owners, last = header.removeprefix("x-").split("-")
    return (
        any(part in header for part in _INSIDE)
        or not _PROOFS.isdisjoint((*owners, last))
        or any(looks_secret(word) for word in (*owners, last) if word != "key")
        or (last == "key" and (not owners or not _KEYRINGS.isdisjoint(owners)))
    )


async def _start_pipeline(context: OperationContext, door: Source, given: JsonObject) -> JsonObject:
    from ductile.operations.runs.start import start_pipeline  # noqa: PLC0415 - only where an endpoint starts one

    try:
        answer = await start_pipeline(context, door, given)
    except RefusedError as refused:
        if "explanation" not in refused.details:
            raise
        # The pipeline's own `if` is not for this one. Its sender did nothing wrong, and should not try again.
        return {"job_id": None, "message": refused.message}
    return {"message": "accepted", **answer.body}


async def _publish(context: OperationContext, door: Source, given: JsonObject) -> JsonObject:
    from ductile.operations.runs.start import publish_event  # noqa: PLC0415 - only where an endpoint publishes

    answer = await publish_event(context, door, given)
    return {"message": "accepted", "job_id": _first_job(answer), **answer}


def _first_job(answer: JsonObject) -> JsonValue:
    """An event may start several jobs or none; a sender that wants one id gets the first."""
    for listed in answer.values():
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict) and "job_id" in entry:
                return entry["job_id"]
    return None


# ----------------------------------------------------------------------------------- for operators


async def list_webhooks(context: OperationContext, _given: JsonObject) -> JsonObject:
    """The endpoints in force; with a daemon, also how those of the configuration on disk differ."""
    snapshot = context.snapshot()
    return {
        "loaded": context.engine is not None,
        "listen": snapshot.webhooks_listen if snapshot.webhooks_enabled else None,
        "endpoints": [_shown_endpoint(endpoint) for endpoint in snapshot.webhooks],
        "on_disk": await _differences_on_disk(context, snapshot),
    }


async def _differences_on_disk(context: OperationContext, in_force: Snapshot) -> JsonObject | None:
    """What a reload would change about the endpoints; None if nothing."""
    if context.load is None:
        return None
    try:
        new = await asyncio.to_thread(context.load)
    except ConfigError as error:
        return {"added": [], "changed": [], "removed": [], "error": error.message}
    before = {endpoint.name: endpoint for endpoint in in_force.webhooks}
    after = {endpoint.name: endpoint for endpoint in new.webhooks}
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    changed = sorted(name for name in after.keys() & before.keys() if after[name] != before[name])
    if not (added or removed or changed) and new.webhooks_enabled == in_force.webhooks_enabled:
        return None
    return {"added": [*added], "changed": [*changed], "removed": [*removed], "error": None}


def _shown_endpoint(endpoint: WebhookEndpoint) -> JsonObject:
    target: JsonObject = {"plugin": None, "command": None, "pipeline": None, "event": None}
    match endpoint.target:
        case PluginTarget(plugin=plugin, command=command):
            target |= {"plugin": plugin, "command": command}
        case PipelineTarget(pipeline=pipeline):
            target |= {"pipeline": pipeline}
        case EventTarget(event_type=event_type):
            target |= {"event": event_type}
    return {
        "name": endpoint.name,
        "path": endpoint.path,
        **target,
        "preset": endpoint.preset,
        "signature_header": endpoint.scheme.header,
        "delivery_header": endpoint.scheme.delivery_header,
        "max_body_size": endpoint.max_body_size,
    }


def named_endpoint(snapshot: Snapshot, name: str) -> WebhookEndpoint:
    for endpoint in snapshot.webhooks:
        if name in (endpoint.name, endpoint.path):
            return endpoint
    known = [endpoint.name for endpoint in snapshot.webhooks]
    raise NotFoundError(f"there is no webhook {name}", hint=did_you_mean(name, known))


async def list_deliveries(context: OperationContext, given: JsonObject) -> JsonObject:
    page = await context.store.deliveries(
        job_id=read.optional_text(given, "job_id"),
        status=read.optional_word(given, "status", DeliveryStatus),
        limit=read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE),
        cursor=read.optional_text(given, "cursor"),
    )
    return {"deliveries": [shown_delivery(row) for row in page.rows], "next_cursor": page.next_cursor}


def shown_delivery(delivery: Delivery) -> JsonObject:
    """Without its body, which is as large as a result, and with no more of its URL than the host."""
    return {
        "id": delivery.id,
        "job_id": delivery.job_id,
        "sequence": delivery.sequence,
        "state": delivery.state,
        "url": redact_url(delivery.url),
        "status": delivery.status,
        "attempts": delivery.attempts,
        "next_attempt_at": instant(delivery.next_attempt_at),
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        "created_at": instant(delivery.created_at),
        "completed_at": instant(delivery.completed_at),
    }


async def resend_delivery(context: OperationContext, given: JsonObject) -> JsonObject:
    """Make a delivery that is over due again, as it was. One that is pending is sent anyway."""
    wanted = read.text(given, "delivery_id")
    found = await context.store.delivery(wanted)
    if found is None:
        raise NotFoundError(f"there is no delivery {wanted}", hint="ductile webhook deliveries lists them.")
    if found.status is DeliveryStatus.PENDING:
        raise ConflictError("the delivery is pending: it will be sent anyway")
    if read.flag(given, "dry_run"):
        return {"id": found.id, "job_id": found.job_id, "state": found.state, "dry_run": True}
    await context.store.resend(found.id)
    return {"id": found.id, "job_id": found.job_id, "state": found.state}
