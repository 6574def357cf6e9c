"""Rules over `routes` and `pipelines` that can be judged as they are written.

Whether a plugin has a command is known only with its manifest: `compile` looks at that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.key_paths import KeyPath, did_you_mean, problem_at
from ductile.config.names import EXTERNAL_SOURCES, NAME, name_error, parse_target
from ductile.config.read.merge import is_empty
from ductile.config.schema.pipelines import PipelineSettings, StepSettings
from ductile.config.validate.conditions import may_quote, validate_condition
from ductile.core.expressions.baggage import faults_in_baggage
from ductile.core.expressions.paths import Root
from ductile.core.expressions.templates import faults_in_template
from ductile.core.runs.graph import JoinPolicy
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.model import Config
    from ductile.config.validate.report import ValidationReport
    from ductile.core.expressions.paths import ExpressionFault
    from ductile.errors import Problem


_KINDS = ("uses", "call", "steps", "split")
#: Attribute and YAML name of what only a step that runs a plugin can have.
_ONLY_WITH_USES = {
    "payload": "with",
    "baggage": "baggage",
    "retry": "retry",
    "timeout": "timeout",
    "on_events": "on_events",
}


def steps_of(pipeline: PipelineSettings, path: KeyPath) -> Iterator[tuple[KeyPath, StepSettings]]:
    """Every step of a pipeline, at whatever depth, with its path."""
    yield from _walk(pipeline.steps, (*path, "steps"))


def _walk(steps: tuple[StepSettings, ...], path: KeyPath) -> Iterator[tuple[KeyPath, StepSettings]]:
    for index, step in enumerate(steps):
        here = (*path, index)
        yield here, step
        yield from _walk(step.steps or (), (*here, "steps"))
        yield from _walk(step.split or (), (*here, "split"))
        for event_type, handlers in step.on_events.items():
            yield from _walk(handlers, (*here, "on_events", event_type))


def validate_pipelines(config: Config, report: ValidationReport) -> None:
    named = ((pipeline.name, ("pipelines", index, "name")) for index, pipeline in enumerate(config.pipelines))
    report.refuse_duplicates("pipeline", named)
    for index, pipeline in enumerate(config.pipelines):
        _check_pipeline(pipeline, ("pipelines", index), report)


def _check_pipeline(pipeline: PipelineSettings, path: KeyPath, report: ValidationReport) -> None:
    if fault := name_error(pipeline.name):
        report.error(
            (*path, "name"),
            f"the pipeline name {report.quote((*path, 'name'))} {fault}",
            hint="choose another name",
        )
    if pipeline.on is not None and pipeline.on_hook is not None:
        report.error(
            path, "a pipeline starts on an event or on a hook", expected="`on` or `on-hook`", found="both"
        )
    if pipeline.on is not None:
        refuse_wildcard(pipeline.on, (*path, "on"), "a pipeline matches", report)
    if not pipeline.steps:
        report.error((*path, "steps"), "a pipeline needs at least one step")
    if pipeline.condition is not None:
        validate_condition(pipeline.condition, (*path, "if"), report)
    found = list(steps_of(pipeline, path))
    for step_path, step in found:
        _check_step(step, step_path, report)
    ids = ((step.id, (*step_path, "id")) for step_path, step in found if step.id is not None)
    report.refuse_duplicates("step id", ids)


def refuse_wildcard(event_type: str, path: KeyPath, what: str, report: ValidationReport) -> None:
    if "*" in event_type.split("."):
        hint = "write one entry for each type of event"
        report.error(path, f"{what} the type of an event exactly; there are no wildcards", hint=hint)


def _check_step(step: StepSettings, path: KeyPath, report: ValidationReport) -> None:
    given = [kind for kind in _KINDS if getattr(step, kind) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        expected = "exactly one of uses, call, steps and split"
        report.error(path, "a step does one thing", expected=expected, found=found)
    for kind in ("steps", "split"):
        if getattr(step, kind) == ():
            report.error((*path, kind), f"`{kind}` needs at least one entry")
    if "uses" not in given:
        for attribute, name in _ONLY_WITH_USES.items():
            if getattr(step, attribute) not in (None, {}):
                report.error((*path, name), f"`{name}` goes with `uses` only")
    if step.join is not JoinPolicy.SUCCEEDED and "split" not in given:
        report.error((*path, "join"), "`join` goes with `split` only")
    if step.id is not None and not NAME.fullmatch(step.id):
        report.error((*path, "id"), f"{report.quote((*path, 'id'))} cannot be the id of a step")
    if step.condition is not None:
        validate_condition(step.condition, (*path, "if"), report)
    _check_values(step, path, report)


def _check_values(step: StepSettings, path: KeyPath, report: ValidationReport) -> None:
    """What a step makes of its payload: `with` and `baggage`."""
    if step.payload is not None:
        for fault in faults_in_template(step.payload.reveal()):
            _report_fault(fault, (*path, "with"), report)
    if step.baggage is not None:
        for fault in faults_in_baggage(step.baggage):
            _report_fault(fault, (*path, "baggage"), report)


def _report_fault(fault: ExpressionFault, above: KeyPath, report: ValidationReport) -> None:
    path = (*above, *fault.where)
    found = fault.found if may_quote(path, report) else None
    report.error(path, fault.message, expected=fault.expected, found=found, hint=fault.hint)


def validate_references(config: Config, report: ValidationReport) -> None:
    """Names in routes and pipelines that stand for nothing."""
    for index, route in enumerate(config.routes):
        path = ("routes", index)
        if route.source not in EXTERNAL_SOURCES:
            validate_plugin_name(route.source, (*path, "from"), config, report)
        validate_plugin_name(parse_target(route.to)[0], (*path, "to"), config, report)
    for index, pipeline in enumerate(config.pipelines):
        path = ("pipelines", index)
        if pipeline.from_plugin is not None and pipeline.from_plugin not in _sources(pipeline, config):
            validate_plugin_name(pipeline.from_plugin, (*path, "from_plugin"), config, report)
        for step_path, step in steps_of(pipeline, path):
            if step.uses is not None:
                validate_plugin_name(parse_target(step.uses)[0], (*step_path, "uses"), config, report)
            if step.call is not None:
                validate_pipeline_name(step.call, (*step_path, "call"), config, report)
    _check_call_cycles(config, report)


def _sources(pipeline: PipelineSettings, config: Config) -> Collection[str]:
    """What events may come from besides plugins. A hook may also tell of the end of a pipeline's run."""
    if pipeline.on_hook is None:
        return EXTERNAL_SOURCES
    return {known.name for known in config.pipelines}


