"""Differences between configurations: on disk, in force, sealed, and in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ductile.config.differences import compare_configs
from ductile.config.history.compare import compare_file_sets, hashes_on_disk
from ductile.config.history.restore import find_seal, read_seals
from ductile.config.seal import read_checksums
from ductile.config.snapshot import Snapshot
from ductile.errors import ConfigError, DeniedError, NotFoundError, UsageError
from ductile.operations.config.history import load_differences
from ductile.operations.config.plan import MAX_KEYS, ChangedFile, changed_file
from ductile.operations.context import OperationContext
from ductile.operations.request import in_local_call
from ductile.operations.response import Response
from ductile.store.model.maintenance import ConfigRecord
from ductile.struct import Value, about, replace

#: The most loads that are searched for an id.
_MAX_SEARCHED = 200


class DiffConfig(Value):
    before: Annotated[
        str | None, about("The id of a configuration in the history, or of the earlier one of two.")
    ] = None
    after: Annotated[str | None, about("The id of the later one (default: the files on disk).")] = None
    hashes: Annotated[bool, in_local_call("Return the hashes of the files, too.")] = False


class Comparison(Value):
    before: Annotated[str, about("`in force`, `sealed`, or an id.")]
    after: Annotated[str, about("`disk`, or an id.")]
    same: bool
    files: tuple[ChangedFile, ...]
    keys: Annotated[
        tuple[str, ...],
        about("Differences of the merged configurations, where the contents of single files are not known."),
    ]
    hashes: Annotated[
        dict[str, tuple[str | None, str | None]] | UnsetType, Meta(extra_json_schema={"x-offline-only": True})
    ] = UNSET


class ConfigDiff(Response):
    comparisons: tuple[Comparison, ...]
    problem: Annotated[str | None, about("Why the configuration on disk cannot be loaded.")]


async def show_diff(context: OperationContext, request: DiffConfig) -> ConfigDiff:
    """Compare the files on disk with what is in force and with what was sealed, or two of the history."""
    active = context.snapshot()
    if request.before is not None:
        loads = await context.store.config_history(limit=_MAX_SEARCHED)
        comparison = await asyncio.to_thread(
            compare_ids, active.directory, loads, request.before, request.after
        )
        return ConfigDiff(comparisons=(_limit_hashes(comparison, request),), problem=None)
    if request.after is not None:
        raise UsageError("after needs before", hint="Give two ids, or one that is compared with the disk.")
    disk: Snapshot | None = None
    problem: str | None = None
    try:
        disk = await context.require_engine().reloader.load_unsealed()
    except ConfigError as error:
        problem = error.message
    comparisons = await asyncio.to_thread(_compare_with_disk, active, disk)
    return ConfigDiff(
        comparisons=tuple(_limit_hashes(comparison, request) for comparison in comparisons), problem=problem
    )


def _compare_with_disk(active: Snapshot, disk: Snapshot | None) -> tuple[Comparison, ...]:
    """Compare what is in force, and what was sealed, with the disk; `disk` is None if it cannot be loaded."""
    directory = active.directory
    in_force = {name: file.hash for name, file in active.checksums.files.items()}
    present = None if disk is None else {name: file.hash for name, file in disk.checksums.files.items()}
    keys = () if disk is None else compare_configs(active.comparable, disk.comparable)
    comparison = compare_hashes(directory, "in force", in_force, present)
    lines = tuple(key.describe() for key in keys[:MAX_KEYS])
    explained = bool(comparison.files) and all(
        file.differences or file.change != "changed" for file in comparison.files
    )
    return (
        replace(comparison, same=comparison.same and not lines, keys=() if explained else lines),
        compare_with_sealed(directory, present),
    )


def compare_with_sealed(directory: Path, present: Mapping[str, str] | None) -> Comparison:
    """Compare the files on disk with the seal; `present` has their hashes, if they could be loaded."""
    try:
        sealed = read_checksums(directory)
    except ConfigError:
        sealed = None  # every file then differs from the seal
    hashes = {} if sealed is None else {name: file.hash for name, file in sealed.files.items()}
    return compare_hashes(directory, "sealed", hashes, present)


def compare_hashes(
    directory: Path, name: str, hashes: Mapping[str, str], present: Mapping[str, str] | None
) -> Comparison:
    """Compare a named set of files with the disk; with the files of the same names if `present` is None."""
    on_disk = hashes_on_disk(directory, hashes) if present is None else present
    return _compare((name, hashes), ("disk", on_disk), directory)


def _compare(
    before: tuple[str, Mapping[str, str]], after: tuple[str, Mapping[str, str]], directory: Path
) -> Comparison:
    """Compare two sets of files. A set is its name, and the hashes of its files by their names."""
    files = compare_file_sets(directory, before[1], after[1])
    return Comparison(
        before=before[0],
        after=after[0],
        same=not files,
        files=tuple(changed_file(file) for file in files),
        keys=(),
        hashes={file.name: (before[1].get(file.name), after[1].get(file.name)) for file in files},
    )


def compare_ids(directory: Path, loads: Sequence[ConfigRecord], before: str, after: str | None) -> Comparison:
    """Compare two configurations of the history, or one with the disk. Raises NotFoundError.

    Their files are compared if they are kept, else what was recorded when they were loaded.
    """
    try:
        seals = read_seals(directory)
        old = find_seal(seals, before, present=None)
        if after is None:
            return compare_hashes(directory, old.id, old.files, None)
        new = find_seal(seals, after, present=None)
        return _compare((old.id, old.files), (new.id, new.files), directory)
    except (NotFoundError, DeniedError):
        if after is None:
            raise
    old_load, new_load = _find_load(loads, before), _find_load(loads, after)
    lines = tuple(difference.describe() for difference in load_differences(old_load, new_load)[:MAX_KEYS])
    return Comparison(
        before=old_load.files or old_load.hash,
        after=new_load.files or new_load.hash,
        same=not lines,
        files=(),
        keys=lines,
    )


def _find_load(loads: Sequence[ConfigRecord], start_of_id: str) -> ConfigRecord:
    """Return the latest load whose id or fingerprint has this beginning. Raises NotFoundError."""
    for load in loads:
        fingerprint = load.hash.removeprefix("blake3:")
        if (load.files or "").startswith(start_of_id) or fingerprint.startswith(start_of_id):
            return load
    raise NotFoundError(
        f"no configuration with the id {start_of_id} is in the history",
        hint="`ductile config history` lists what there is.",
    )


def _limit_hashes(comparison: Comparison, request: DiffConfig) -> Comparison:
    """Leave out the hashes of files: only the command line of the same machine asks for them."""
    return comparison if request.hashes else replace(comparison, hashes=UNSET)
