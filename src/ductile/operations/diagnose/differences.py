"""Differences between a failed job and the last good one.

Single jobs are compared by configuration, plugin files, execution and input. The steps of pipeline runs are
matched by path, and a step that ran several times is compared with the execution in the good run that it
differs least from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from ductile.config.snapshot import Snapshot
from ductile.core.expressions.paths import MISSING, EvalContext, look_up
from ductile.core.expressions.templates import references_by_key
from ductile.core.json import JsonObject, JsonValue
from ductile.core.json_shapes import (
    FieldChange,
    FieldChangeKind,
    breaks_reference,
    closest_changes,
    likely_rename,
    reference_path,
)
from ductile.core.runs.graph import Graph, UseNode
from ductile.operations.diagnose.wording import first_line
from ductile.plugins.discovery import fingerprint
from ductile.plugins.scripts import script_fingerprint
from ductile.protocol.manifest.model import MANIFEST_FILE
from ductile.store.model.maintenance import ConfigRecord, PluginVersion
from ductile.store.model.records import LogRow
from ductile.struct import Value

#: Durations are a difference if one is this many times the other.
_NOTABLE_RATIO = 3.0
_MAX_TEXT = 200
_MAX_KEYS = 10
_EVENT = "event"
_PAYLOAD = ("payload",)
_MAX_CHANGES = 10
#: Fields of a node under the names that pipelines have for them.
_PIPELINE_KEYS = {"payload": "with", "condition": "if", "next": "what follows"}


class Difference(Value):
    what: str
    good: str | None
    now: str | None


def compare_executions(good: LogRow, bad: LogRow) -> Iterator[Difference]:
    """Yield the differences between two executions, as far as the log shows them."""
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
    """Yield the keys of the payload that differ. Their values are not shown: they may be long or secret."""
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


def compare_configs(
    good: ConfigRecord | None, bad: ConfigRecord | None, plugins: Sequence[str]
) -> Iterator[Difference]:
    """Yield the differences between two configurations that concern jobs of these plugins."""
    if good is None or bad is None or good.hash == bad.hash:
        return
    changed = [change for plugin in plugins for change in compare_plugin(good, bad, plugin)]
    yield from changed
    if not changed:
        # Without recorded plugin versions a change may be one of the plugins' files, or of a secret.
        known = all(_version(record, plugin) is not None for record in (good, bad) for plugin in plugins)
        outside = f"configuration outside of {', '.join(f'plugins.{name}' for name in plugins)}"
        what = outside if known else "configuration or plugin files"
        yield Difference(what=what, good=good.hash, now=bad.hash)


def compare_plugin(good: ConfigRecord, bad: ConfigRecord, plugin: str) -> Iterator[Difference]:
    """Yield the differences of one plugin: its settings, version, files, and secrets without their values."""
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
    """Yield the differences key by key. Recorded configurations hold no secrets, so values are shown."""
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


def changed_on_disk(snapshot: Snapshot, plugins: Sequence[str], loaded: ConfigRecord) -> dict[str, datetime]:
    """Return the plugins whose files on disk are not those that were loaded, with the time of the change.

    A changed entrypoint is run from the next job on, without a reload: the recorded fingerprint is then old.
    Blocks.
    """
    changed_at = {}
    for name in plugins:
        plugin, version = snapshot.plugins.get(name), _version(loaded, name)
        if plugin is None or plugin.installed is None or version is None or version.fingerprint is None:
            continue
        installed = plugin.installed
        with suppress(OSError):  # files that cannot be read are not compared
            if installed.script is not None:
                files = [] if installed.program is None else [installed.program]
                present = script_fingerprint(installed.script.argv, installed.program)
            else:
                files = [installed.directory / MANIFEST_FILE, installed.entrypoint]
                present = fingerprint(files[0].read_bytes(), installed.entrypoint)
            if present != version.fingerprint:
                last_change = max((file.stat().st_mtime for file in files), default=0.0)
                changed_at[name] = datetime.fromtimestamp(last_change, tz=UTC)
    return changed_at


# ------------------------------------------------------------------------------------- steps of runs


class StepTrace(Value):
    """One execution of a step: its input, and its output as the steps after it see it."""

    path: str
    job_id: str
    plugin: str
    command: str
    #: Its input; None where it is no longer stored.
    payload: JsonObject | None = None
    #: Payloads by event type; the type is empty for a step that emitted no event. None where the step did not
    #: succeed, or its output is no longer stored.
    emitted: Mapping[str, tuple[JsonObject, ...]] | None = None

    @property
    def name(self) -> str:
        return f"{self.path} ({self.plugin} {self.command}, job {self.job_id})"


class StepChange(Value):
    step: StepTrace
    changes: tuple[FieldChange, ...]


class MissingReference(Value):
    """A reference that finds no value now: `with.to` of step `send` refers to `payload.email`."""

    step: str
    place: str
    reference: str


def changed_outputs(good: Sequence[StepTrace], now: Sequence[StepTrace]) -> tuple[StepChange, ...]:
    """Return the steps whose output has another shape, in the order of `now`."""
    return tuple(
        StepChange(step=step, changes=changes)
        for step in now
        if (changes := tuple(dict.fromkeys(_output_changes(_same_step(good, step), step))))
    )


def changed_inputs(good: Sequence[StepTrace], now: Sequence[StepTrace]) -> tuple[StepChange, ...]:
    """Return the steps whose input has another shape, in the order of `now`."""
    differences = []
    for step in now:
        inputs = [other.payload for other in _same_step(good, step) if other.payload is not None]
        if step.payload is not None and (changes := closest_changes(inputs, step.payload, _PAYLOAD)):
            differences.append(StepChange(step=step, changes=changes))
    return tuple(differences)


def uncompared_steps(
    good: Sequence[StepTrace], now: Sequence[StepTrace], *, failed_step: str | None
) -> Iterator[str]:
    """Yield what cannot be compared of the steps. The failed step has no output in any case."""
    if new := dict.fromkeys(step.path for step in now if not _same_step(good, step)):
        yield f"steps that the good run did not run: {', '.join(new)}"
    without_output = dict.fromkeys(step.path for step in now if step.emitted is None)
    if lost := [path for path in without_output if path != failed_step and path not in new]:
        yield f"the output of steps whose response is no longer stored: {', '.join(lost)}"


def missing_references(
    step: UseNode, payload: JsonObject, baggage: JsonObject, run: JsonObject
) -> tuple[MissingReference, ...]:
    """Return the references of a step's `with` and `baggage` that find no value in its input."""
    context = EvalContext(payload=payload, context=baggage, run=run)
    references = [] if step.payload is None else [*references_by_key(step.payload.template)]
    references += [(f"baggage.{'.'.join(claim.target)}", claim.source) for claim in step.baggage]
    return tuple(
        MissingReference(step=step.path, place=path, reference=reference)
        for path, reference in references
        if look_up(reference, context) is MISSING
    )


