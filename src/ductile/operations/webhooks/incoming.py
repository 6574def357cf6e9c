"""Incoming webhooks: verify a signed request, and submit the job, run or event of its endpoint."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ductile.config.secrets import looks_secret
from ductile.config.snapshot import PipelineTarget, PluginTarget, PublishTarget, WebhookEndpoint
from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import JobStatus, SubmittedBy
from ductile.core.json import JsonObject, JsonValue, nests_too_deep
from ductile.core.webhooks.signatures import (
    SignatureForm,
    SignatureScheme,
    delivery_id,
    explain_bad_signature,
    verify_signature,
)
from ductile.errors import DeniedError, RefusedError
from ductile.operations.context import OperationContext, Source
from ductile.operations.response import from_record
from ductile.operations.submission import RunCommand, submit_job
from ductile.protocol.manifest.model import ExecutionMode
from ductile.struct import Value, replace

#: Words in names of headers that carry credentials; `_CREDENTIAL_PARTS` also inside longer words.
_CREDENTIAL_WORDS = frozenset(("auth", "authentication", "session", "csrf", "xsrf", "dpop"))
_CREDENTIAL_PARTS = ("signature", "token", "secret", "hmac", "oidc", "cert")
#: Words that make a `...-key` a credential: `x-functions-key` is one, `idempotency-key` is not.
_SECRET_KEYS = frozenset(("function", "functions", "hook", "shared", "subscription", "webhook"))


class InvalidSignatureError(DeniedError):
    """The sender gets the same message for every cause; `why` is for our log."""

    def __init__(self, why: str) -> None:
        super().__init__("denied")
        self.why = why


class WebhookReceived(Value):
    """The response to a sender, with fields of the job, run or event that was started."""

    message: str
    job_id: str | UnsetType | None = UNSET
    status: JobStatus | UnsetType = UNSET
    deduplicated: Any = UNSET
    execution_mode: ExecutionMode | UnsetType = UNSET
    plugin: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    pipeline: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    started: Any = UNSET
    dropped: Any = UNSET
    #: The text that Slack expects in the response when it checks the URL.
    challenge: Any = UNSET


async def receive_webhook(
    context: OperationContext, endpoint: WebhookEndpoint, headers: dict[str, str], body: bytes
) -> WebhookReceived:
    """Verify a request and submit what the endpoint starts. `headers` have lower-case names.

    Raises `InvalidSignatureError`, which does not tell the sender the cause.
    """
    scheme = endpoint.scheme
    now = context.now()
    check_signature(endpoint, headers, body, now)
    payload = payload_from_body(body)
    if scheme.form is SignatureForm.SLACK and payload.get("type") == "url_verification":
        return WebhookReceived(message="verified", challenge=payload.get("challenge"))
    delivery = delivery_id(scheme, headers, body, payload)
    plugin_headers = safe_headers(headers, scheme)
    # Delivery ids belong to the path: a name can be given to another endpoint, with another sender.
    source = Source(submitted_by=SubmittedBy.WEBHOOK, detail=endpoint.name, key_owner=endpoint.path)
    context = replace(context, source=source)
    event_type = f"webhook.{endpoint.name}"
    fields: dict[str, Any] = {"delivery_id": delivery, "traceparent": headers.get("traceparent")}
    match endpoint.target:
        case PluginTarget(plugin=plugin, command=command):
            event = NewEvent(
                id=make_id(now, context.rng),
                type=event_type,
                source="webhook",
                payload=payload,
                headers=plugin_headers,
                dedupe_key=delivery,
            )
            job = await submit_job(context, RunCommand(plugin=plugin, command=command, **fields), event)
            left_out = dict.fromkeys(("execution_mode", "plugin", "command"), UNSET)
            return from_record(WebhookReceived, job, message="accepted", **left_out)
        case PipelineTarget(pipeline=pipeline):
            from ductile.operations.runs.start import RunPipeline, run_pipeline  # noqa: PLC0415 - not every endpoint

            fields |= {"payload": payload, "headers": plugin_headers, "event_type": event_type}
            try:
                run = await run_pipeline(context, RunPipeline(pipeline=pipeline, **fields))
            except RefusedError as refused:
                if "explanation" not in refused.details:
                    raise
                # The pipeline's own `if` is false. The sender did nothing wrong, and should not send again.
                return WebhookReceived(message=refused.message, job_id=None)
            return from_record(WebhookReceived, run, message="accepted")
        case PublishTarget(event_type=published_type):
            from ductile.operations.runs.publish import PublishEvent, publish_event  # noqa: PLC0415 - as above

            fields |= {"payload": payload, "headers": plugin_headers, "type": published_type}
            published = await publish_event(context, PublishEvent(**fields))
            # An event may start several jobs or none; a sender that reads one id gets the first.
            received = from_record(WebhookReceived, published, message="accepted")
            job_ids = (job.job_id for job in (*received.started, *received.deduplicated))
            return replace(received, job_id=next(job_ids, None))


def check_signature(endpoint: WebhookEndpoint, headers: dict[str, str], body: bytes, now: datetime) -> None:
    """Raise `InvalidSignatureError` if a request does not come from a holder of the endpoint's secret."""
    if not verify_signature(endpoint.scheme, endpoint.secret.reveal(), headers, body, now):
        raise InvalidSignatureError(explain_bad_signature(endpoint.scheme, headers, now))


def payload_from_body(body: bytes) -> JsonObject:
    """Return a JSON object as it is; any other JSON, text or bytes under `body`."""
    try:
        value: JsonValue = msgspec.json.decode(body)
        if not nests_too_deep(value):
            return value if isinstance(value, dict) else {"body": value}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": b64encode(body).decode(), "encoding": "base64"}


def safe_headers(headers: dict[str, str], scheme: SignatureScheme) -> dict[str, str]:
    """Return the headers that a plugin may see: no credentials, no signature."""
    return {
        name: value for name, value in headers.items() if name != scheme.header and not _is_credential(name)
    }


@lru_cache(maxsize=256)
def _is_credential(header: str) -> bool:
    """Return whether a header carries a credential. The words of its name decide: `x-secret-header` does.

    Cached: signed requests have the same few headers.
    """
    *owners, last = header.removeprefix("x-").split("-")
    words = (*owners, last)
    return (
        looks_secret(header)
        or any(part in header for part in _CREDENTIAL_PARTS)
        or not _CREDENTIAL_WORDS.isdisjoint(words)
        or any(looks_secret(word) for word in words if word != "key")
        or (last == "key" and (not owners or not _SECRET_KEYS.isdisjoint(owners)))
    )
