"""The seal over a configuration: `.checksums`, what it covers and how it is judged.

The judging is pure: files as they are against files as they were sealed. The tier that counts is the
higher of the sealed and the present one, so that taking `tokens` out of a file does not make the
change to it a lesser one. Strict mode is sealed for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.config.file_io import read_regular_file, write_atomically
from ductile.config.read.interpolate import names_in
from ductile.errors import IntegrityError, Problem
from ductile.protocol.yaml import MapNode, parse_yaml
from ductile.struct import Value, field, replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CHECKSUMS_FILE = ".checksums"
_VERSION = 1
#: Besides `api.auth`.
_ACCESS_SECTIONS = ("tokens", "webhooks", "state_webhooks")
_HIGH_NAMES = frozenset(("tokens.yaml", "webhooks.yaml"))
_PLUGIN = "plugin "
AUTHORISE = "review the change; if it is intended, run `ductile config lock`"


class Tier(StrEnum):
    """How serious an unsealed change is: refuse to start, or warn."""

    HIGH = "high"
    OPERATIONAL = "operational"


class ViolationKind(StrEnum):
    CHANGED = "changed"
    UNSEALED = "unsealed"


class SealedFile(Value):
    """A file's hash and tier; `name` is relative to the config directory, or absolute outside it.

    `pending` is the hash of an authorised change that is being written: until it is done, both are good.
    """

    name: str
    hash: str
    tier: Tier
    pending: str | None = None


class Checksums(Value):
    """What was sealed. `plugins` maps the name of an installed plugin to its fingerprint."""

    files: Mapping[str, SealedFile] = field(default_factory=lambda: MappingProxyType({}))
    plugins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    strict: bool = False


class SealViolation(Value):
    """A difference between what was sealed and what is there; for a plugin `name` begins `plugin `."""

    name: str
    fault: ViolationKind
    tier: Tier

    @property
    def is_plugin(self) -> bool:
        return self.name.startswith(_PLUGIN)

    def as_problem(self, directory: Path) -> Problem:
        said = "has changed since it was sealed" if self.fault is ViolationKind.CHANGED else "is not sealed"
        return Problem(message=f"{self.name} {said}", file=str(directory / CHECKSUMS_FILE), hint=AUTHORISE)


def violations_to_problems(findings: Sequence[SealViolation], directory: Path) -> tuple[Problem, ...]:
    """One for each file; plugins to which the same has happened are told together."""
    problems = [finding.as_problem(directory) for finding in findings if not finding.is_plugin]
    for fault, said in (
        (ViolationKind.CHANGED, "have changed since they were sealed"),
        (ViolationKind.UNSEALED, "are not sealed"),
    ):
        alike = [finding for finding in findings if finding.is_plugin and finding.fault is fault]
        if len(alike) > 1:
            names = ", ".join(finding.name.removeprefix(_PLUGIN) for finding in alike)
            message = f"{len(alike)} plugins {said}: {names}"
            problems.append(Problem(message=message, file=str(directory / CHECKSUMS_FILE), hint=AUTHORISE))
        else:
            problems += [finding.as_problem(directory) for finding in alike]
    return tuple(problems)


def hash_bytes(data: bytes) -> str:
    from blake3 import blake3  # noqa: PLC0415 - only who loads or seals a configuration pays for it

    return f"blake3:{blake3(data).hexdigest()}"


def relative_name(directory: Path, path: Path) -> str:
    return path.relative_to(directory).as_posix() if path.is_relative_to(directory) else str(path)


def config_tier(name: str, tree: MapNode) -> Tier:
    """The tier of a configuration file, by its name and by what it defines."""
    api = tree.get("api")
    defines_auth = isinstance(api, MapNode) and api.get("auth") is not None
    sensitive = defines_auth or tree.get("tokens") is not None or tree.get("webhooks") is not None
    high = sensitive or name.rpartition("/")[2] in _HIGH_NAMES
    return Tier.HIGH if high else Tier.OPERATIONAL


def access_variables(root: MapNode) -> frozenset[str]:
    """The variables that a configuration refers to where it says who may call in and what is signed."""
    api = root.get("api")
    auth = api.get("auth") if isinstance(api, MapNode) else None
    sections = (auth, *(root.get(name) for name in _ACCESS_SECTIONS))
    return frozenset().union(*map(names_in, sections))


def environment_tier(names: frozenset[str], granting: frozenset[str]) -> Tier:
    """The tier of an env file: high if it sets a variable that decides who may call in."""
    return Tier.OPERATIONAL if granting.isdisjoint(names) else Tier.HIGH


def find_file_violations(
    present: Iterable[SealedFile], sealed: Checksums | None
) -> tuple[SealViolation, ...]:
    """Every file whose hash is not the sealed one. Files that are no longer loaded do no harm."""
    known = sealed.files if sealed else {}
    faults = []
    for file in present:
        entry = known.get(file.name)
        if entry is None:
            faults.append(SealViolation(name=file.name, fault=ViolationKind.UNSEALED, tier=file.tier))
        elif file.hash not in (entry.hash, entry.pending):
            tier = _higher(entry.tier, file.tier)
            faults.append(SealViolation(name=file.name, fault=ViolationKind.CHANGED, tier=tier))
    return tuple(faults)


def find_plugin_violations(present: Mapping[str, str], sealed: Checksums | None) -> tuple[SealViolation, ...]:
    """Every plugin whose manifest or entrypoint is not the sealed one; always the operational tier."""
    known = sealed.plugins if sealed else {}
    faults = []
    for name, fingerprint in present.items():
        if known.get(name) != fingerprint:
            fault = ViolationKind.CHANGED if name in known else ViolationKind.UNSEALED
            faults.append(SealViolation(name=f"{_PLUGIN}{name}", fault=fault, tier=Tier.OPERATIONAL))
    return tuple(faults)


def read_checksums(directory: Path) -> Checksums | None:
    """The seal of a config directory, None if it was never sealed. Unreadable is an error, not "none"."""
    path = directory / CHECKSUMS_FILE
    try:
        data = read_regular_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or "input/output error") from error
    try:
        return _parse(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, "it is not in the form that `ductile config lock` writes") from error


def write_checksums(directory: Path, checksums: Checksums) -> None:
    write_atomically(directory / CHECKSUMS_FILE, format_checksums(checksums).encode())


def format_checksums(checksums: Checksums) -> str:
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
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def seal(files: Iterable[SealedFile], plugins: Mapping[str, str], *, strict: bool) -> Checksums:
    return Checksums(
        files=MappingProxyType({file.name: file for file in files}),
        plugins=MappingProxyType(dict(plugins)),
        strict=strict,
    )


def write_sealed(
    directory: Path,
    path: Path,
    data: bytes,
    *,
    strict: bool | None = None,
    tiers: Mapping[str, Tier] = MappingProxyType({}),
) -> None:
    """Change one file and renew its entry alone, after making sure that the file is what was sealed.

    `tiers` has the tier of each file in the configuration with the change: other files keep their hashes, but
    a file whose tier the change raises is recorded with the higher one.

    The new hash is on disk before the new file and the old one until after it: whenever the power
    fails, the file that is there is one that the seal knows.
    """
    sealed, entry = verify_sealed(directory, path)
    sealed = _with_raised_tiers(sealed, tiers)
    name = entry.name
    entry = sealed.files[name]
    tier = tiers[name] if name in tiers else _tier_of(name, data, entry.tier)
    settled = Checksums(
        files=MappingProxyType(
            {**sealed.files, name: SealedFile(name=name, hash=hash_bytes(data), tier=tier)}
        ),
        plugins=sealed.plugins,
        strict=sealed.strict if strict is None else strict,
    )
    pending = replace(entry, hash=hash_bytes(path.read_bytes()), pending=hash_bytes(data))
    write_checksums(directory, replace(sealed, files=MappingProxyType({**sealed.files, name: pending})))
    write_atomically(path, data)
    write_checksums(directory, settled)


def verify_sealed(directory: Path, path: Path) -> tuple[Checksums, SealedFile]:
    """The seal and the entry of a file. IntegrityError if the file is not what was sealed."""
    sealed = read_checksums(directory)
    name = relative_name(directory, path)
    entry = sealed.files.get(name) if sealed else None
    if sealed is None or entry is None or hash_bytes(path.read_bytes()) not in (entry.hash, entry.pending):
        problem = Problem(message=f"{name} is not what was sealed", file=str(path), hint=AUTHORISE)
        raise IntegrityError(f"{name} was not changed", problems=(problem,), hint=AUTHORISE)
    return sealed, entry


def write_new_sealed(directory: Path, path: Path, data: bytes, tier: Tier) -> None:
    """Write a file that no loaded one refers to yet, and its entry. Whoever refers to it comes after."""
    sealed = read_checksums(directory)
    if sealed is None:
        problem = Problem(message="the configuration has never been sealed", file=str(directory))
        raise IntegrityError(f"{path.name} was not written", problems=(problem,), hint=AUTHORISE)
    name = relative_name(directory, path)
    entry = SealedFile(name=name, hash=hash_bytes(data), tier=tier)
    write_atomically(path, data)
    write_checksums(directory, replace(sealed, files=MappingProxyType({**sealed.files, name: entry})))


def remove_sealed(directory: Path, path: Path) -> None:
    """Remove a file that no loaded one refers to any more, and its entry."""
    path.unlink(missing_ok=True)
    sealed = read_checksums(directory)
    name = relative_name(directory, path)
    if sealed is not None and name in sealed.files:
        left = {known: entry for known, entry in sealed.files.items() if known != name}
        write_checksums(directory, replace(sealed, files=MappingProxyType(left)))


def _with_raised_tiers(sealed: Checksums, tiers: Mapping[str, Tier]) -> Checksums:
    files = {
        name: replace(entry, tier=_higher(entry.tier, tiers.get(name, entry.tier)))
        for name, entry in sealed.files.items()
    }
    return replace(sealed, files=MappingProxyType(files))


def _higher(one: Tier, other: Tier) -> Tier:
    return Tier.HIGH if Tier.HIGH in (one, other) else Tier.OPERATIONAL


def _tier_of(name: str, data: bytes, known: Tier) -> Tier:
    if not name.endswith((".yaml", ".yml")):
        return known
    tree = parse_yaml(data, file=name)
    return config_tier(name, tree) if isinstance(tree, MapNode) else known


def _parse(content: dict[str, object]) -> Checksums:
    if content["version"] != _VERSION or not isinstance(content["strict"], bool):
        raise ValueError
    files, plugins = content["files"], content["plugins"]
    if not isinstance(files, dict) or not isinstance(plugins, dict):
        raise TypeError
    entries = (
        SealedFile(name=name, hash=str(entry["hash"]), tier=Tier(entry["tier"]), pending=entry.get("pending"))
        for name, entry in files.items()
    )
    fingerprints = {name: str(fingerprint) for name, fingerprint in plugins.items()}
    return seal(entries, fingerprints, strict=content["strict"])


def _unreadable(path: Path, reason: str) -> IntegrityError:
    problem = Problem(message=f"the seal cannot be read: {reason}", file=str(path), hint=AUTHORISE)
    return IntegrityError("the configuration's seal cannot be read", problems=(problem,), hint=AUTHORISE)
