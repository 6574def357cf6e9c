"""`ductile apply` and `config rollback` on the files of this machine: plan, then write exactly the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ductile.admin.config import open_configuration
from ductile.config.find_config import find_config
from ductile.config.history.compare import changed_lines
from ductile.config.history.file_changes import (
    FileReplacement,
    PlannedChange,
    SealDifference,
    compare_with_seal,
    finish_change,
    plan_change,
    undo_change,
    write_change,
)
from ductile.config.history.file_copies import read_copy
from ductile.config.history.restore import find_restorable, plan_restore, read_seals
from ductile.config.load import SealMode, load_config
from ductile.config.seal import Checksums, decode_checksums, read_checksums
from ductile.engine.reload.effects import NameChanges, compare_snapshots
from ductile.errors import ConfigError, file_error
from ductile.operations.config.differences import ConfigDiff, compare_ids, compare_with_sealed
from ductile.operations.config.history import DEFAULT_LIMIT, HistoryEntry, merge_history
from ductile.operations.config.plan import ChangedFile, changed_files
from ductile.struct import Value, to_builtins

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.config.snapshot import Snapshot

_NO_CONTENTS: Mapping[str, bytes | None] = MappingProxyType({})


class LocalPlan(Value):
    """A configuration that can be used, and how it differs from what was sealed."""

    change: PlannedChange
    difference: SealDifference
    #: None with a daemon, which computes the id.
    id: str | None = None
    #: Tokens and shared secrets that differ from those of the present files. None with a daemon.
    tokens: NameChanges | None = None

    @property
    def files(self) -> tuple[ChangedFile, ...]:
        return changed_files(self.difference)

    @property
    def must_write(self) -> bool:
        """Return whether there is anything to write."""
        return self.difference.must_seal or bool(self.change.contents)

    def write(self, command: str) -> str | None:
        """Write and seal the files. Returns the id of replaced files that were never sealed.

        Raises ConflictError if a file was changed since the plan was made.
        """
        try:
            return write_change(self.change, command=command)
        except OSError as error:
            raise file_error(f"cannot write {error.filename or self.change.directory}", error) from error


def plan_checked_by_daemon(
    config_path: str | None,
    environ: Mapping[str, str],
    checksums: str,
    contents: Mapping[str, bytes | None] = _NO_CONTENTS,
) -> LocalPlan:
    """Plan to write what the daemon has checked; `checksums` is the seal of the result."""
    return _make_plan(
        find_config(config_path, environ).absolute().parent, decode_checksums(checksums), contents
    )


def plan_offline(
    config_path: str | None,
    environ: Mapping[str, str],
    contents: Mapping[str, bytes | None] = _NO_CONTENTS,
) -> LocalPlan:
    """Check the files without a daemon, and plan to write them. Raises ConfigError if they cannot be used."""
    directory = find_config(config_path, environ).absolute().parent
    overlay = {directory / name: data for name, data in contents.items()}
    snapshot = open_configuration(config_path, environ, seal=SealMode.IGNORE, overlay=overlay).snapshot
    plan = _make_plan(directory, snapshot.checksums, contents)
    plan_id = plan.change.plan_id(active=None, config=snapshot.fingerprint)
    before = _present_snapshot(config_path, environ, directory) if contents else snapshot
    tokens = None if before is None else compare_snapshots(before, snapshot).tokens
    return LocalPlan(change=plan.change, difference=plan.difference, id=plan_id, tokens=tokens)


def _present_snapshot(
    config_path: str | None, environ: Mapping[str, str], directory: Path
) -> Snapshot | None:
    """Return the configuration on disk, or the sealed one if that cannot be used; None if neither can."""
    with suppress(ConfigError):
        return open_configuration(config_path, environ, seal=SealMode.IGNORE).snapshot
    with suppress(ConfigError):
        sealed = read_checksums(directory) or Checksums()
        copies = {name: read_copy(directory, file.hash) for name, file in sealed.files.items()}
        overlay = {directory / name: data for name, data in copies.items() if data is not None}
        return open_configuration(config_path, environ, seal=SealMode.IGNORE, overlay=overlay).snapshot
    return None


def _make_plan(directory: Path, checksums: Checksums, contents: Mapping[str, bytes | None]) -> LocalPlan:
    try:
        change = plan_change(directory, checksums, contents)
        return LocalPlan(change=change, difference=compare_with_seal(change))
    except OSError as error:
        raise file_error(f"cannot read {error.filename or directory}", error) from error


def plan_rollback(
    config_path: str | None, environ: Mapping[str, str], to: str | None, *, keep_env: bool
) -> tuple[str, dict[str, bytes | None]]:
    """Return the id of an earlier sealed configuration, and the contents that restore it."""
    file = find_config(config_path, environ).absolute()
    try:
        record = find_restorable(file.parent, to)
        return record.id, plan_restore(file, record, keep_env=keep_env)
    except OSError as error:
        raise file_error(f"cannot read {error.filename or file.parent}", error) from error


def finish_or_undo_change(
    config_path: str | None, environ: Mapping[str, str], *, undo: bool
) -> tuple[FileReplacement, ...]:
    """Finish a change that was interrupted, or take it back. Returns the replaced files."""
    directory = find_config(config_path, environ).absolute().parent
    try:
        return undo_change(directory) if undo else finish_change(directory)
    except OSError as error:
        raise file_error(f"cannot write {error.filename or directory}", error) from error


def list_sealed(
    config_path: str | None, environ: Mapping[str, str], limit: int | None
) -> Sequence[HistoryEntry]:
    """Return the sealed configurations, newest first."""
    directory = find_config(config_path, environ).absolute().parent
    return merge_history(directory, (), read_seals(directory), active=None)[: limit or DEFAULT_LIMIT]


def compare_offline(
    config_path: str | None, environ: Mapping[str, str], before: str | None, after: str | None
) -> dict[str, Any]:
    """Return the response of `config.diff` without a daemon: no configuration is in force."""
    directory, problem = find_config(config_path, environ).absolute().parent, None
    try:
        if before is not None:
            comparison = compare_ids(directory, (), before, after)
        else:
            present: dict[str, str] | None = None
            try:
                loaded = load_config(find_config(config_path, environ), environ, seal=SealMode.IGNORE)
                present = {file.name: file.hash for file in loaded.files}
            except ConfigError as error:
                problem = error.message
            comparison = compare_with_sealed(directory, present)
    except OSError as error:
        raise file_error(f"cannot read {error.filename or directory}", error) from error
    document: dict[str, Any] = to_builtins(ConfigDiff(comparisons=(comparison,), problem=problem))
    return document


def add_changed_lines(config_path: str | None, environ: Mapping[str, str], diff: dict[str, Any]) -> None:
    """Add to each file of a diff its changed lines, from the kept copies, and remove the hashes."""
    directory = find_config(config_path, environ).absolute().parent
    for comparison in diff["comparisons"]:
        hashes = comparison.pop("hashes", {})
        for file in comparison["files"]:
            name = file["name"]
            if name in hashes and (lines := changed_lines(directory, name, *hashes[name])):
                file["text"] = lines
