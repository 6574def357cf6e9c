"""The record of the source of an added plugin: a file that `plugin add` writes into its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from blake3 import blake3

from ductile.config.file_io import read_regular_file
from ductile.struct import Value, convert, to_builtins

RECORD_FILE = ".ductile-source.json"
_FORMAT = 1
#: Part of the hashed bytes, so that no other hash of this program can equal a hash of files.
_DOMAIN = b"ductile plugin files 1\n"


class SourceRecord(Value):
    """The source of an added plugin. `commit` is set for a git source; `files` maps file names to hashes."""

    source: str
    commit: str | None
    version: str
    hash: str
    files: Mapping[str, str]
    added_at: str
    format: int = _FORMAT

    def encode(self) -> bytes:
        return (json.dumps(to_builtins(self), indent=2, ensure_ascii=False) + "\n").encode()


def read_record(directory: Path) -> SourceRecord | None:
    """Return the record of a plugin in a directory; None if it was not added, or its record is damaged."""
    try:
        record = convert(json.loads(read_regular_file(directory / RECORD_FILE)), SourceRecord)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return record if record.format == _FORMAT else None


def hash_file(data: bytes, *, executable: bool) -> str:
    """Return the hash of a file; whether it can be executed is part of it."""
    return f"blake3:{blake3(data).hexdigest()}{'+x' if executable else ''}"


def hash_files(files: Mapping[str, str]) -> str:
    """Return one hash over the names and hashes of all files."""
    return f"blake3:{blake3(_DOMAIN + json.dumps(sorted(files.items())).encode()).hexdigest()}"
