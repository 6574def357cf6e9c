"""The doctor's look at files: the configuration, its seal, who may read it, and the plugins it names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ductile.config.find_config import resolve_path
from ductile.config.seal import CHECKSUMS_FILE
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, IntegrityError, Problem
from ductile.operations.diagnose.findings import (
    DoctorCheck,
    DoctorFinding,
    FindingLevel,
    failure,
    from_problem,
    ok,
    warning,
)
from ductile.operations.system.status import NOT_CHECKED
from ductile.store.model.records import LogRow

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: What mends a broken seal, and nothing else.
_SEALING = "ductile config lock"


def config_findings(snapshot: Snapshot) -> Iterator[DoctorFinding]:
    """Of a configuration that could be loaded."""
    sealed = [problem for problem in snapshot.warnings if _is_about_the_seal(problem)]
    others = [problem for problem in snapshot.warnings if not _is_about_the_seal(problem)]
    yield from (from_problem(DoctorCheck.CONFIG, FindingLevel.WARN, problem) for problem in others)
    yield from (from_problem(DoctorCheck.SEAL, FindingLevel.WARN, problem) for problem in sealed)
    if not others:
        yield ok(DoctorCheck.CONFIG, "the configuration loads without a warning", str(snapshot.directory))
    if not sealed:
        yield ok(
            DoctorCheck.SEAL,
            "the files and plugins are what was sealed",
            str(snapshot.directory / CHECKSUMS_FILE),
        )


def refused_config(error: ConfigError) -> Iterator[DoctorFinding]:
    """Of one that could not: everything that is wrong with it, at once."""
    check = DoctorCheck.SEAL if isinstance(error, IntegrityError) else DoctorCheck.CONFIG
    if not error.problems:
        yield failure(check, error.message, fix=error.hint)
    yield from (from_problem(check, FindingLevel.ERROR, problem) for problem in error.problems)


def _is_about_the_seal(problem: Problem) -> bool:
    return _SEALING in (problem.hint or "")


def environment_files(snapshot: Snapshot) -> tuple[Path, ...]:
    """The files of variables that the configuration names: they hold its secrets."""
    shown = snapshot.redacted if isinstance(snapshot.redacted, dict) else {}
    section = shown.get("environment_vars")
    named = section.get("include") if isinstance(section, dict) else None
    return tuple(
        resolve_path(str(name), snapshot.directory) for name in (named if isinstance(named, list) else ())
    )


def permission_findings(
    directory: Path, secret: Iterable[Path], state: Path | None
) -> Iterator[DoctorFinding]:
    """Who else may look into the configuration and the store, or change them."""
    found = [
        finding
        for path, private in _guarded(directory, secret, state).items()
        if (finding := _judge_mode(path, private=private)) is not None
    ]
    yield from found
    if not found:
        yield ok(DoctorCheck.PERMISSIONS, "only their owner can read and change the files", str(directory))


def _guarded(directory: Path, secret: Iterable[Path], state: Path | None) -> dict[Path, bool]:
    """Each path once, and whether others must not even read it."""
    files = sorted((*directory.glob("*.yaml"), *directory.glob("*.yml"), directory / CHECKSUMS_FILE))
    kept = () if state is None else (state.parent, state)
    return dict.fromkeys((directory, *files), False) | dict.fromkeys((*secret, *kept), True)


def _judge_mode(path: Path, *, private: bool) -> DoctorFinding | None:
    try:
        found = path.stat()
    except OSError:
        return None  # not there: whoever needs it says so
    open_to_others = stat.S_IMODE(found.st_mode) & _OTHERS
    want = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
    fix = f"chmod {want:o} {path}"
    if found.st_uid not in (os.geteuid(), 0):
        message = f"it belongs to user {found.st_uid}, not to the user who runs this"
        return warning(DoctorCheck.PERMISSIONS, message, where=str(path), fix=f"chown {os.geteuid()} {path}")
    if open_to_others & _OTHERS_WRITE:
        return failure(DoctorCheck.PERMISSIONS, "other users can change it", where=str(path), fix=fix)
    if open_to_others and private:
        return failure(
            DoctorCheck.PERMISSIONS, "other users can read it, and it holds secrets", where=str(path), fix=fix
        )
    if open_to_others:
        return warning(DoctorCheck.PERMISSIONS, "other users can read it", where=str(path), fix=fix)
    return None


def newly_refused(in_force: Snapshot, on_disk: Snapshot) -> Iterator[DoctorFinding]:
    """Plugins that still run, and that the next start or reload will refuse."""
    known = {plugin.name for plugin in in_force.refused}
    for plugin in on_disk.refused:
        if plugin.name not in known:
            yield _refused(plugin, "will not run after the next start or reload")


def plugin_findings(snapshot: Snapshot) -> Iterator[DoctorFinding]:
    yield from (_refused(plugin, "cannot run") for plugin in snapshot.refused)
    if not snapshot.refused:
        count = sum(plugin.runnable for plugin in snapshot.plugins.values())
        yield ok(DoctorCheck.PLUGINS, f"{count} of {len(snapshot.plugins)} configured plugins can run")


def _refused(plugin: PluginInstance, words: str) -> DoctorFinding:
    refusal = plugin.refused
    assert refusal is not None  # noqa: S101 - that is what `refused` gives
    return failure(
        DoctorCheck.PLUGINS,
        f"{plugin.name} {words}: {refusal.reason}",
        where=f"plugins.{plugin.name}",
        fix=refusal.hint or f"ductile plugin check {plugin.uses}",
    )


def health_findings(checked: JsonObject) -> Iterator[DoctorFinding]:
    """What the plugins' own health commands said."""
    rows = checked["health"]
    assert isinstance(rows, list)  # noqa: S101 - as `check_health` makes it
    asked = [row for row in rows if isinstance(row, dict) and row["status"] != NOT_CHECKED]
    ill = [row for row in asked if row["status"] != "succeeded"]
    for row in rows:
        if isinstance(row, dict) and row["status"] == NOT_CHECKED:
            message = f"{row['plugin']} was not asked for its health: it is busy, and runs one job at a time"
            yield ok(DoctorCheck.HEALTH, message)
    for row in ill:
        said = row["error"] or row["status"]
        yield failure(
            DoctorCheck.HEALTH,
            f"{row['plugin']} is not healthy: {said}",
            where=f"job {row['job_id']}",
            fix=f"ductile job explain {row['job_id']}",
        )
    if asked and not ill:
        yield ok(DoctorCheck.HEALTH, f"{len(asked)} plugins say that they are healthy")
    if not rows:
        yield ok(DoctorCheck.HEALTH, "no plugin has a health command")


def past_health_findings(checked: Mapping[str, LogRow | None]) -> Iterator[DoctorFinding]:
    """What they said when they were asked last."""
    rows = [row for row in checked.values() if row is not None]
    ill = [row for row in rows if row.status is not LogStatus.SUCCEEDED]
    for row in ill:
        yield failure(
            DoctorCheck.HEALTH,
            f"{row.plugin} was not healthy at {row.completed_at:%Y-%m-%dT%H:%M:%SZ}: "
            f"{row.error or row.status}",
            where=f"job {row.job_id}",
            fix=f"ductile job explain {row.job_id}",
        )
    if not checked:
        yield ok(DoctorCheck.HEALTH, "no plugin has a health command")
    elif not rows:
        yield ok(DoctorCheck.HEALTH, "no plugin was asked for its health yet; `ductile doctor` asks them")
    elif not ill:
        yield ok(DoctorCheck.HEALTH, f"{len(rows)} plugins were healthy when they were last asked")
