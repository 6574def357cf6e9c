"""Messages to send. No text of a payload can add a header or a recipient: line breaks are refused."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import time
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, getaddresses
from pathlib import Path
from typing import Any, NamedTuple

from ductile_sdk import ConfigFailure, Failure, Request

#: Where a text may stand in the payload of an event that was not made for this plugin.
TEXTS = ("text", "message", "body", "result")
MAX_ATTACHED = 25_000_000
MAX_RECIPIENTS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")
_ADDRESS = re.compile(r"[^\s<>()\[\]\\,;:@\"]+@[^\s<>()\[\]\\,;:@\"]+")
_MESSAGE_ID = re.compile(r"<[!-;=?-~]+>")


class Outgoing(NamedTuple):
    message: EmailMessage
    sender: str
    recipients: list[str]
    message_id: str


def compose(request: Request) -> Outgoing:
    """Return the message of the payload. Failure names what is wrong in it."""
    payload, config = request.payload, request.config
    sender = read_sender(config)
    to = read_addresses(payload.get("to") or config.get("to"), "to")
    cc = read_addresses(payload.get("cc"), "cc")
    if not to:
        raise Failure("`to` is missing: give it in the payload or in the plugin's config", retry=False)
    recipients = list(dict.fromkeys(address.addr_spec for address in (*to, *cc)))
    check_recipients(recipients, config)
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = to
    if cc:
        message["Cc"] = cc
    message["Subject"] = one_line(
        payload.get("subject") or payload.get("title") or config.get("subject"), "subject"
    )
    message["Date"] = formatdate(time.time())
    message["Message-ID"] = message_id = message_id_of(request, sender)
    # Programs that answer by themselves leave such messages alone.
    message["Auto-Submitted"] = "auto-generated"
    add_references(message, payload)
    add_content(message, payload)
    add_attachments(message, payload.get("attachments") or [], config)
    return Outgoing(message, sender.addr_spec, recipients, message_id)


def identity(request: Request) -> str:
    """The same for every attempt of the job, and for every payload with the same `id`."""
    return str(request.payload.get("id") or request.job_id)


def message_id_of(request: Request, sender: Address) -> str:
    digest = hashlib.sha256(f"{request.instance}\0{identity(request)}".encode()).hexdigest()[:40]
    try:
        domain = sender.domain.encode("idna").decode()
    except UnicodeError:
        domain = "localhost"
    return f"<{digest}@{domain}>"


def read_sender(config: dict[str, Any]) -> Address:
    try:
        found = read_addresses(config.get("from"), "from")
    except Failure as failure:
        raise ConfigFailure(f"{failure}, in the plugin's config") from None
    if len(found) != 1:
        raise ConfigFailure("`from` in the plugin's config has to be one address")
    return found[0]


def read_addresses(given: Any, name: str) -> list[Address]:
    """Addresses in a text or a list of texts, such as `Ada <ada@example.org>`."""
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Failure(f"`{name}` has to be an address or a list of addresses", retry=False)
    texts = [one_line(text, name) for text in texts]
    pairs = [pair for text in texts for pair in (getaddresses([text]) if text else [])]
    if len(pairs) > MAX_RECIPIENTS:
        raise Failure(f"`{name}` has more than {MAX_RECIPIENTS} addresses", retry=False)
    return [read_address(shown, address, name) for shown, address in pairs]


def read_address(shown: str, address: str, name: str) -> Address:
    if not _ADDRESS.fullmatch(address):
        raise Failure(f"`{name}` has something that is no address: {address or shown!r}", retry=False)
    try:
        return Address(display_name=shown, addr_spec=address)
    except (ValueError, IndexError) as error:
        raise Failure(f"`{name}`: {address!r} is no address: {error}", retry=False) from None


def check_recipients(recipients: list[str], config: dict[str, Any]) -> None:
    allowed = config.get("allow_to")
    if allowed is None:
        return
    if not isinstance(allowed, list):
        raise ConfigFailure("`allow_to` in the plugin's config has to be a list of addresses and @domains")
    known = {str(each).lower() for each in allowed}
    for address in (each.lower() for each in recipients):
        if address not in known and "@" + address.rpartition("@")[2] not in known:
            raise Failure(f"{address} is not among `allow_to` in the plugin's config", retry=False)


def one_line(value: Any, name: str) -> str:
    """A header's value. A line break would begin another header, so it is refused rather than removed."""
    text = "" if value is None else str(value)
    if _CONTROL.search(text):
        raise Failure(f"`{name}` has a line break or a control character in it", retry=False)
    return text


def add_references(message: EmailMessage, payload: dict[str, Any]) -> None:
    answers = read_addresses(payload.get("reply_to"), "reply_to")
    if answers:
        message["Reply-To"] = answers
    given = payload.get("in_reply_to")
    if given is None:
        return
    if not isinstance(given, str) or not _MESSAGE_ID.fullmatch(given.strip()):
        raise Failure("`in_reply_to` has to be a Message-ID, such as <a@example.org>", retry=False)
    message["In-Reply-To"] = message["References"] = given.strip()


def add_content(message: EmailMessage, payload: dict[str, Any]) -> None:
    found = (payload.get(name) for name in TEXTS)
    text = next((each for each in found if isinstance(each, str) and each.strip()), None)
    html = payload.get("html")
    if text is None and not isinstance(html, str):
        raise Failure("there is nothing to send: the payload has neither `text` nor `html`", retry=False)
    if text is not None:
        message.set_content(clean_text(text))
    if isinstance(html, str) and text is not None:
        message.add_alternative(clean_text(html), subtype="html")
    elif isinstance(html, str):
        message.set_content(clean_text(html), subtype="html")


def clean_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def add_attachments(message: EmailMessage, given: Any, config: dict[str, Any]) -> None:
    if not isinstance(given, list):
        raise Failure("`attachments` has to be a list", retry=False)
    total = 0
    for entry in given:
        item = {"path": entry} if isinstance(entry, str) else entry
        if not isinstance(item, dict) or not isinstance(item.get("path"), str):
            raise Failure("`attachments` has to have paths, or objects with `path` and `name`", retry=False)
        content = read_attached(item["path"], config)
        total += len(content)
        if total > MAX_ATTACHED:
            raise Failure(f"the attachments have more than {MAX_ATTACHED} bytes", retry=False)
        name = one_line(item.get("name") or Path(item["path"]).name, "attachments")
        kind = (mimetypes.guess_type(name)[0] or "application/octet-stream").split("/")
        if kind[0] in ("message", "multipart"):  # these may not be encoded, and bytes have to be
            kind = ["application", "octet-stream"]
        message.add_attachment(content, maintype=kind[0], subtype=kind[1], filename=name)


def read_attached(path: str, config: dict[str, Any]) -> bytes:
    """Read a file below `attachments_root`. Links that lead out of it do not count as below."""
    root = config.get("attachments_root")
    if not isinstance(root, str) or not Path(root).is_absolute():
        raise ConfigFailure("attachments need `attachments_root` in the plugin's config, an absolute path")
    try:
        base = Path(root).resolve(strict=True)
        real = (base / path).resolve(strict=True)
        if not real.is_relative_to(base):
            raise Failure(f"{path} is not below `attachments_root` in the plugin's config", retry=False)
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(MAX_ATTACHED + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Failure(f"the attachment {path} cannot be read: {reason}", retry=False) from None
