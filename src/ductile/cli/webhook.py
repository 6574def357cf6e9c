"""`ductile webhook …`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.cli.client import Document, connect_to_daemon, request
from ductile.cli.console.format import format_time
from ductile.cli.invocation import CommandResult, Invocation
from ductile.errors import DaemonNotRunningError, Exit, UsageError

if TYPE_CHECKING:
    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject

#: A reload opens a listener, and does not move one that is open.
_ELSEWHERE = (
    "The daemon runs and does not listen there. If `webhooks` is new, run `ductile reload`; if only "
    "`webhooks.listen` has changed, restart it: ductile system stop, then ductile system start."
)


def list_all(call: Invocation) -> CommandResult:
    found = request(call, "webhook.list", {})
    return CommandResult(data=found, text=lambda screen: _list_text(found, screen))


def send(call: Invocation) -> CommandResult:
    """Signed here and sent by HTTP: what is tried is the whole way, not a short cut through the socket."""
    from ductile.admin.webhook_send import send_request, sign_request  # noqa: PLC0415 - only this one needs it

    trial = sign_request(call.config, call.environ, call.text("NAME"), _body(call), call.optional("delivery"))
    if call.switch("dry_run"):
        shown = trial.shown() | {"dry_run": True}
        return CommandResult(data=shown, text=lambda _: f"Would post {len(trial.body)} bytes to {trial.url}.")
    try:
        done = send_request(trial)
    except DaemonNotRunningError as silent:
        if connect_to_daemon(call) is not None:
            silent.hint = _ELSEWHERE
        raise
    accepted = bool(done["accepted"])
    return CommandResult(
        data=done,
        text=lambda _: _sent_text(done),
        exit_status=Exit.OK if accepted else Exit.FAILURE,
    )


def _sent_text(done: JsonObject) -> str:
    """What the listener answered; if that is a job, which one, and whether it was there before."""
    told = f"{done['status']}: {done['message']}"
    answer = done.get("answer")
    if not isinstance(answer, dict) or answer.get("job_id") is None:
        return told
    return f"{told}, job {answer['job_id']}" + (" (as before)" if answer.get("deduplicated") else "")


def deliveries(call: Invocation) -> CommandResult:
    found = request(
        call,
        "webhook.deliveries",
        {
            "job_id": call.optional("job"),
            "status": call.optional("status"),
            "limit": call.number("limit"),
            "cursor": call.optional("cursor"),
        },
    )
    return CommandResult(data=found, text=lambda screen: _deliveries_text(found, screen))


def resend(call: Invocation) -> CommandResult:
    given: JsonObject = {"delivery_id": call.text("DELIVERY"), "dry_run": call.switch("dry_run")}
    done = request(call, "webhook.resend", given)
    what = "would be sent again" if done.get("dry_run") else "is sent again as soon as a daemon runs"
    return CommandResult(data=done, text=lambda _: f"{done['state']} of job {done['job_id']} {what}.")


def _body(call: Invocation) -> bytes:
    """As it is: what is signed is bytes, and a test may well want bad ones."""
    said = call.optional("payload")
    if said is None:
        return b"{}"
    if said == "-":
        return sys.stdin.buffer.read()
    if not said.startswith("@"):
        return said.encode()
    try:
        return Path(said[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--payload: {said[1:]} cannot be read: {error.strerror}") from None


def _list_text(found: Document, screen: Console) -> str:
    parts = [_endpoints_text(found, screen), _on_disk_text(found["on_disk"])]
    return "\n\n".join(part for part in parts if part)


def _endpoints_text(found: Document, screen: Console) -> str:
    if not found["endpoints"]:
        if found["on_disk"] is not None:
            return "The daemon has no webhooks loaded."
        return "There are no webhooks. They are configured under `webhooks.endpoints`."
    rows = [
        (row["name"], row["path"], _target(row), row["preset"] or "-", row["signature_header"])
        for row in found["endpoints"]
    ]
    table = screen.table(("NAME", "PATH", "STARTS", "PRESET", "SIGNATURE"), rows)
    where = "The daemon listens" if found["loaded"] else "No daemon runs; one that is started listens"
    return f"{table}\n\n{where} for them at {found['listen']}."


def _on_disk_text(differences: Document | None) -> str:
    """What is in the configuration and not in force: a list that hides it makes people look elsewhere."""
    if differences is None:
        return ""
    if differences["error"] is not None:
        return "The configuration on disk cannot be used: `ductile config check` says why."
    changes = [
        f"{word} {', '.join(differences[kind])}"
        for kind, word in (("added", "new"), ("changed", "changed"), ("removed", "removed"))
        if differences[kind]
    ]
    what = f" ({'; '.join(changes)})" if changes else ""
    return f"The configuration on disk differs{what}: `ductile reload` puts it in force."


def _target(row: Document) -> str:
    if row["plugin"]:
        return f"{row['plugin']} {row['command']}"
    return f"pipeline {row['pipeline']}" if row["pipeline"] else f"event {row['event']}"


def _deliveries_text(found: Document, screen: Console) -> str:
    if not found["deliveries"]:
        return "No state webhooks."
    rows = [
        (
            row["id"],
            row["job_id"],
            row["state"],
            row["status"],
            str(row["attempts"]),
            format_time(row["created_at"]),
            row["url"],
            _about(row),
        )
        for row in found["deliveries"]
    ]
    table = screen.table(
        ("DELIVERY", "JOB", "STATE", "STATUS", "TRIES", "CREATED", "TO", "ABOUT"),
        rows,
        spare=("CREATED", "TRIES", "JOB"),
        prose=True,
    )
    more = found["next_cursor"]
    return f"{table}\n\nThere are more: --cursor {more}" if more else table


def _about(row: Document) -> str:
    if row["status"] == "delivered":
        return str(row["last_status"])
    if row["status"] == "pending" and row["attempts"]:
        return f"{row['last_error'] or 'being sent'}; next try {format_time(row['next_attempt_at'])}"
    return row["last_error"] or ""