def first_change(changes: Sequence[StepChange], missing: Sequence[MissingReference]) -> StepChange | None:
    """Return the first change that explains a missing reference, else one that lost a field, else any."""
    for candidates in (
        [change for change in changes if explained_references(change, missing)],
        [
            change
            for change in changes
            if any(field.kind is not FieldChangeKind.NEW for field in change.changes)
        ],
        changes,
    ):
        if candidates:
            return candidates[0]
    return None


def explained_references(
    change: StepChange, missing: Sequence[MissingReference]
) -> tuple[MissingReference, ...]:
    """Return the missing references that a change explains."""
    return tuple(
        reference for reference in missing if any(_explains(field, reference) for field in change.changes)
    )


def _explains(field: FieldChange, missing: MissingReference) -> bool:
    """Return whether a reference is missing because of a change of a field.

    Steps in between may have moved a field, so the same name is enough.
    """
    if breaks_reference(field, missing.reference):
        return True
    is_field = field.kind is FieldChangeKind.REMOVED and len(field.path) > 1
    return is_field and field.path[-1] == reference_path(missing.reference)[-1]


def describe_change(change: StepChange, missing: Sequence[MissingReference]) -> str:
    """Return one or two sentences: which step, what changed in its output, and which step needs it."""

    def rank(field: FieldChange) -> int:
        if any(_explains(field, reference) for reference in missing):
            return 0
        return 2 if field.kind is FieldChangeKind.NEW else 1

    fields = sorted(change.changes, key=rank)[:_MAX_CHANGES]
    described = []
    for field in fields:
        match field.kind:
            case FieldChangeKind.REMOVED:
                renamed = likely_rename(change.changes, field)
                new_name = f" (renamed to {renamed.name}?)" if renamed else ""
                described.append(f"{field.name} is gone{new_name}")
            case FieldChangeKind.NEW:
                described.append(f"{field.name} is new")
            case FieldChangeKind.TYPE_CHANGED:
                described.append(f"{field.name} is {field.now}, was {field.before}")
    if len(change.changes) > len(fields):
        described.append(f"and {len(change.changes) - len(fields)} more")
    needs = [
        f" Step {reference.step} needs {reference.reference} ({reference.place})."
        for reference in explained_references(change, missing)
    ]
    changes = "; ".join(described)
    return f"The first step whose output changed is {change.step.name}: {changes}.{''.join(needs)}"


