"""Reads scope files: JSON documents with the scopes of a token, checked against its `scopes_hash`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import find_symlinks, hash_bytes, read_overlaid
from ductile.config.find_config import is_url, resolve_path
from ductile.config.schema.model import Config
from ductile.config.validate.access import validate_scopes
from ductile.config.validate.report import ValidationReport
from ductile.struct import Value, hide_in_repr

_HASH_DIGITS = 64


@hide_in_repr("data")
class ScopeFile(Value):
    """The scopes of the token named `token`."""

    token: str
    path: Path
    data: bytes
    scopes: tuple[str, ...]


def load_scope_files(
    config: Config,
    directory: Path,
    report: ValidationReport,
    overlay: Mapping[Path, bytes | None] = MappingProxyType({}),
) -> tuple[tuple[ScopeFile, ...], tuple[Path, ...]]:
    """Return every scope file that tokens name, and the symbolic links in their paths.

    The overlay replaces the contents of files on disk.
    """
    files = []
    links: list[Path] = []
    for index, token in enumerate(config.tokens):
        if token.scopes_file is None or is_url(token.scopes_file):
            continue
        key, hash_key = ("tokens", index, "scopes_file"), ("tokens", index, "scopes_hash")
        path = resolve_path(token.scopes_file, directory)
        try:
            data = read_overlaid(path, overlay)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a path"
            report.error(key, f"{path} cannot be read: {reason}")
            continue
        if (expected_hash := token.scopes_hash) is not None:
            digits = expected_hash.removeprefix("blake3:")
            if digits == expected_hash or len(digits) != _HASH_DIGITS:
                expected = "blake3: and 64 hexadecimal digits"
                report.error(hash_key, "this is not a hash", expected=expected)
            elif (present_hash := hash_bytes(data)) != expected_hash.lower():
                hint = f"review the change; if it is intended, the hash is now {present_hash}"
                report.error(hash_key, "the scopes file has another hash", hint=hint)
        scopes = _parse_scopes(data)
        if scopes is None:
            expected = 'a JSON object such as {"scopes": ["jobs:ro"]}'
            report.error(key, f"{path} is not a scope file", expected=expected)
            continue
        validate_scopes(scopes, key, config, report)
        if not scopes:
            report.warn(key, f"{path} lists no scopes, so this token cannot log in")
        files.append(ScopeFile(token=token.name, path=path, data=data, scopes=scopes))
        links += find_symlinks(path, directory)
    return tuple(files), tuple(links)


def _parse_scopes(data: bytes) -> tuple[str, ...] | None:
    """Return the scopes, None if this is not a scope file."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    scopes = content.get("scopes") if isinstance(content, dict) else None
    if isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes):
        return tuple(scopes)
    return None
