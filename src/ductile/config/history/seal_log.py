"""The list of sealed configurations: which files each had, by their hashes, so that it can be restored.

A record is a file in `.ductile/seals`, numbered in the order of sealing; its modification time is the time
of sealing. `ductile.config.history.file_copies` has the contents.
"""

from __future__ import annotations

import json
import pwd
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ductile.config.file_io import (
    HISTORY_DIRECTORY,
    hash_bytes,
    make_private_directory,
    read_regular_file,
    write_atomically,
)
from ductile.struct import Value

#: The oldest records beyond this number are removed, with the copies that only they need.
MAX_SEALS = 100
_ID_DIGITS = 12
#: The command of a record of files that were never sealed, and that a rollback has replaced.
UNSEALED = "unsealed"


class SealRecord(Value):
    """A configuration that was sealed. `files` maps each file to the hash of its content."""

    id: str
    at: datetime
    files: Mapping[str, str]
    #: The command that sealed it, such as `apply`, and the user; None if that was not recorded.
    command: str | None = None
    author: str | None = None


def configuration_id(files: Mapping[str, str]) -> str:
    """Return the id of a set of files: equal files with equal contents have the same one."""
    content = json.dumps(files, sort_keys=True).encode()
    return hash_bytes(content).rpartition(":")[2][:_ID_DIGITS]


def record_seal(
    directory: Path, files: Mapping[str, str], *, command: str | None = None, author: str | None = None
) -> None:
    """Add a record, unless the newest one has the same files. Removes surplus ones. Raises OSError."""
    records = _record_paths(directory)
    newest = _read_record(records[-1]) if records else None
    if newest is not None and newest.files == files:
        return
    number = int(records[-1].stem) + 1 if records else 1
    path = _records_directory(directory) / f"{number:08}.json"
    make_private_directory(path.parent)
    content = {"files": dict(files), "command": command, "author": author}
    write_atomically(path, json.dumps(content, ensure_ascii=False).encode())
    for old in records[: len(records) + 1 - MAX_SEALS]:
        old.unlink(missing_ok=True)


def list_seals(directory: Path) -> tuple[SealRecord, ...]:
    """Return the readable records, oldest first. Raises PermissionError if this user may not read them."""
    return tuple(record for path in _record_paths(directory) if (record := _read_record(path)) is not None)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _records_directory(directory: Path) -> Path:
    return directory / HISTORY_DIRECTORY / "seals"


def _record_paths(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in _records_directory(directory).glob("*.json") if path.stem.isdigit())
    except FileNotFoundError:
        return []


def _read_record(path: Path) -> SealRecord | None:
    """Return a record; None for one that was removed meanwhile or is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(read_regular_file(path))
        status = path.stat()
        files = {str(name): str(content_hash) for name, content_hash in content["files"].items()}
        return SealRecord(
            id=configuration_id(files),
            at=datetime.fromtimestamp(status.st_mtime, UTC),
            files=files,
            command=content.get("command"),
            author=content.get("author") or user_name(status.st_uid),
        )
    return None
