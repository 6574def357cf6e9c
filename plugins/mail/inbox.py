"""New messages of a mailbox, by their UIDs.

A server numbers the messages of a folder upwards, for as long as UIDVALIDITY stays the same. The state has
the last number that was emitted. If UIDVALIDITY changes, all numbers are void: then the messages since the
last poll are looked through, and those whose headers were seen before are passed over.

Messages are marked or moved by the poll after the one that emitted them. By then their events are stored; a
process that dies between the two loses nothing.
"""

from __future__ import annotations

import base64
import hashlib
import imaplib
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ductile_sdk import ConfigFailure, Failure
from servers import quoted, said

FLAGS = {"seen": "\\Seen", "flagged": "\\Flagged"}
#: Messages whose headers are known again if the server numbers them anew.
MAX_RECENT = 500
#: A day of margin on both sides, for clocks and zones: servers compare dates without times.
MARGIN = 2 * 86_400
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Mail(NamedTuple):
    uid: int
    raw: bytes
    size: int
    #: The message was larger than allowed, and `raw` has its headers only.
    truncated: bool

    @property
    def fingerprint(self) -> str:
        """Of the headers, which differ between two deliveries of the same message."""
        head = re.split(rb"\r?\n\r?\n", self.raw, maxsplit=1)[0]
        return hashlib.sha256(head.strip()).hexdigest()[:16]


class Folder:
    """A selected folder of a mailbox."""

    def __init__(self, box: imaplib.IMAP4, name: str, *, readonly: bool) -> None:
        self._box = box
        status, answer = box.select(quoted(encoded(name)), readonly=readonly)
        if status != "OK":
            raise ConfigFailure(f"the folder {name!r} cannot be opened: {said(answer[0] or b'')}")
        self.validity = self._number("UIDVALIDITY")
        self._next = self._number("UIDNEXT")

    def _number(self, name: str) -> int | None:
        _, values = self._box.response(name)
        found = values[-1] if values else None
        return int(found) if found else None

    def newest_uid(self) -> int:
        """The number of the newest message there is, or was."""
        return self._next - 1 if self._next is not None else max(self.search("ALL"), default=0)

    def search(self, *criteria: str) -> list[int]:
        answer = self._checked("SEARCH", *criteria)
        return sorted(int(number) for part in answer if part for number in part.split())

    def fetch(self, uid: int, max_bytes: int) -> Mail | None:
        """The message, unread as it was; None if it is gone."""
        size = 0
        for part in self._checked("FETCH", str(uid), "(UID RFC822.SIZE)"):
            found = re.search(rb"RFC822\.SIZE (\d+)", part if isinstance(part, bytes) else b"")
            size = int(found[1]) if found else size
        section = "BODY.PEEK[]" if size <= max_bytes else "BODY.PEEK[HEADER]"
        for part in self._checked("FETCH", str(uid), f"(UID {section})"):
            if isinstance(part, tuple):
                return Mail(uid, part[1], size, size > max_bytes)
        return None

    def mark(self, uids: list[int], flag: str) -> None:
        self._checked("STORE", joined(uids), "+FLAGS.SILENT", f"({FLAGS[flag]})")

    def move(self, uids: list[int], target: str) -> None:
        if "MOVE" not in self._box.capabilities:
            raise ConfigFailure("the server cannot move messages (RFC 6851): use `mark` instead of `move_to`")
        status, answer = self._box.uid("MOVE", joined(uids), quoted(encoded(target)))
        if status != "OK":
            text = said(answer[0] or b"")
            raise ConfigFailure(f"messages cannot be moved to {target!r}: {text}")

    def _checked(self, *command: str) -> list[Any]:
        status, answer = self._box.uid(*command)
        if status != "OK":
            raise Failure(f"the server refuses {command[0]}: {said(answer[0] or b'')}")
        return answer


class Position(NamedTuple):
    """Where the last poll stopped."""

    mailbox: str
    validity: int | None
    last_uid: int
    #: Emitted, and not yet marked or moved.
    pending: list[int]
    #: Fingerprints of the latest messages.
    recent: list[str]
    polled_at: float
    #: After a new numbering, only messages since this day count, until all have been looked at.
    since: str | None = None

    def as_state(self) -> dict[str, Any]:
        return self._asdict()


def read_position(state: dict[str, Any], mailbox: str) -> Position | None:
    """The stored position; None for the first poll of this mailbox."""
    if state.get("mailbox") != mailbox:
        return None
    try:
        return Position(**{name: state.get(name) for name in Position._fields})  # type: ignore[arg-type]
    except TypeError:
        return None


def first_position(folder: Folder, mailbox: str, *, initial: bool) -> Position:
    last = 0 if initial else folder.newest_uid()
    return Position(mailbox, folder.validity, last, [], [], time.time())


def renumbered(position: Position, validity: int | None) -> Position:
    """The position after the server has given all messages new numbers."""
    day = time.gmtime(position.polled_at - MARGIN)
    since = f"{day.tm_mday:02}-{_MONTHS[day.tm_mon - 1]}-{day.tm_year}"
    return position._replace(validity=validity, last_uid=0, pending=[], since=since)


def new_uids(folder: Folder, position: Position) -> list[int]:
    """Numbers after the last one. `n:*` also finds the last message if all are below n."""
    criteria = [f"UID {position.last_uid + 1}:*", *([f"SINCE {position.since}"] if position.since else [])]
    return [uid for uid in folder.search(*criteria) if uid > position.last_uid]


def fetched(folder: Folder, uids: list[int], max_bytes: int) -> Iterator[tuple[int, Mail | None]]:
    for uid in uids:
        yield uid, folder.fetch(uid, max_bytes)


def joined(uids: list[int]) -> str:
    return ",".join(str(int(uid)) for uid in uids)


def encoded(name: str) -> str:
    """The name of a folder in the form of UTF-7 that IMAP has."""

    def shifted(found: re.Match[str]) -> str:
        if found[0] == "&":
            return "&-"
        text = base64.b64encode(found[0].encode("utf-16-be")).decode().rstrip("=").replace("/", ",")
        return f"&{text}-"

    return re.sub(r"&|[^\x20-\x7e]+", shifted, name)
