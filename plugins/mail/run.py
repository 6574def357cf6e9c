#!/usr/bin/env python3
"""The mail plugin: each new message of a mailbox becomes an event, and messages are sent."""

from __future__ import annotations

import json
import smtplib
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_http import before_deadline
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from ductile_settings import read_number, read_text
from inbox import (
    FLAGS,
    MAX_RECENT,
    Folder,
    Mail,
    Position,
    fetched,
    first_position,
    new_uids,
    read_position,
    renumbered,
)
from messages import parse, save
from outgoing import compose, identity, read_sender
from servers import Server, imap_connection, read_server, said, smtp_connection

#: Less than an answer may hold; the rest is emitted by the next poll.
MAX_EVENT_BYTES = 4_000_000
#: Ids of messages that were sent.
REMEMBERED = 500
PERMANENT = range(500, 600)

plugin = Plugin()


class Reading(NamedTuple):
    """What the configuration says about reading, checked."""

    server: Server
    folder: str
    initial: bool
    max_messages: int
    max_bytes: int
    save_to: Path | None
    mark: str | None
    move_to: str | None

    @property
    def mailbox(self) -> str:
        return f"{self.server.user}@{self.server.host}:{self.server.port}/{self.folder}"

    @property
    def changes(self) -> bool:
        return self.mark is not None or self.move_to is not None


@plugin.command
def poll(request: Request) -> str:
    settings = read_reading(request.config)
    with before_deadline(request), imap_connection(settings.server) as box:
        folder = Folder(box, settings.folder, readonly=not settings.changes)
        position = read_position(request.state, settings.mailbox)
        if position is None:
            position = first_position(folder, settings.mailbox, initial=settings.initial)
        elif position.validity != folder.validity:
            request.log(f"{settings.folder} was numbered anew by its server; looking for what is new", "warn")
            position = renumbered(position, folder.validity)
        finish(folder, position, settings)
        uids = new_uids(folder, position)
        after, count = emit_new(request, folder, position, uids, settings)
    request.remember(**after.as_state())
    left = sum(uid > after.last_uid for uid in uids)
    return f"{count} new" + (f", {left} left for the next poll" if left else "")


@plugin.command
def send(request: Request) -> dict[str, Any]:
    sent = [each for each in request.state.get("sent") or [] if isinstance(each, str)]
    outgoing = compose(request)
    if identity(request) in sent:
        return {"message_id": outgoing.message_id, "accepted": [], "refused": {}, "sent_before": True}
    with (
        before_deadline(request),
        smtp_connection(read_server(request.config, "smtp", timeout(request))) as server,
    ):
        try:
            refused = server.send_message(outgoing.message, outgoing.sender, outgoing.recipients)
        except smtplib.SMTPRecipientsRefused as error:
            raise all_refused(error.recipients) from None
        except smtplib.SMTPNotSupportedError as error:
            raise Failure(f"the server cannot send this: {error}", retry=False) from None
    # Others have it: a retry would send it to them again, so these are only reported.
    reasons = {address: f"{code} {said(text)}" for address, (code, text) in refused.items()}
    for address, reason in reasons.items():
        request.log(f"{address} was refused: {reason}", "error")
    request.remember(sent=[*sent, identity(request)][-REMEMBERED:])
    accepted = [address for address in outgoing.recipients if address not in reasons]
    return {"message_id": outgoing.message_id, "accepted": accepted, "refused": reasons}


@plugin.command
def handle(request: Request) -> dict[str, Any]:
    return send(request)


@plugin.command
def health(request: Request) -> str:
    """Log in to what is configured."""
    checked = []
    with before_deadline(request):
        if "imap" in request.config:
            settings = read_reading(request.config)
            with imap_connection(settings.server) as box:
                Folder(box, settings.folder, readonly=True)
            checked.append("IMAP")
        if "smtp" in request.config:
            read_sender(request.config)
            with smtp_connection(read_server(request.config, "smtp", timeout(request))):
                checked.append("SMTP")
    if not checked:
        raise ConfigFailure("the plugin's config has neither `imap` nor `smtp`")
    return f"healthy: {' and '.join(checked)}"


