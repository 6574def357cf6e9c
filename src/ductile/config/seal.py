"""The seal over a configuration: `.checksums`, the files it covers and the tiers of changes.

Comparing is pure: present files against sealed ones. The tier of a change is the higher of the sealed and the
present one, so that removing `tokens` from a file does not lower it. Strict mode is sealed for the same
reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import hash_bytes, read_regular_file, write_atomically
from ductile.config.find_config import CHECKSUMS_FILE
from ductile.config.history.file_copies import COPIED_SUFFIXES, compare_with_copy, keep_copy, remove_copies
from ductile.config.history.seal_log import list_seals, record_seal
from ductile.config.read.interpolate import variables_in
from ductile.errors import IntegrityError, Problem
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import MapNode, node_at
from ductile.struct import Value, field, replace

_VERSION = 1
_HIGH_SECTIONS = (("api", "auth"), ("tokens",), ("webhooks",))
#: The sections that decide who may call in and how requests are signed.
_ACCESS_SECTIONS = (*_HIGH_SECTIONS, ("state_webhooks",))
_HIGH_NAMES = frozenset(("tokens.yaml", "webhooks.yaml"))
_PLUGIN_PREFIX = "plugin "
AUTHORISE_HINT = "review the change; if it is intended, run `ductile apply`"
#: Changed keys that a message about an unsealed file lists.
_MAX_LISTED = 10


class Tier(StrEnum):
    """The severity of an unsealed change: the start is refused, or a warning is given."""

    HIGH = "high"
    OPERATIONAL = "operational"


class FileHash(Value):
    """A file's hash and tier; `name` is relative to the config directory, or absolute outside it.

    `pending` is the hash of an authorised change that is being written: until the end, both are valid.
    """

    name: str
    hash: str
    tier: Tier
    pending: str | None = None


class Checksums(Value):
    """The sealed state. `plugins` maps the name of an installed plugin to its fingerprint."""

    files: Mapping[str, FileHash] = field(default_factory=lambda: MappingProxyType({}))
    plugins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    strict: bool = False
    #: The fingerprints of plugins whose files are being replaced: until the end, both are valid.
    pending_plugins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def with_files(self, *files: FileHash) -> Checksums:
        """Return the checksums with these entries added or replaced."""
        return replace(self, files=MappingProxyType({**self.files, **{file.name: file for file in files}}))


class SealViolation(Value):
    """A file or plugin that is not as sealed: it has changed, or has no entry. A plugin is `plugin NAME`."""

    name: str
    changed: bool
    tier: Tier
    #: The sealed hash of a file.
    sealed_hash: str | None = None

    @property
    def is_plugin(self) -> bool:
        return self.name.startswith(_PLUGIN_PREFIX)

    def as_problem(self, directory: Path) -> Problem:
        """Return the problem; for a file with the keys that changed. Reads the file and its kept copy."""
        message = f"{self.name} {'has changed since it was sealed' if self.changed else 'is not sealed'}"
        if self.changed and not self.is_plugin:
            difference = compare_with_copy(directory, self.name, self.sealed_hash)
            message = "\n  ".join((f"{message}:", *difference.describe(limit=_MAX_LISTED)))
        return Problem(message=message, file=str(directory / CHECKSUMS_FILE), hint=AUTHORISE_HINT)


def check_changes(
    violations: Iterable[SealViolation], directory: Path, tier: Tier, *, refuse: bool
) -> tuple[Problem, ...]:
    """Return a problem for each file of a tier, and one for all plugins with the same kind of violation.

    Raises IntegrityError with them if they are to be refused.
    """
    violations = [violation for violation in violations if violation.tier is tier]
    problems = [violation.as_problem(directory) for violation in violations if not violation.is_plugin]
    for changed, text in ((True, "have changed since they were sealed"), (False, "are not sealed")):
        plugins = [
            violation for violation in violations if violation.is_plugin and violation.changed is changed
        ]
        if len(plugins) > 1:
            names = ", ".join(violation.name.removeprefix(_PLUGIN_PREFIX) for violation in plugins)
            message = f"{len(plugins)} plugins {text}: {names}"
            problems.append(
                Problem(message=message, file=str(directory / CHECKSUMS_FILE), hint=AUTHORISE_HINT)
            )
        else:
            problems += [violation.as_problem(directory) for violation in plugins]
    if problems and refuse:
        message = "the configuration is not what was sealed"
        raise IntegrityError(message, hint=AUTHORISE_HINT, problems=tuple(problems))
    return tuple(problems)


def relative_name(directory: Path, path: Path) -> str:
    """Return the name of a file in the seal: relative to the config directory, or absolute outside it."""
    return path.relative_to(directory).as_posix() if path.is_relative_to(directory) else str(path)


def hash_file(directory: Path, path: Path, data: bytes, tier: Tier) -> FileHash:
    """Return the entry that a file with these contents has in the seal."""
    return FileHash(name=relative_name(directory, path), hash=hash_bytes(data), tier=tier)


def config_tier(name: str, tree: MapNode) -> Tier:
    """Return the tier of a configuration file, by its name and the sections it defines."""
    sensitive = any(node_at(tree, section) is not None for section in _HIGH_SECTIONS)
    return Tier.HIGH if sensitive or name.rpartition("/")[2] in _HIGH_NAMES else Tier.OPERATIONAL


def access_variables(root: MapNode) -> frozenset[str]:
    """Return the variables that decide who may call in and how requests are signed."""
    return frozenset().union(*(variables_in(node_at(root, section)) for section in _ACCESS_SECTIONS))


def environment_tier(names: frozenset[str], granting_variables: frozenset[str]) -> Tier:
    """Return the tier of an environment file: high if it sets one of `granting_variables`."""
    return Tier.OPERATIONAL if granting_variables.isdisjoint(names) else Tier.HIGH


def find_file_violations(present: Iterable[FileHash], sealed: Checksums | None) -> tuple[SealViolation, ...]:
    """Return a violation for every loaded file whose hash is not the sealed one."""
    entries = sealed.files if sealed else {}
    violations = []
    for file in present:
        entry = entries.get(file.name)
        if entry is None or file.hash not in (entry.hash, entry.pending):
            tier = _higher_tier(entry.tier, file.tier) if entry else file.tier
            sealed_hash = entry.hash if entry else None
            violations.append(
                SealViolation(name=file.name, changed=entry is not None, tier=tier, sealed_hash=sealed_hash)
            )
    return tuple(violations)


def find_plugin_violations(present: Mapping[str, str], sealed: Checksums | None) -> tuple[SealViolation, ...]:
    """Return a violation, always of the operational tier, for every plugin with another fingerprint."""
    fingerprints, pending = (sealed.plugins, sealed.pending_plugins) if sealed else ({}, {})
    return tuple(
        SealViolation(name=f"{_PLUGIN_PREFIX}{name}", changed=name in fingerprints, tier=Tier.OPERATIONAL)
        for name, fingerprint in present.items()
        if fingerprint not in (fingerprints.get(name), pending.get(name))
    )


def read_checksums(directory: Path) -> Checksums | None:
    """Return the seal of a directory, None if it was never sealed. Raises IntegrityError if unreadable."""
    path = directory / CHECKSUMS_FILE
    try:
        return decode_checksums(read_regular_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        reason: str = error.strerror or "input/output error"
        cause: Exception = error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = "it is not in the form that `ductile config lock` writes"
        cause = error
    problem = Problem(message=f"the seal cannot be read: {reason}", file=str(path), hint=AUTHORISE_HINT)
    message = "the configuration's seal cannot be read"
    raise IntegrityError(message, problems=(problem,), hint=AUTHORISE_HINT) from cause


def encode_checksums(checksums: Checksums) -> bytes:
    content = {
        "version": _VERSION,
        "strict": checksums.strict,
        "files": {
            file.name: {"hash": file.hash, "tier": file.tier}
            | ({"pending": file.pending} if file.pending else {})
            for file in sorted(checksums.files.values(), key=lambda file: file.name)
        },
        "plugins": dict(sorted(checksums.plugins.items())),
    }
    if checksums.pending_plugins:
        content["pending_plugins"] = dict(sorted(checksums.pending_plugins.items()))
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def decode_checksums(data: bytes | str) -> Checksums:
    """Return checksums from their JSON. Raises ValueError, KeyError, TypeError or AttributeError."""
    content = json.loads(data)
    if content["version"] != _VERSION or not isinstance(content["strict"], bool):
        raise ValueError
    files, plugins, pending = content["files"], content["plugins"], content.get("pending_plugins", {})
    if not (isinstance(files, dict) and isinstance(plugins, dict) and isinstance(pending, dict)):
        raise TypeError
    entries = (
        FileHash(name=name, hash=str(entry["hash"]), tier=Tier(entry["tier"]), pending=entry.get("pending"))
        for name, entry in files.items()
    )
    fingerprints = {name: str(fingerprint) for name, fingerprint in plugins.items()}
    checksums = build_checksums(entries, fingerprints, strict=content["strict"])
    pending = MappingProxyType({name: str(fingerprint) for name, fingerprint in pending.items()})
    return replace(checksums, pending_plugins=pending)


def write_checksums(
    directory: Path, checksums: Checksums, *, command: str | None = None, author: str | None = None
) -> None:
    """Write the seal, keep a copy of each file that is as sealed, and record it. Raises OSError."""
    with suppress(IntegrityError):  # an unreadable seal is replaced
        _record_in_history(directory, read_checksums(directory))  # it may be older than the records
    write_atomically(directory / CHECKSUMS_FILE, encode_checksums(checksums))
    for file in checksums.files.values():
        if not is_copied(file.name):
            continue
        with suppress(OSError):  # The seal counts without its copies; changed keys are then not named.
            data = read_regular_file(directory / file.name)
            if hash_bytes(data) == file.hash:
                keep_copy(directory, data)
    _record_in_history(directory, checksums, command=command, author=author)
    with suppress(OSError):
        needed = {content_hash for record in list_seals(directory) for content_hash in record.files.values()}
        remove_copies(directory, needed | {file.hash for file in checksums.files.values()})


def _record_in_history(
    directory: Path, checksums: Checksums | None, *, command: str | None = None, author: str | None = None
) -> None:
    if checksums is None or any(file.pending for file in checksums.files.values()):
        return
    with suppress(OSError):  # The seal counts without its record.
        files = {name: file.hash for name, file in checksums.files.items()}
        record_seal(directory, files, command=command, author=author)


def is_copied(name: str) -> bool:
    """Return whether a copy of a sealed file is kept. Environment files are not copied: they hold secrets."""
    return name.endswith(COPIED_SUFFIXES)


def build_checksums(files: Iterable[FileHash], plugins: Mapping[str, str], *, strict: bool) -> Checksums:
    return Checksums(plugins=MappingProxyType(dict(plugins)), strict=strict).with_files(*files)


def write_sealed(
    directory: Path,
    path: Path,
    data: bytes,
    *,
    strict: bool | None = None,
    tiers: Mapping[str, Tier] = MappingProxyType({}),
) -> None:
    """Change one file and renew its entry. Raises IntegrityError if the file is not as sealed.

    `tiers` are the tiers of all files with the change in place: the entries of the other files keep their
    hashes, but get a tier that the change raises.

    The new hash is written before the new file, and the old one is removed after it: if the power fails, the
    file on disk always matches the seal.
    """
    sealed, entry = verify_sealed(directory, path)
    sealed = sealed.with_files(
        *(
            replace(file, tier=_higher_tier(file.tier, tiers.get(name, file.tier)))
            for name, file in sealed.files.items()
        )
    )
    name = entry.name
    tier = tiers.get(name)
    if tier is None:
        tier = sealed.files[name].tier
        tree = parse_yaml(data, file=name) if name.endswith((".yaml", ".yml")) else None
        if isinstance(tree, MapNode):
            tier = config_tier(name, tree)
    pending = replace(sealed.files[name], hash=hash_bytes(path.read_bytes()), pending=hash_bytes(data))
    write_checksums(directory, sealed.with_files(pending))
    write_atomically(path, data)
    final = sealed.with_files(hash_file(directory, path, data, tier))
    write_checksums(directory, final if strict is None else replace(final, strict=strict))


def verify_sealed(directory: Path, path: Path) -> tuple[Checksums, FileHash]:
    """Return the seal and a file's entry. Raises IntegrityError if the file is not as sealed."""
    sealed = read_checksums(directory)
    name = relative_name(directory, path)
    entry = sealed.files.get(name) if sealed else None
    if sealed is None or entry is None or hash_bytes(path.read_bytes()) not in (entry.hash, entry.pending):
        problem = Problem(message=f"{name} is not what was sealed", file=str(path), hint=AUTHORISE_HINT)
        raise IntegrityError(f"{name} was not changed", problems=(problem,), hint=AUTHORISE_HINT)
    return sealed, entry


def write_new_sealed(directory: Path, path: Path, data: bytes, tier: Tier) -> None:
    """Write a new file and its entry. The configuration that refers to it must be written afterwards."""
    sealed = read_checksums(directory)
    if sealed is None:
        problem = Problem(message="the configuration has never been sealed", file=str(directory))
        raise IntegrityError(f"{path.name} was not written", problems=(problem,), hint=AUTHORISE_HINT)
    write_atomically(path, data)
    write_checksums(directory, sealed.with_files(hash_file(directory, path, data, tier)))


def remove_sealed(directory: Path, path: Path) -> None:
    """Remove a file and its entry. The configuration must no longer refer to it."""
    path.unlink(missing_ok=True)
    sealed = read_checksums(directory)
    name = relative_name(directory, path)
    if sealed is not None and name in sealed.files:
        remaining = {other: entry for other, entry in sealed.files.items() if other != name}
        write_checksums(directory, replace(sealed, files=MappingProxyType(remaining)))


def _higher_tier(first: Tier, second: Tier) -> Tier:
    return Tier.HIGH if Tier.HIGH in (first, second) else Tier.OPERATIONAL