def validate_plugin_name(name: str, path: KeyPath, config: Config, report: ValidationReport) -> None:
    if name not in config.plugins:
        # A slip under `plugins` is not to be spread to whoever names the plugin rightly.
        known = set(config.plugins).difference(report.absent())
        hint = did_you_mean(name, known) or "add it under `plugins`"
        report.error(path, f"{report.quote(path)} names a plugin that is not configured", hint=hint)


def validate_pipeline_name(name: str, path: KeyPath, config: Config, report: ValidationReport) -> None:
    known = [pipeline.name for pipeline in config.pipelines]
    if name not in known:
        report.error(path, f"there is no pipeline {report.quote(path)}", hint=did_you_mean(name, known))


def _check_call_cycles(config: Config, report: ValidationReport) -> None:
    """A pipeline that calls itself, directly or by way of others, would have no end."""
    calls: dict[str, list[tuple[str, KeyPath]]] = {}
    for index, pipeline in enumerate(config.pipelines):
        steps = steps_of(pipeline, ("pipelines", index))
        calls[pipeline.name] = [(step.call, (*path, "call")) for path, step in steps if step.call]
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        for target, path in calls.get(name, ()):
            if target in way:
                circle = " → ".join((*way[way.index(target) :], target))
                report.error(path, f"these pipelines call each other in a circle: {circle}")
            elif target not in done:
                follow(target, (*way, target))
        done.add(name)

    for name in calls:
        if name not in done:
            follow(name, (name,))


_ROOTS = tuple(f"{root}." for root in Root)


def find_unquoted(root: MapNode) -> tuple[Problem, ...]:
    """A problem for each such map in the pipelines."""
    pipelines = root.get("pipelines")
    found = () if pipelines is None else _find(pipelines, ("pipelines",))
    return tuple(
        problem_at(
            node.place,
            path,
            "without quotes this is a YAML map, not a reference",
            hint=f'quote it: "{{{name}}}"',
        )
        for path, node, name in found
    )


def _find(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node, str]]:
    match node:
        case MapNode(entries=((ScalarNode(text=name, plain=True), value),)) if is_empty(value) and (
            name.startswith(_ROOTS)
        ):
            yield path, node, name
        case MapNode(entries=entries):
            for key, value in entries:
                yield from _find(value, (*path, key.text))
        case ListNode(items=items):
            for index, item in enumerate(items):
                yield from _find(item, (*path, index))
        case _:
            return
