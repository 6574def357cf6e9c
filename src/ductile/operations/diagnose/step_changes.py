"""The steps of a failed pipeline run against those of a good one: which output changed shape first. Pure.

Steps are matched by their path. A step that ran several times is compared with the execution in the good run
that it differs least from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ductile.core.expressions.paths import MISSING, EvalContext, look_up
from ductile.core.expressions.templates import references_by_key
from ductile.core.json import JsonObject
from ductile.core.json_shapes import (
    ChangeKind,
    FieldChange,
    breaks_reference,
    closest_changes,
    likely_rename,
    reference_path,
)
from ductile.core.runs.graph import Graph, Node, UseNode
from ductile.operations.diagnose.differences import Difference
from ductile.struct import Value

_EVENT = "event"
_PAYLOAD = ("payload",)
_MOST_CHANGES = 10


class StepTrace(Value):
    """One execution of a step: what it was given, and what the steps after it saw of its answer."""

    path: str
    job_id: str
    plugin: str
    command: str
    #: None where it is not kept.
    given: JsonObject | None = None
    #: Payloads by event type; the type is empty for a step that emitted no event. None where it did not
    #: succeed, or where its answer is not kept.
    emitted: Mapping[str, tuple[JsonObject, ...]] | None = None

    @property
    def name(self) -> str:
        return f"{self.path} ({self.plugin} {self.command}, job {self.job_id})"


class StepChange(Value):
    step: StepTrace
    changes: tuple[FieldChange, ...]


class MissingReference(Value):
    """A reference that leads nowhere now: `with.to` of step `send` refers to `payload.email`."""

    step: str
    place: str
    reference: str


def changed_outputs(good: Sequence[StepTrace], now: Sequence[StepTrace]) -> tuple[StepChange, ...]:
    """The steps whose output has another shape, in the order of `now`."""
    return tuple(
        StepChange(step=step, changes=changes)
        for step in now
        if (changes := tuple(dict.fromkeys(_output_changes(_same_step(good, step), step))))
    )


def changed_inputs(good: Sequence[StepTrace], now: Sequence[StepTrace]) -> tuple[StepChange, ...]:
    """The steps whose input has another shape, in the order of `now`."""
    found = []
    for step in now:
        inputs = [one.given for one in _same_step(good, step) if one.given is not None]
        if step.given is not None and (changes := closest_changes(inputs, step.given, _PAYLOAD)):
            found.append(StepChange(step=step, changes=changes))
    return tuple(found)


def unmatched_steps(good: Sequence[StepTrace], now: Sequence[StepTrace]) -> tuple[str, ...]:
    """The paths of steps that the good run did not run."""
    return tuple(dict.fromkeys(step.path for step in now if not _same_step(good, step)))


def steps_without_output(traces: Sequence[StepTrace]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.path for step in traces if step.emitted is None))


def missing_references(
    step: UseNode, payload: JsonObject, context: JsonObject
) -> tuple[MissingReference, ...]:
    """The references of a step's `with` and `baggage` that lead nowhere in what it saw."""
    scope = EvalContext(payload=payload, context=context)
    return tuple(
        MissingReference(step=step.path, place=place, reference=reference)
        for place, reference in _references(step)
        if look_up(reference, scope) is MISSING
    )


def first_change(changes: Sequence[StepChange], needs: Sequence[MissingReference]) -> StepChange | None:
    """The change to look at first: one that a need was lost by, else the first that took something away."""
    for candidates in (
        [change for change in changes if explained_references(change, needs)],
        [one for one in changes if any(field.kind is not ChangeKind.NEW for field in one.changes)],
        changes,
    ):
        if candidates:
            return candidates[0]
    return None


def explained_references(
    change: StepChange, needs: Sequence[MissingReference]
) -> tuple[MissingReference, ...]:
    """The needs that a change explains. Steps between may have moved a field, so its name is enough."""
    return tuple(need for need in needs if any(_explains(field, need) for field in change.changes))


def _explains(field: FieldChange, need: MissingReference) -> bool:
    if breaks_reference(field, need.reference):
        return True
    is_field = field.kind is ChangeKind.GONE and len(field.path) > 1
    return is_field and field.path[-1] == reference_path(need.reference)[-1]


def describe_change(change: StepChange, needs: Sequence[MissingReference]) -> str:
    """In one or two sentences: which step, what changed, and what needed it."""
    changes = _most_telling(change, needs)
    told = "; ".join(_tell_field(field, change.changes) for field in changes)
    more = len(change.changes) - len(changes)
    tail = f"; and {more} more" if more > 0 else ""
    wanted = [
        f"Step {need.step} needs {need.reference} ({need.place})."
        for need in explained_references(change, needs)
    ]
    needed = f" {' '.join(wanted)}" if wanted else ""
    return f"The first step whose output changed is {change.step.name}: {told}{tail}.{needed}"


