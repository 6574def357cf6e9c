"""Differences between a failed job and the last good one: configuration, plugin files, execution, input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.diagnose.wording import first_line, time_text
from ductile.plugins.fingerprint import fingerprint
from ductile.protocol.manifest.model import MANIFEST_FILE
from ductile.store.model.maintenance import ConfigRecord, PluginVersion
from ductile.store.model.records import LogRow
from ductile.struct import Value

#: Durations are a difference if one is this many times the other.
_NOTABLE_RATIO = 3.0
_MAX_TEXT = 200
_MAX_KEYS = 10


class Difference(Value):
    what: str
    good: str | None
    now: str | None


def compare_executions(good: LogRow, bad: LogRow) -> Iterator[Difference]:
    """Differences in what the log has of two executions."""
    yield from _unless_same("exit status", good.exit_code, bad.exit_code)
    yield from _unless_same("signal", good.signal, bad.signal)
    yield from _unless_same("first line of stderr", first_line(good.stderr), first_line(bad.stderr))
    yield from _unless_same("submitted by", good.submitted_by.value, bad.submitted_by.value)
    if good.duration is None or bad.duration is None:
        return
    before, now = good.duration.total_seconds(), bad.duration.total_seconds()
    if max(before, now) > _NOTABLE_RATIO * max(min(before, now), 0.001):
        yield Difference(what="duration", good=f"{before:.3f}s", now=f"{now:.3f}s")


def compare_inputs(good: JsonObject | None, bad: JsonObject | None) -> Iterator[Difference]:
    """The keys of the payload that differ. Their values are not shown: they may be long or secret."""
    before, after = good or {}, bad or {}
    keys = dict.fromkeys((*before, *after))
    for key in [key for key in keys if before.get(key, ...) != after.get(key, ...)][:_MAX_KEYS]:
        if key in before and key in after:
            yield Difference(what=f"payload.{key}", good="a value", now="another value")
        else:
            yield Difference(
                what=f"payload.{key}",
                good="given" if key in before else None,
                now="given" if key in after else None,
            )


def compare_configs(good: ConfigRecord | None, bad: ConfigRecord | None, plugin: str) -> Iterator[Difference]:
    """Differences between two configurations for a job of this plugin."""
    if good is None or bad is None or good.hash == bad.hash:
        return
    changed = [*compare_plugin(good, bad, plugin)]
    yield from changed
    if not changed:
        # Without recorded plugin versions a change may be one of the plugin's files, or of a secret.
        known = _version(good, plugin) is not None and _version(bad, plugin) is not None
        what = f"configuration outside of plugins.{plugin}" if known else "configuration or plugin files"
        yield Difference(what=what, good=good.hash, now=bad.hash)


def compare_plugin(good: ConfigRecord, bad: ConfigRecord, plugin: str) -> Iterator[Difference]:
    """Differences of one plugin: its settings, its version, its files, and secrets without their value."""
    changed = [*_changes(_settings(good, plugin), _settings(bad, plugin), f"plugins.{plugin}")]
    yield from changed[:_MAX_KEYS]
    before, now = _version(good, plugin), _version(bad, plugin)
    if before is None or now is None:
        return
    yield from _unless_same(f"version of plugin {plugin}", before.version, now.version)
    yield from _unless_same(f"files of plugin {plugin}", before.fingerprint, now.fingerprint)
    if not changed and before.config != now.config:
        yield Difference(
            what=f"a value of plugins.{plugin} that is not shown", good="a value", now="another value"
        )


def _version(record: ConfigRecord, plugin: str) -> PluginVersion | None:
    return None if record.plugins is None else record.plugins.get(plugin)


def _settings(record: ConfigRecord, plugin: str) -> JsonValue:
    plugins = record.content.get("plugins")
    return plugins.get(plugin) if isinstance(plugins, dict) else None


def _changes(before: JsonValue, after: JsonValue, path: str) -> Iterator[Difference]:
    """Differences key by key. Recorded configurations hold no secrets, so values are shown."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _changes(before.get(key), after.get(key), f"{path}.{key}")
    elif before != after:
        good, now = (
            None if value is None else json.dumps(value, ensure_ascii=False)[:_MAX_TEXT]
            for value in (before, after)
        )
        yield Difference(what=path, good=good, now=now)


def _unless_same(what: str, good: object, now: object) -> Iterator[Difference]:
    if good != now:
        yield Difference(
            what=what, good=None if good is None else str(good), now=None if now is None else str(now)
        )


class PluginFiles(Value):
    """The files of a plugin as they are on disk."""

    plugin: str
    fingerprint: str
    changed_at: datetime


class FileComparison(Value):
    differences: tuple[Difference, ...] = ()
    #: Parts that could not be compared, in words that follow "not compared:".
    unknown: tuple[str, ...] = ()


def read_plugin_files(snapshot: Snapshot, plugins: Sequence[str]) -> tuple[PluginFiles, ...]:
    """The files of those plugins that are installed and readable. Blocks."""
    found = []
    for name in plugins:
        plugin = snapshot.plugins.get(name)
        if plugin is None or plugin.installed is None:
            continue
        manifest, entrypoint = plugin.installed.directory / MANIFEST_FILE, plugin.installed.entrypoint
        try:
            changed = max(manifest.stat().st_mtime, entrypoint.stat().st_mtime)
            found.append(
                PluginFiles(
                    plugin=name,
                    fingerprint=fingerprint(manifest.read_bytes(), entrypoint),
                    changed_at=datetime.fromtimestamp(changed, tz=UTC),
                )
            )
        except OSError:
            continue
    return tuple(found)


def compare_files(
    on_disk: Sequence[PluginFiles],
    loaded: ConfigRecord | None,
    *,
    good_at: datetime | None,
    now_at: datetime | None,
) -> FileComparison:
    """Compare the files on disk with those that were recorded when the configuration was loaded.

    A changed entrypoint is run from the next job on, without a reload: the recorded fingerprint is then old.
    """
    differences: list[Difference] = []
    unknown: list[str] = []
    for files in on_disk:
        version = None if loaded is None else _version(loaded, files.plugin)
        if version is None or version.fingerprint in (None, files.fingerprint):
            continue
        changed = time_text(files.changed_at)
        if good_at is not None and now_at is not None and good_at < files.changed_at <= now_at:
            now = f"changed on disk at {changed}, without a reload"
            what = f"files of plugin {files.plugin}"
            differences.append(Difference(what=what, good="as loaded", now=now))
        else:
            unknown.append(
                f"the files of {files.plugin} as they were then: "
                f"those on disk (changed {changed}) are not those that were loaded"
            )
    return FileComparison(differences=tuple(differences), unknown=tuple(unknown))