def change_advice(change: StepChange, missing: Sequence[MissingReference]) -> str | None:
    """Return how to bring a lost field back or do without it; None if no missing reference needs it."""
    explained = explained_references(change, missing)
    if not explained:
        return None
    reference = explained[0]
    lost = next(field for field in change.changes if _explains(field, reference))
    renamed = likely_rename(change.changes, lost)
    new_name = f" ({renamed.name})" if renamed is not None else ""
    return (
        f"Either have plugin {change.step.plugin} give {lost.name} again, or change {reference.place} of "
        f"step {reference.step} to what it gives now{new_name}."
    )


def differences_of(change: StepChange, what: str) -> Iterator[Difference]:
    """Yield one difference for each field. `what` is input or output."""
    prefix = f"{what} of step {change.step.path}, "
    for field in change.changes[:_MAX_CHANGES]:
        yield Difference(what=f"{prefix}{field.name}", good=field.before, now=field.now)


def compare_graphs(good: Graph, now: Graph) -> Iterator[Difference]:
    """Yield the differences of the pipeline by step, without the contents of `with`: they may be secret."""
    if good.fingerprint == now.fingerprint:
        return
    differences = []
    for path in dict.fromkeys((*good.nodes, *now.nodes)):
        before, after = good.nodes.get(path), now.nodes.get(path)
        if before is None or after is None:
            good_text, now_text = ("there" if node else None for node in (before, after))
            differences.append(Difference(what=f"step {path}", good=good_text, now=now_text))
            continue
        keys = ["kind"]
        if type(before) is type(after):
            names = [name for name in before.__struct_fields__ if name not in {"path", "position"}]
            changed = [name for name in names if getattr(before, name) != getattr(after, name)]
            keys = [_PIPELINE_KEYS.get(name, name) for name in changed]
        if keys:
            change = f"changed: {', '.join(keys)}"
            differences.append(Difference(what=f"step {path}", good="as it was", now=change))
    yield from differences or [Difference(what="pipeline", good=good.fingerprint, now=now.fingerprint)]


def _same_step(good: Sequence[StepTrace], step: StepTrace) -> list[StepTrace]:
    """Return the executions of a step in the good run."""
    return [other for other in good if other.path == step.path]


def _output_changes(good: Sequence[StepTrace], step: StepTrace) -> Iterator[FieldChange]:
    """Yield the fields and events that a step emitted in only one of the two runs."""
    before = [other.emitted for other in good if other.emitted is not None]
    if step.emitted is None or not before:
        return
    for event_type, payloads in step.emitted.items():
        good_payloads = [payload for emitted in before for payload in emitted.get(event_type, ())]
        if not good_payloads:
            yield _event_change(event_type, FieldChangeKind.NEW)
            continue
        for payload in payloads:
            yield from closest_changes(good_payloads, payload, _PAYLOAD) or ()
    for event_type in dict.fromkeys(event_type for payloads in before for event_type in payloads):
        if event_type not in step.emitted and all(event_type in payloads for payloads in before):
            yield _event_change(event_type, FieldChangeKind.REMOVED)


def _event_change(event_type: str, kind: FieldChangeKind) -> FieldChange:
    name = f"{_EVENT} {event_type}" if event_type else "the result without an event"
    is_new = kind is FieldChangeKind.NEW
    return FieldChange(
        path=(name,), kind=kind, before=None if is_new else _EVENT, now=_EVENT if is_new else None
    )
