"""`ductile webhook …`: shows and tests endpoints, shows and resends state webhooks."""

from __future__ import annotations

from ductile.cli.bulk import change_result, single_change_fields
from ductile.cli.client import Document, connect_to_daemon, request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, Argument, Example, Option, action, renders

#: A reload opens a new listener, but does not move an open one to another address.
_NOT_LISTENING = (
    "The daemon runs and does not listen there. If `webhooks` is new, run `ductile apply`; if only "
    "`webhooks.listen` has changed, restart it: ductile system stop, then ductile system start."
)


@renders("list", "list the endpoints: their paths, what they start, how they are signed", "webhook.list")
def list_endpoints(response: Document, console: Console) -> str:
    rows = []
    for row in response["endpoints"]:
        target = f"pipeline {row['pipeline']}" if row["pipeline"] else f"event {row['event']}"
        if row["plugin"]:
            target = f"{row['plugin']} {row['command']}"
        rows.append((row["name"], row["path"], target, row["preset"] or "-", row["signature_header"]))
    if rows:
        table = console.table(("NAME", "PATH", "STARTS", "PRESET", "SIGNATURE"), rows)
        listener = (
            "The daemon listens" if response["loaded"] else "No daemon runs; one that is started listens"
        )
        text = f"{table}\n\n{listener} for them at {response['listen']}."
        for row in response["endpoints"]:
            if (refused := row.get("refused")) is not None:
                last = fmt.local_and_relative_time(refused["last_at"], console)
                requests = fmt.count(refused["count"], "request")
                text += f"\n{row['name']} has refused {requests}, the latest {last}: {refused['why']}"
    elif response["on_disk"] is not None:
        text = "The daemon has no webhooks loaded."
    else:
        text = "There are no webhooks. They are configured under `webhooks.endpoints`."
    if (differences := response["on_disk"]) is None:
        return text
    if differences["error"] is not None:
        return f"{text}\n\nThe configuration on disk cannot be used: `ductile config check` says why."
    changes = [
        f"{word} {', '.join(differences[kind])}"
        for kind, word in (("added", "new"), ("changed", "changed"), ("removed", "removed"))
        if differences[kind]
    ]
    details = f" ({'; '.join(changes)})" if changes else ""
    return f"{text}\n\nThe configuration on disk differs{details}: `ductile apply` puts it in force."


@action(
    "send",
    "send a signed request to an endpoint of this daemon, to test it",
    arguments=(Argument("NAME", "name or path of the endpoint"),),
    options=(
        Option("--payload JSON", "the body: JSON, @FILE, or - for standard input (default {})"),
        Option("--delivery ID", "the delivery's id; the same one again is a redelivery"),
        DRY_RUN,
    ),
    about="Signs the body with the endpoint's secret as its sender would, and posts it to "
    "webhooks.listen. Exit status 0 if it was accepted.",
    examples=(
        Example('ductile webhook send github --payload \'{"action": "opened"}\'', "as its sender would"),
        Example(
            "ductile webhook send github --payload @push.json --delivery try-1",
            "a recorded delivery; sent again, it runs nothing twice",
        ),
    ),
    local_reason=CONFIG_FILES,
)
def send(invocation: Invocation) -> CommandResult:
    """Send the request over HTTP and not over the socket of the daemon, to test the whole path."""
    from ductile.admin.webhook_send import send_request, sign_request
    from ductile.errors import DaemonNotRunningError, Exit

    signed_request = sign_request(
        invocation.config,
        invocation.environ,
        invocation.text("NAME"),
        _body(invocation),
        invocation.optional("delivery"),
    )
    if invocation.switch("dry_run"):
        return CommandResult(
            signed_request.redacted(), f"Would post {len(signed_request.body)} bytes to {signed_request.url}."
        )
    try:
        response = send_request(signed_request)
    except DaemonNotRunningError as error:
        if connect_to_daemon(invocation) is not None:
            error.hint = _NOT_LISTENING
        raise
    text = f"{response['status']}: {response['message']}"
    answer = response.get("answer")
    if isinstance(answer, dict) and answer.get("job_id") is not None:
        text += f", job {answer['job_id']}" + (" (as before)" if answer.get("deduplicated") else "")
    return CommandResult(response, text, Exit.OK if response["accepted"] else Exit.FAILURE)


