"""The files of plugins as they are on disk now, held against those that a run was recorded with.

A changed entrypoint is run from the next job on, with no reload: the recorded fingerprint is then an old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from ductile.config.snapshot import Snapshot
from ductile.operations.diagnose.differences import Difference
from ductile.plugins.fingerprint import fingerprint
from ductile.protocol.manifest.model import MANIFEST_FILE
from ductile.store.model.maintenance import ConfigRecord
from ductile.struct import Value


class FilesOnDisk(Value):
    plugin: str
    fingerprint: str
    changed_at: datetime


class FileComparison(Value):
    differences: tuple[Difference, ...] = ()
    #: What cannot be told, in words that follow "not compared".
    unknown: tuple[str, ...] = ()


def files_on_disk(snapshot: Snapshot, plugins: Sequence[str]) -> tuple[FilesOnDisk, ...]:
    """Of those plugins that are there. Blocking."""
    found = []
    for name in plugins:
        plugin = snapshot.plugins.get(name)
        if plugin is None or plugin.installed is None:
            continue
        manifest = plugin.installed.directory / MANIFEST_FILE
        entrypoint = plugin.installed.entrypoint
        try:
            changed = max(manifest.stat().st_mtime, entrypoint.stat().st_mtime)
            found.append(
                FilesOnDisk(
                    plugin=name,
                    fingerprint=fingerprint(manifest.read_bytes(), entrypoint),
                    changed_at=datetime.fromtimestamp(changed, tz=UTC),
                )
            )
        except OSError:
            continue
    return tuple(found)


def compare_files(
    on_disk: Sequence[FilesOnDisk],
    now: ConfigRecord | None,
    *,
    good_at: datetime | None,
    now_at: datetime | None,
) -> FileComparison:
    """Files that are not those that were loaded: changed between the two runs, or at an unknown time."""
    differences: list[Difference] = []
    unknown: list[str] = []
    for files in on_disk:
        loaded = None if now is None or now.plugins is None else now.plugins.get(files.plugin)
        if loaded is None or loaded.fingerprint in (None, files.fingerprint):
            continue
        changed = f"{files.changed_at:%Y-%m-%dT%H:%M:%SZ}"
        if good_at is not None and now_at is not None and good_at < files.changed_at <= now_at:
            differences.append(
                Difference(
                    what=f"files of plugin {files.plugin}",
                    good="as loaded",
                    now=f"changed on disk at {changed}, without a reload",
                )
            )
        else:
            unknown.append(
                f"the files of {files.plugin} as they were then: "
                f"those on disk (changed {changed}) are not those that were loaded"
            )
    return FileComparison(differences=tuple(differences), unknown=tuple(unknown))