def finish(folder: Folder, position: Position, settings: Reading) -> None:
    """Mark and move what an earlier poll emitted: its events are stored by now."""
    if not position.pending:
        return
    if settings.mark is not None:
        folder.mark(position.pending, settings.mark)
    if settings.move_to is not None:
        folder.move(position.pending, settings.move_to)


def emit_new(
    request: Request, folder: Folder, position: Position, uids: list[int], settings: Reading
) -> tuple[Position, int]:
    """Emit messages up to the limits, oldest first. Returns the position after them, and how many."""
    recent, pending, last, size, count = list(position.recent), [], position.last_uid, 0, 0
    for uid, mail in fetched(folder, uids, settings.max_bytes):
        last = uid
        if mail is None or mail.fingerprint in recent:
            continue
        size += emit(request, mail, position.validity, settings)
        recent.append(mail.fingerprint)
        pending.append(uid)
        count += 1
        if count >= settings.max_messages or size >= MAX_EVENT_BYTES:
            break
    complete = not uids or last == uids[-1]
    after = position._replace(
        last_uid=last,
        pending=pending if settings.changes else [],
        recent=recent[-MAX_RECENT:],
        polled_at=time.time() if complete else position.polled_at,
        since=None if complete else position.since,
    )
    return after, count


def emit(request: Request, mail: Mail, validity: int | None, settings: Reading) -> int:
    """Emit a message and return the size of its event."""
    fields, found = parse(mail.raw)
    described = []
    for number, attachment in enumerate(found, 1):
        about = attachment.describe()
        if settings.save_to is not None:
            path = save(attachment, settings.save_to / f"{validity}-{mail.uid}", number)
            about["path"] = str(path)
            request.attach(f"{mail.uid}-{path.name}", path=str(path), media_type=attachment.media_type)
        described.append(about)
    payload = {
        "uid": mail.uid,
        "folder": settings.folder,
        **fields,
        "attachments": described,
        "size": mail.size,
        "truncated": mail.truncated,
    }
    # The numbers of the server, since the sender chooses the Message-ID: with one that was used before a
    # message would be taken for a repetition.
    request.emit("mail.received", payload, dedupe_key=f"mail:{settings.mailbox}:{validity}:{mail.uid}"[:1024])
    return len(json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace"))


def all_refused(recipients: dict[str, tuple[int, bytes]]) -> Failure:
    text = "; ".join(f"{address}: {code} {said(reason)}" for address, (code, reason) in recipients.items())
    permanent = all(code in PERMANENT for code, _ in recipients.values())
    return Failure(f"every recipient was refused: {text}"[:1000], retry=not permanent)


def timeout(request: Request) -> float:
    return read_number(request.config, "timeout", 30)


def read_reading(config: dict[str, Any]) -> Reading:
    server = read_server(config, "imap", read_number(config, "timeout", 30))
    save_to, mark = read_text(config, "save_attachments_to"), read_text(config, "mark")
    if save_to is not None and not Path(save_to).is_absolute():
        raise ConfigFailure("`save_attachments_to` in the plugin's config has to be an absolute path")
    if mark is not None and mark not in FLAGS:
        raise ConfigFailure(f"`mark` in the plugin's config has to be one of {', '.join(FLAGS)}")
    return Reading(
        server=server,
        folder=read_text(config["imap"], "folder", "INBOX") or "INBOX",
        initial=config.get("initial") is True,
        max_messages=int(read_number(config, "max_messages", 50)),
        max_bytes=int(read_number(config, "max_bytes", 10_000_000)),
        save_to=None if save_to is None else Path(save_to),
        mark=mark,
        move_to=read_text(config, "move_to"),
    )


plugin.run()
