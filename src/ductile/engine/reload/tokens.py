"""Take one access token from the configuration on disk into the active one, and nothing else. Pure."""

from __future__ import annotations

import json
from types import MappingProxyType

from ductile.config.file_io import hash_bytes
from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonValue
from ductile.struct import replace


def without_token(active: Snapshot, name: str) -> Snapshot:
    """Return the active configuration without the token or secret of this name."""
    return _with_parts(active, None, name)


def with_token_of(active: Snapshot, disk: Snapshot, name: str) -> Snapshot:
    """Return the active configuration with the token of this name as it is on disk; without it if it is not
    there.
    """
    return _with_parts(active, disk, name)


def _with_parts(active: Snapshot, disk: Snapshot | None, name: str) -> Snapshot:
    """Return the active configuration with the token or secret of this name taken from `disk`, if given."""
    tokens = tuple(token for token in active.tokens if token.name != name)
    secrets = {key: secret for key, secret in active.secrets.items() if key != name}
    entries = [entry for entry in _entries(active) if _name_of(entry) != name]
    if disk is not None:
        tokens += tuple(token for token in disk.tokens if token.name == name)
        secrets |= {key: secret for key, secret in disk.secrets.items() if key == name}
        entries += [entry for entry in _entries(disk) if _name_of(entry) == name]
    redacted = active.redacted
    if isinstance(redacted, dict):
        redacted = {**redacted, "tokens": entries}
    # The result is neither the loaded configuration nor the one on disk, so it gets a fingerprint of its own.
    content = json.dumps([active.fingerprint, entries], sort_keys=True)
    return replace(
        active,
        tokens=tokens,
        secrets=MappingProxyType(secrets),
        redacted=redacted,
        fingerprint=hash_bytes(content.encode()),
    )


def _entries(snapshot: Snapshot) -> list[JsonValue]:
    """Return the section `tokens` as the configuration shows it, without secrets."""
    entries = snapshot.redacted.get("tokens") if isinstance(snapshot.redacted, dict) else None
    return entries if isinstance(entries, list) else []


def _name_of(entry: JsonValue) -> JsonValue:
    return entry.get("name") if isinstance(entry, dict) else None
