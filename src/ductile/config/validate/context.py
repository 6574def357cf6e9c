"""Refuses references to context that can never have a value, because no step that may run before sets it.

A *claim* is a key of the context that a step sets with `baggage`.


A run that is started by name or from outside begins with an empty context. A run that an event starts
inherits the context of the job that emitted the event, a run that a hook starts that of the run that ended,
and a called pipeline that of its caller. Which events a plugin emits is not known for certain, so a pipeline
with `on` may be started by every job of a fitting source. A reference is refused only if none of these can
have set its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ductile.config.names import EXTERNAL_SOURCES, parse_target
from ductile.config.schema.model import Config
from ductile.config.schema.pipelines import ConditionSettings, PipelineSettings, StepSettings
from ductile.config.validate.pipelines import steps_of
from ductile.config.validate.report import ValidationReport
from ductile.core.expressions.baggage import compile_baggage, faults_in_baggage
from ductile.core.expressions.paths import Root
from ductile.core.expressions.templates import references_in
from ductile.core.runs.advance import CONTEXT_NAMES
from ductile.core.suggest import did_you_mean
from ductile.protocol.yaml_tree import KeyPath, Node, ScalarNode, node_at, walk

#: Paths in the context, as keys.
Claims: TypeAlias = frozenset[tuple[str, ...]]
_NOTHING: Claims = frozenset()
_CONTEXT = f"{Root.CONTEXT}."


def validate_context(config: Config, report: ValidationReport) -> None:
    """Refuse each `context.x` that no step, caller or trigger before it can have claimed."""
    pipelines = {pipeline.name: pipeline for pipeline in config.pipelines}
    written = [
        (index, path, step)
        for index, pipeline in enumerate(config.pipelines)
        for path, step in steps_of(pipeline, ("pipelines", index))
    ]
    is_faulty = any(True for _, _, step in written for _ in faults_in_baggage(step.baggage or {}))
    if is_faulty or len(pipelines) < len(config.pipelines):
        return  # a faulty claim or a name that occurs twice is reported already, and makes claims uncertain
    flow = _follow_pipelines(pipelines)
    entry = _entry_contexts(config, flow)
    all_claims = _NOTHING.union(*(_claims(step) for _, _, step in written))
    for index, pipeline in enumerate(config.pipelines):
        claimed_at_start = entry[pipeline.name]
        if pipeline.condition is not None:
            for path, name in _in_condition(pipeline.condition, ("pipelines", index, "if")):
                _check_reference(name, path, claimed_at_start, all_claims, report)
        claimed_before = flow[pipeline.name].before
        for pipeline_index, path, step in written:
            if pipeline_index == index:
                for where, name in _references(step, path, report.root):
                    _check_reference(
                        name, where, claimed_at_start | claimed_before[id(step)], all_claims, report
                    )


def _check_reference(
    reference: str, path: KeyPath, before: Claims, all_claims: Claims, report: ValidationReport
) -> None:
    """Add an error unless a claim `before` the reference, among all claims, may set its value."""
    keys = tuple(reference.removeprefix(_CONTEXT).split("."))
    if keys[0] in CONTEXT_NAMES or _may_set(before, keys):
        return
    if _may_set(all_claims, keys):
        message = f"nothing that runs before this claims {reference}"
        hint = (
            "claim it with `baggage` in an earlier step, not in a later one or inside a branch of a split, "
            "whose claims end with the branch"
        )
    else:
        message = f"no step claims {reference}, so it never has a value"
        targets = sorted(all_claims | {(name,) for name in CONTEXT_NAMES})
        names = [".".join((Root.CONTEXT, *target)) for target in targets]
        hint = did_you_mean(reference, names) or "claim it with `baggage` in an earlier step"
    report.error(path, message, hint=hint)


def _may_set(claims: Claims, keys: tuple[str, ...]) -> bool:
    """Return whether a claim may set the value of a reference: one of the two paths begins with the other."""
    return any(all(key == part for key, part in zip(keys, target, strict=False)) for target in claims)


# -- the claims before and after each step


class _PipelineFlow(NamedTuple):
    #: By `id` of the settings of each written step: the claims of the steps of this pipeline before it.
    before: Mapping[int, Claims]
    #: The claims that may be in the context after the last step.
    after: Claims


def _follow_pipelines(pipelines: Mapping[str, PipelineSettings]) -> dict[str, _PipelineFlow]:
    """Follow the steps of all pipelines, as if each began with an empty context."""
    flows: dict[str, _PipelineFlow] = {}

    def follow(name: str) -> Claims:
        """Return the claims of the steps of a pipeline. Each is followed once, however often it is called."""
        if name not in flows and name in pipelines:
            before: dict[int, Claims] = {}
            flows[name] = _PipelineFlow(before=before, after=_NOTHING)  # ends a cycle of calls
            after = follow_steps(pipelines[name].steps, _NOTHING, before)
            flows[name] = _PipelineFlow(before=before, after=after)
        return flows[name].after if name in flows else _NOTHING

    def follow_steps(steps: Sequence[StepSettings], claimed: Claims, before: dict[int, Claims]) -> Claims:
        for step in steps:
            claimed = follow_step(step, claimed, before)
        return claimed

    def follow_step(step: StepSettings, claimed: Claims, before: dict[int, Claims]) -> Claims:
        before[id(step)] = claimed
        claimed |= _claims(step)
        # The step after a split continues with the context before it.
        for branch in step.split or ():
            follow_step(branch, claimed, before)
        if step.call is not None:
            claimed |= follow(step.call)
        claimed = follow_steps(step.steps or (), claimed, before)
        return claimed.union(*(follow_steps(branch, claimed, before) for branch in step.on_events.values()))

    for name in pipelines:
        follow(name)
    return flows


def _claims(step: StepSettings) -> Claims:
    return frozenset(claim.target for claim in compile_baggage(step.baggage or {}))


# -- the contexts that pipelines begin with


def _entry_contexts(config: Config, flow: Mapping[str, _PipelineFlow]) -> dict[str, Claims]:
    """Return for each pipeline the claims that its context may begin with, from any caller or trigger.

    Jobs carry their context to the pipelines that their events start, and the jobs of those carry more. So
    this is repeated until nothing is added.
    """
    steps = [(pipeline.name, step) for pipeline in config.pipelines for _, step in steps_of(pipeline, ())]
    entry = dict.fromkeys(flow, _NOTHING)
    carried = dict.fromkeys(config.plugins, _NOTHING)
    while True:
        size = sum(map(len, entry.values())) + sum(map(len, carried.values()))
        for name, step in steps:
            inside = entry[name] | flow[name].before[id(step)] | _claims(step)
            if step.uses is not None:
                plugin = parse_target(step.uses)[0]
                carried[plugin] = carried.get(plugin, _NOTHING) | inside
            if step.call in entry:
                entry[step.call] |= inside
        for route in config.routes:
            plugin = parse_target(route.to)[0]
            carried[plugin] = carried.get(plugin, _NOTHING) | carried.get(route.source, _NOTHING)
        for pipeline in config.pipelines:
            entry[pipeline.name] |= _claims_of_triggers(pipeline, config, entry, carried)
        if size == sum(map(len, entry.values())) + sum(map(len, carried.values())):
            return entry


def _claims_of_triggers(
    pipeline: PipelineSettings, config: Config, entry: Mapping[str, Claims], carried: Mapping[str, Claims]
) -> Claims:
    """Return the claims in the contexts of the jobs and runs that may start a pipeline."""
    source = pipeline.from_plugin
    if pipeline.on is not None and source not in EXTERNAL_SOURCES:
        return _NOTHING.union(*(keys for name, keys in carried.items() if source in (None, name)))
    if pipeline.on_hook is not None:
        # A job fires hooks only if nothing produced it: its context is empty. A run may have inherited one.
        ended = (other.name for other in config.pipelines if other.notify_on_complete)
        return _NOTHING.union(*(entry[name] for name in ended if source in (None, name)))
    return _NOTHING


# -- references


def _references(step: StepSettings, path: KeyPath, root: Node) -> Iterator[tuple[KeyPath, str]]:
    """Yield each reference to context in `if`, `with` and `baggage`, with its place."""
    if step.condition is not None:
        yield from _in_condition(step.condition, (*path, "if"))
    template = node_at(root, (*path, "with"))
    for where, node in () if template is None else walk(template, (*path, "with")):
        if isinstance(node, ScalarNode):
            yield from ((where, name) for name in references_in(node.text) if name.startswith(_CONTEXT))
    for name, source in (step.baggage or {}).items():
        if isinstance(source, str) and source.startswith(_CONTEXT):
            yield (*path, "baggage", name), source


def _in_condition(condition: ConditionSettings, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if condition.path is not None and condition.path.startswith(_CONTEXT):
        yield (*path, "path"), condition.path
    for name, parts in (("all", condition.all_of), ("any", condition.any_of)):
        for index, part in enumerate(parts or ()):
            yield from _in_condition(part, (*path, name, index))
    if condition.negated is not None:
        yield from _in_condition(condition.negated, (*path, "not"))