@renders(
    "deliveries",
    "list the state webhooks that were sent or wait to be, newest first",
    "webhook.deliveries",
    usage={"job_id": "--job JOB"},
    about="Of a receiver's URL only the host is shown: the rest may hold a secret.",
    examples=(Example("ductile webhook deliveries --status dropped", "what never arrived, and why"),),
)
def deliveries(response: Document, console: Console) -> str:
    if not response["deliveries"]:
        return "No state webhooks."
    rows = []
    for row in response["deliveries"]:
        note = row["last_error"] or ""
        if row["status"] == "delivered":
            note = str(row["last_status"])
        elif row["status"] == "pending" and row["attempts"]:
            note = f"{note or 'being sent'}; next try {fmt.relative_time(row['next_attempt_at'], console)}"
        job, created = fmt.short_id(row["job_id"], console), fmt.relative_time(row["created_at"], console)
        attempts = str(row["attempts"])
        rows.append((row["id"], job, row["state"], row["status"], attempts, created, row["url"], note))
    headers = ("DELIVERY", "JOB", "STATE", "STATUS", "TRIES", "CREATED", "TO", "ABOUT")
    table = console.table(headers, rows, optional=("CREATED", "TRIES", "JOB"), wrap_last=True)
    return fmt.with_next_page(table, response)


@action(
    "resend",
    "send a state webhook again, or all that match a filter",
    "webhook.resend_many",
    arguments=(Argument("DELIVERY", "id of the delivery; or filters instead", required=False),),
    usage={"job_id": "--job JOB"},
    about="With the same id and body, and with fresh attempts. Without DELIVERY, those that match every "
    "filter and were dropped or gone, unless --status says otherwise; at least one filter is needed. "
    "--dry-run counts and lists them first.",
    examples=(
        Example("ductile webhook resend --status dropped --since 1d --dry-run", "all that a receiver missed"),
    ),
)
def resend(invocation: Invocation) -> CommandResult:
    if invocation.optional("DELIVERY") is None:
        response = request(invocation, timeout=None)
        return change_result(response, ("Will be sent again:", "Would be sent again:"), _matched_table)
    response = request(
        invocation, "webhook.resend", single_change_fields(invocation, "DELIVERY", "delivery_id")
    )
    outcome = "would be sent again" if response.get("dry_run") else "is sent again as soon as a daemon runs"
    return CommandResult(response, f"{response['state']} of job {response['job_id']} {outcome}.")


def _matched_table(response: Document, console: Console) -> str:
    rows = [
        (
            row["id"],
            row["job_id"],
            row["state"],
            row["status"],
            fmt.relative_time(row["created_at"], console),
            row["url"],
            row["last_error"] or "",
        )
        for row in response["deliveries"]
    ]
    headers = ("DELIVERY", "JOB", "STATE", "STATUS", "CREATED", "TO", "ABOUT")
    return console.table(headers, rows, optional=("CREATED", "JOB")) if rows else ""


def _body(invocation: Invocation) -> bytes:
    """Return the body unchanged: a signature covers bytes, and a test may need a body that is not JSON."""
    payload = invocation.optional("payload")
    if payload is None:
        return b"{}"
    if payload == "-":
        import sys

        return sys.stdin.buffer.read()
    if not payload.startswith("@"):
        return payload.encode()
    from pathlib import Path

    from ductile.errors import UsageError

    try:
        return Path(payload[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--payload: {payload[1:]} cannot be read: {error.strerror}") from None
