"""Scope files: the JSON documents that say what a token may do.

Read here, once, with their hash checked against the token's `scopes_hash`; the seal covers them too.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.config.file_io import read_regular_file
from ductile.config.find_config import is_url, resolve_path
from ductile.config.read.includes import find_symlinks
from ductile.config.seal import hash_bytes
from ductile.config.validate.access import validate_scopes
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.model import Config, TokenSettings
    from ductile.config.validate.report import ValidationReport

_HEX_DIGITS = 64


@hide_in_repr("data")
class ScopeFile(Value):
    """The scopes of the token called `token`."""

    token: str
    path: Path
    data: bytes
    scopes: tuple[str, ...]


def load_scope_files(
    config: Config,
    directory: Path,
    report: ValidationReport,
    overlay: Mapping[Path, bytes] = MappingProxyType({}),
) -> tuple[tuple[ScopeFile, ...], tuple[Path, ...]]:
    """Every scope file that tokens name, and the symbolic links on the way to them.

    A file in the overlay is taken from there.
    """
    files = []
    links: list[Path] = []
    for index, token in enumerate(config.tokens):
        if token.scopes_file is None or is_url(token.scopes_file):
            continue
        path = resolve_path(token.scopes_file, directory)
        data = overlay.get(path)
        if data is None:
            data = _read(path, ("tokens", index, "scopes_file"), report)
        file = None if data is None else _judge(token, path, data, ("tokens", index), config, report)
        if file is not None:
            files.append(file)
            links += find_symlinks(file.path, directory)
    return tuple(files), tuple(links)


def _read(file: Path, path: KeyPath, report: ValidationReport) -> bytes | None:
    try:
        return read_regular_file(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        report.error(path, f"{file} cannot be read: {reason}")
        return None


def _judge(
    token: TokenSettings, file: Path, data: bytes, path: KeyPath, config: Config, report: ValidationReport
) -> ScopeFile | None:
    _check_hash(token, data, (*path, "scopes_hash"), report)
    scopes = _parse(data)
    if scopes is None:
        expected = 'a JSON object such as {"scopes": ["jobs:ro"]}'
        report.error((*path, "scopes_file"), f"{file} is not a scope file", expected=expected)
        return None
    validate_scopes(scopes, (*path, "scopes_file"), config, report)
    if not scopes:
        report.warn((*path, "scopes_file"), f"{file} lists no scopes, so this token cannot log in")
    return ScopeFile(token=token.name, path=file, data=data, scopes=scopes)


def _check_hash(token: TokenSettings, data: bytes, path: KeyPath, report: ValidationReport) -> None:
    if token.scopes_hash is None:
        return
    digits = token.scopes_hash.removeprefix("blake3:")
    if digits == token.scopes_hash or len(digits) != _HEX_DIGITS:
        report.error(path, "this is not a hash", expected="blake3: and 64 hexadecimal digits")
    elif hash_bytes(data) != token.scopes_hash.lower():
        hint = f"review the change; if it is intended, the hash is now {hash_bytes(data)}"
        report.error(path, "the scopes file has another hash", hint=hint)


def _parse(data: bytes) -> tuple[str, ...] | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    scopes = content.get("scopes") if isinstance(content, dict) else None
    if isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes):
        return tuple(scopes)
    return None
