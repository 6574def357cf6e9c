"""What differs between a run that failed and the last good one: the short list to look at first. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ductile.core.json import JsonObject, JsonValue
from ductile.store.model.maintenance import ConfigRecord, PluginVersion
from ductile.store.model.records import LogRow
from ductile.struct import Value

#: A run that took so many times as long, or as short, is worth a word.
_TELLING_RATIO = 3.0
_LONGEST = 200
_MOST_KEYS = 10


class Difference(Value):
    what: str
    good: str | None
    now: str | None


def compare_runs(good: LogRow, bad: LogRow) -> Iterator[Difference]:
    """What the log tells of the two executions."""
    yield from _unless_same("exit status", good.exit_code, bad.exit_code)
    yield from _unless_same("signal", good.signal, bad.signal)
    yield from _unless_same("first line of stderr", first_line(good.stderr), first_line(bad.stderr))
    yield from _unless_same("submitted by", good.submitted_by.value, bad.submitted_by.value)
    if good.duration is None or bad.duration is None:
        return
    quick, slow = good.duration.total_seconds(), bad.duration.total_seconds()
    if max(quick, slow) > _TELLING_RATIO * max(min(quick, slow), 0.001):
        yield Difference(what="duration", good=f"{quick:.3f}s", now=f"{slow:.3f}s")


def compare_inputs(good: JsonObject | None, bad: JsonObject | None) -> Iterator[Difference]:
    """Which parts of the input differ; not how, since a value may be long or secret."""
    before, after = good or {}, bad or {}
    keys = dict.fromkeys((*before, *after))
    for key in [key for key in keys if before.get(key, ...) != after.get(key, ...)][:_MOST_KEYS]:
        there = key in before and key in after
        yield Difference(
            what=f"payload.{key}",
            good="a value" if there else _presence(key, before),
            now="another value" if there else _presence(key, after),
        )


def compare_configs(good: ConfigRecord | None, bad: ConfigRecord | None, plugin: str) -> Iterator[Difference]:
    """What was changed in the configuration between the two, as far as it may be shown."""
    if good is None or bad is None or good.hash == bad.hash:
        return
    changed = [*compare_plugin(good, bad, plugin)]
    yield from changed
    if changed:
        return
    if _version(good, plugin) is None or _version(bad, plugin) is None:
        # Its own files, a secret, or something that another plugin uses: the contents cannot tell.
        yield Difference(what="configuration or plugin files", good=good.hash, now=bad.hash)
    else:
        yield Difference(what=f"configuration outside of plugins.{plugin}", good=good.hash, now=bad.hash)


def compare_plugin(good: ConfigRecord, bad: ConfigRecord, plugin: str) -> Iterator[Difference]:
    """What differs for one plugin: its settings, its version, its files, and secrets without their value."""
    changed = [*_changes(_settings(good, plugin), _settings(bad, plugin), f"plugins.{plugin}")]
    yield from changed[:_MOST_KEYS]
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
    """Key by key. What is recorded holds no secrets, so the values can be shown."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _changes(before.get(key), after.get(key), f"{path}.{key}")
    elif before != after:
        yield Difference(what=path, good=_written(before), now=_written(after))


def _written(value: JsonValue) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)[:_LONGEST]


def first_line(text: str | None) -> str | None:
    lines = (text or "").strip().splitlines()
    return lines[0][:_LONGEST] if lines else None


def _presence(key: str, values: Mapping[str, JsonValue]) -> str | None:
    return "given" if key in values else None


def _unless_same(what: str, good: object, now: object) -> Iterator[Difference]:
    if good != now:
        yield Difference(what=what, good=_text(good), now=_text(now))


def _text(value: object) -> str | None:
    return None if value is None else str(value)
