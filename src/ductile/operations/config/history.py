"""The configurations that were sealed or loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from ductile.config.differences import ComparableConfig, SettingDifference, compare_configs, summarise
from ductile.config.history.compare import compare_file_sets
from ductile.config.history.restore import read_seals
from ductile.config.history.seal_log import UNSEALED, SealRecord
from ductile.errors import DeniedError
from ductile.operations.context import OperationContext
from ductile.operations.request import PageLimit
from ductile.operations.response import Response, Timestamp, timestamp
from ductile.store.model.maintenance import ConfigOrigin, ConfigRecord
from ductile.struct import Value, about

DEFAULT_LIMIT = 20


class HistoryEvent(StrEnum):
    LOADED = "loaded"
    SEALED = "sealed"
    #: Files with changes that were never sealed, which a rollback has replaced.
    REPLACED = "replaced"


class ShowConfigHistory(Value):
    limit: PageLimit = DEFAULT_LIMIT


class HistoryEntry(Value):
    id: Annotated[
        str | None,
        about("Of the files: equal files with equal contents have the same id. Null if not recorded."),
    ]
    at: Timestamp
    event: Annotated[HistoryEvent, about("`sealed` if it was sealed and not loaded since.")]
    origin: Annotated[ConfigOrigin | None, about("Of a load: `start`, `reload`, or `run` without a daemon.")]
    command: Annotated[str | None, about("`apply`, `rollback`, `reload`, `lock`, `token` or `signal`.")]
    author: Annotated[str | None, about("`cli`, `token NAME`, or the user who sealed it.")]
    config: Annotated[str | None, about("Of a load: the fingerprint, which covers plugins too.")]
    changes: Annotated[str, about("What differs from the entry before, in short; empty if nothing does.")]
    in_force: Annotated[bool, about("Whether the daemon uses it now.")]
    restorable: Annotated[bool, about("Whether `config rollback ID` finds its files.")]


class ConfigHistory(Response):
    history: Annotated[list[HistoryEntry], about("The newest first.")]
    complete: Annotated[bool, about("Whether the daemon may read the list of sealed configurations.")]


async def show_history(context: OperationContext, request: ShowConfigHistory) -> ConfigHistory:
    """Return the configurations that were loaded, and those that were sealed and not loaded, newest first."""
    directory = context.snapshot().directory
    loads = await context.store.config_history(limit=request.limit + 1)
    try:
        seals, complete = await asyncio.to_thread(read_seals, directory), True
    except DeniedError:
        seals, complete = (), False
    active = None if context.engine is None else context.snapshot().fingerprint
    entries = await asyncio.to_thread(merge_history, directory, loads, seals, active=active)
    return ConfigHistory(history=entries[: request.limit], complete=complete)


def merge_history(
    directory: Path, loads: Sequence[ConfigRecord], seals: Sequence[SealRecord], *, active: str | None
) -> list[HistoryEntry]:
    """Return the loads and the seals that no later load used, newest first. Reads kept copies of files."""
    sealed_ids = {seal.id for seal in seals}
    in_force = next((load for load in loads if load.hash == active), None)
    entries = [
        HistoryEntry(
            id=load.files,
            at=timestamp(load.loaded_at),
            event=HistoryEvent.LOADED,
            origin=load.origin,
            command=load.command,
            author=load.author,
            config=load.hash,
            changes="" if before is None else summarise_loads(before, load),
            in_force=load is in_force,
            restorable=load.files in sealed_ids,
        )
        for load, before in zip(loads, (*loads[1:], None), strict=False)
    ]
    oldest = min((load.loaded_at for load in loads), default=None)
    for before_seal, seal in zip((None, *seals), seals, strict=False):
        used = any(load.files == seal.id and load.loaded_at >= seal.at for load in loads)
        if not used and (oldest is None or seal.at >= oldest):
            entries.append(_sealed_entry(directory, seal, before_seal))
    return sorted(entries, key=lambda entry: entry.at, reverse=True)


def summarise_loads(before: ConfigRecord, after: ConfigRecord) -> str:
    """Return the keys and plugins that differ between two loads, in one line."""
    if keys := summarise(load_differences(before, after), limit=4):
        return keys
    old, new = before.plugins or {}, after.plugins or {}
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return ", ".join(f"plugins.{name}" for name in changed[:4])


def load_differences(before: ConfigRecord, after: ConfigRecord) -> tuple[SettingDifference, ...]:
    """Return the settings that differ between two loads."""
    return compare_configs(
        ComparableConfig(redacted=before.content), ComparableConfig(redacted=after.content)
    )


def _sealed_entry(directory: Path, seal: SealRecord, before: SealRecord | None) -> HistoryEntry:
    """Return the entry of a configuration that was sealed and not loaded. `before` is the seal before it."""
    changes = ""
    if before is not None:
        differences = compare_file_sets(directory, before.files, seal.files)
        settings = [setting for difference in differences for setting in difference.settings]
        changes = summarise(settings, limit=4) or ", ".join(difference.name for difference in differences)
    return HistoryEntry(
        id=seal.id,
        at=timestamp(seal.at),
        event=HistoryEvent.REPLACED if seal.command == UNSEALED else HistoryEvent.SEALED,
        origin=None,
        command=None if seal.command == UNSEALED else seal.command,
        author=seal.author,
        config=None,
        changes=changes,
        in_force=False,
        restorable=True,
    )
