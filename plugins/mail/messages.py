"""Messages as events: headers, text and attachments, whatever a message looks like."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from datetime import timezone
from email import policy
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.utils import getaddresses, parsedate_to_datetime
from pathlib import Path
from typing import Any

from ductile_html import plain_text

MAX_TEXT = 100_000
MAX_HEADER = 2_000
MAX_ADDRESSES = 100
MAX_ATTACHMENTS = 100
MAX_NAME = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069]+")


class Attachment:
    def __init__(self, name: str, media_type: str, content: bytes) -> None:
        self.name, self.media_type, self.content = name, media_type, content

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.content).hexdigest()
        return {"name": self.name, "media_type": self.media_type, "size": len(self.content), "sha256": digest}


def parse(raw: bytes) -> tuple[dict[str, Any], list[Attachment]]:
    """Return the fields of a message and its attachments. Never raises: mail is made by everyone."""
    message = BytesParser(policy=policy.default).parsebytes(raw)
    body = _body(message)
    fields = {
        "message_id": header(message, "Message-ID"),
        "in_reply_to": header(message, "In-Reply-To"),
        "from": next(iter(addresses(message, "From")), None),
        "to": addresses(message, "To"),
        "cc": addresses(message, "Cc"),
        "subject": header(message, "Subject"),
        "date": date(message),
        "text": _text(body)[:MAX_TEXT] if body is not None else "",
    }
    found = [_attachment(part, number) for number, part in enumerate(_others(message, body), 1)]
    return fields, found[:MAX_ATTACHMENTS]


def header(message: Message, name: str) -> str | None:
    """The decoded value on one line; None without one."""
    try:
        value = message[name]
    except Exception:  # noqa: BLE001 - the parser of headers raises many things for malformed ones
        value = next((raw for key, raw in message.raw_items() if key.lower() == name.lower()), None)
    text = clean(str(value)) if value is not None else ""
    return text[:MAX_HEADER] or None


def clean(text: str) -> str:
    return _CONTROL.sub(" ", text.encode("utf-8", "replace").decode()).strip()


def addresses(message: Message, name: str) -> list[dict[str, str | None]]:
    found = getaddresses([header(message, name) or ""])
    return [{"name": shown or None, "address": address} for shown, address in found if address][
        :MAX_ADDRESSES
    ]


def date(message: Message) -> str | None:
    try:
        when = parsedate_to_datetime(header(message, "Date") or "")
        when = when if when.tzinfo is not None else when.replace(tzinfo=timezone.utc)  # noqa: UP017 - 3.10
        return when.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")  # noqa: UP017 - 3.10
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


def _body(message: EmailMessage) -> EmailMessage | None:
    try:
        found = message.get_body(preferencelist=("plain", "html"))
    except Exception:  # noqa: BLE001 - as above
        found = None
    return found if isinstance(found, EmailMessage) else None


def _text(part: EmailMessage) -> str:
    try:
        text = str(part.get_content())
    except Exception:  # noqa: BLE001 - unknown charsets, broken encodings
        text = _bytes(part).decode("utf-8", "replace")
    text = text.encode("utf-8", "replace").decode()
    return plain_text(text) if part.get_content_type() == "text/html" else text.replace("\r\n", "\n")


def _bytes(part: Message) -> bytes:
    try:
        content = part.get_payload(decode=True)
    except Exception:  # noqa: BLE001 - as above
        content = None
    return content if isinstance(content, bytes) else b""


def _others(part: Message, body: Message | None) -> Iterator[Message]:
    """The parts that are attachments. A message that is attached is one, with all that is in it."""
    if part is body:
        return
    if part.get_content_type() == "message/rfc822":
        yield part
        return
    if part.is_multipart():
        for child in part.get_payload():
            if isinstance(child, Message):
                yield from _others(child, body)
        return
    if (
        part.get_content_maintype() != "text"
        or _file_name(part)
        or part.get_content_disposition() == "attachment"
    ):
        yield part


def _file_name(part: Message) -> str | None:
    try:
        return part.get_filename()
    except Exception:  # noqa: BLE001 - as above
        return None


def _attachment(part: Message, number: int) -> Attachment:
    if part.get_content_type() == "message/rfc822":
        inner = part.get_payload()
        content = inner[0].as_bytes() if isinstance(inner, list) and inner else b""
        return Attachment(_file_name(part) or f"message-{number}.eml", "message/rfc822", content)
    return Attachment(
        clean(_file_name(part) or f"attachment-{number}"), part.get_content_type(), _bytes(part)
    )


def safe_name(name: str, number: int) -> str:
    """A name for a file: no directories, no control characters, not hidden, not too long, and unique."""
    base = re.split(r"[/\\]", clean(name))[-1]
    base = re.sub(r"[^\w.,()+@=-]+", "_", base).lstrip(".") or "attachment"
    stem, dot, suffix = base.rpartition(".")
    if dot and len(suffix.encode()) <= 10:  # noqa: PLR2004 - a suffix that tells what is in the file
        shortened = stem.encode()[:MAX_NAME].decode("utf-8", "ignore") + dot + suffix
    else:
        shortened = base.encode()[:MAX_NAME].decode("utf-8", "ignore")
    return f"{number}-{shortened}"


def save(attachment: Attachment, folder: Path, number: int) -> Path:
    """Write the file, whole or not at all, the same one if it is written again. Follows no links."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / safe_name(attachment.name, number)
    temporary = folder / f".{path.name[:50]}.{os.getpid()}.part"
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(attachment.content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path