def change_advice(change: StepChange, needs: Sequence[MissingReference]) -> str | None:
    """The two ways out of a field that was lost."""
    lost = explained_references(change, needs)
    if not lost:
        return None
    need = lost[0]
    gone = next(field for field in change.changes if _explains(field, need))
    renamed = likely_rename(change.changes, gone)
    instead = f" ({renamed.name})" if renamed is not None else ""
    return (
        f"Either have plugin {change.step.plugin} give {gone.name} again, or change {need.place} of step "
        f"{need.step} to what it gives now{instead}."
    )


def _most_telling(change: StepChange, needs: Sequence[MissingReference]) -> list[FieldChange]:
    """What explains a need first, then what is gone, then the rest."""

    def rank(field: FieldChange) -> int:
        if any(_explains(field, need) for need in needs):
            return 0
        return 2 if field.kind is ChangeKind.NEW else 1

    return sorted(change.changes, key=rank)[:_MOST_CHANGES]


def _tell_field(field: FieldChange, beside: Sequence[FieldChange]) -> str:
    match field.kind:
        case ChangeKind.GONE:
            renamed = likely_rename(beside, field)
            return f"{field.name} is gone" + (f" (renamed to {renamed.name}?)" if renamed else "")
        case ChangeKind.NEW:
            return f"{field.name} is new"
        case ChangeKind.RETYPED:
            return f"{field.name} is {field.now}, was {field.before}"


def differences_of(change: StepChange, what: str) -> Iterator[Difference]:
    """Field by field, as they are listed. `what` is input or output."""
    for field in change.changes[:_MOST_CHANGES]:
        yield Difference(
            what=f"{what} of step {change.step.path}, {field.name}", good=field.before, now=field.now
        )


def compare_graphs(good: Graph, now: Graph) -> Iterator[Difference]:
    """The pipeline itself, step by step. What a `with` holds may be secret, so it is not shown."""
    if good.fingerprint == now.fingerprint:
        return
    found = False
    for path in dict.fromkeys((*good.nodes, *now.nodes)):
        before, after = good.nodes.get(path), now.nodes.get(path)
        if before is None or after is None:
            yield Difference(what=f"step {path}", good=_there(before), now=_there(after))
            found = True
        elif parts := _changed_parts(before, after):
            yield Difference(what=f"step {path}", good="as it was", now=f"changed: {', '.join(parts)}")
            found = True
    if not found:
        yield Difference(what="pipeline", good=good.fingerprint, now=now.fingerprint)


def _there(node: Node | None) -> str | None:
    return None if node is None else "there"


_PARTS = {"payload": "with", "condition": "if", "next": "what follows"}


def _changed_parts(before: Node, after: Node) -> list[str]:
    if type(before) is not type(after):
        return ["kind"]
    names = [name for name in before.__struct_fields__ if name not in {"path", "position"}]
    return [_PARTS.get(name, name) for name in names if getattr(before, name) != getattr(after, name)]


def _same_step(good: Sequence[StepTrace], step: StepTrace) -> list[StepTrace]:
    return [one for one in good if one.path == step.path]


def _output_changes(good: Sequence[StepTrace], step: StepTrace) -> Iterator[FieldChange]:
    before = [one.emitted for one in good if one.emitted is not None]
    if step.emitted is None or not before:
        return
    for kind, payloads in step.emitted.items():
        known = [payload for one in before for payload in one.get(kind, ())]
        if not known:
            yield _event_change(kind, ChangeKind.NEW)
            continue
        for payload in payloads:
            yield from closest_changes(known, payload, _PAYLOAD) or ()
    for kind in dict.fromkeys(kind for one in before for kind in one):
        if kind not in step.emitted and all(kind in one for one in before):
            yield _event_change(kind, ChangeKind.GONE)


def _event_change(kind: str, change: ChangeKind) -> FieldChange:
    name = f"{_EVENT} {kind}" if kind else "the result without an event"
    is_new = change is ChangeKind.NEW
    return FieldChange(
        path=(name,), kind=change, before=None if is_new else _EVENT, now=_EVENT if is_new else None
    )


def _references(step: UseNode) -> Iterator[tuple[str, str]]:
    if step.payload is not None:
        yield from references_by_key(step.payload.template)
    for claim in step.baggage:
        yield f"baggage.{'.'.join(claim.target)}", claim.source
