"""Rules over `routes` and `pipelines`, as far as they do not depend on manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.names import EXTERNAL_SOURCES, NAME, name_error, parse_target
from ductile.config.schema.pipelines import PipelineSettings, StepSettings
from ductile.config.validate.conditions import may_quote, validate_condition
from ductile.core.expressions.baggage import faults_in_baggage
from ductile.core.expressions.paths import Root
from ductile.core.expressions.templates import faults_in_template
from ductile.core.runs.graph import JoinPolicy
from ductile.core.suggest import did_you_mean
from ductile.protocol.yaml_tree import KeyPath, MapNode, ScalarNode, is_empty, problem_at, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.config.schema.model import Config
    from ductile.config.validate.report import ValidationReport
    from ductile.errors import Problem

_STEP_KINDS = ("uses", "call", "steps", "split")
#: Attribute and YAML name of the keys that only a step with a plugin can have.
_ONLY_WITH_USES = {
    "payload": "with",
    "baggage": "baggage",
    "retry": "retry",
    "timeout": "timeout",
    "on_events": "on_events",
}
_ROOTS = tuple(f"{root}." for root in Root)


def steps_of(pipeline: PipelineSettings, path: KeyPath) -> Iterator[tuple[KeyPath, StepSettings]]:
    """Yield every step of a pipeline, at any depth, with its path."""
    yield from _steps(pipeline.steps, (*path, "steps"))


def _steps(steps: tuple[StepSettings, ...], path: KeyPath) -> Iterator[tuple[KeyPath, StepSettings]]:
    for index, step in enumerate(steps):
        here = (*path, index)
        yield here, step
        yield from _steps(step.steps or (), (*here, "steps"))
        yield from _steps(step.split or (), (*here, "split"))
        for event_type, handlers in step.on_events.items():
            yield from _steps(handlers, (*here, "on_events", event_type))


def validate_pipelines(config: Config, report: ValidationReport) -> None:
    named = ((pipeline.name, ("pipelines", index, "name")) for index, pipeline in enumerate(config.pipelines))
    report.refuse_duplicates("pipeline", named)
    for index, pipeline in enumerate(config.pipelines):
        _check_pipeline(pipeline, ("pipelines", index), report)


def _check_pipeline(pipeline: PipelineSettings, path: KeyPath, report: ValidationReport) -> None:
    if error := name_error(pipeline.name):
        at = (*path, "name")
        report.error(at, f"the pipeline name {report.quote(at)} {error}", hint="choose another name")
    if pipeline.on is not None and pipeline.on_hook is not None:
        message = "a pipeline starts on an event or on a hook"
        report.error(path, message, expected="`on` or `on-hook`", found="both")
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
    given = [kind for kind in _STEP_KINDS if getattr(step, kind) is not None]
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
    _check_expressions(step, path, report)


def _check_expressions(step: StepSettings, path: KeyPath, report: ValidationReport) -> None:
    payload = () if step.payload is None else faults_in_template(step.payload.reveal())
    baggage = () if step.baggage is None else faults_in_baggage(step.baggage)
    for name, faults in (("with", payload), ("baggage", baggage)):
        for fault in faults:
            at = (*path, name, *fault.where)
            found = fault.found if may_quote(at, report) else None
            report.error(at, fault.message, expected=fault.expected, found=found, hint=fault.hint)


def find_unquoted(root: MapNode) -> tuple[Problem, ...]:
    """Return a problem for each reference without quotes: `{payload.x}` alone is a map with one key."""
    pipelines = root.get("pipelines")
    problems = []
    for path, node in () if pipelines is None else walk(pipelines, ("pipelines",)):
        match node:
            case MapNode(entries=((ScalarNode(text=name, plain=True), value),)) if is_empty(
                value
            ) and name.startswith(_ROOTS):
                message = "without quotes this is a YAML map, not a reference"
                hint = f'quote it: "{{{name}}}"'
                problems.append(problem_at(node.location, path, message, hint=hint))
            case _:
                pass
    return tuple(problems)


def validate_references(config: Config, report: ValidationReport) -> None:
    """Check that the plugins and pipelines named in routes and pipelines exist."""
    for index, route in enumerate(config.routes):
        path = ("routes", index)
        if route.source not in EXTERNAL_SOURCES:
            validate_plugin_name(route.source, (*path, "from"), config, report)
        validate_plugin_name(parse_target(route.to)[0], (*path, "to"), config, report)
    names = {pipeline.name for pipeline in config.pipelines}
    for index, pipeline in enumerate(config.pipelines):
        path = ("pipelines", index)
        # A hook also receives the end of a pipeline's run.
        sources = EXTERNAL_SOURCES if pipeline.on_hook is None else names
        if pipeline.from_plugin is not None and pipeline.from_plugin not in sources:
            validate_plugin_name(pipeline.from_plugin, (*path, "from_plugin"), config, report)
        for step_path, step in steps_of(pipeline, path):
            if step.uses is not None:
                validate_plugin_name(parse_target(step.uses)[0], (*step_path, "uses"), config, report)
            if step.call is not None:
                validate_pipeline_name(step.call, (*step_path, "call"), config, report)
    _check_call_cycles(config, report)


def validate_plugin_name(name: str, path: KeyPath, config: Config, report: ValidationReport) -> None:
    if name not in config.plugins:
        # A misspelt name under `plugins` is not suggested where the plugin is named correctly.
        known = set(config.plugins).difference(report.missing_plugins())
        hint = did_you_mean(name, known) or "add it under `plugins`"
        report.error(path, f"{report.quote(path)} names a plugin that is not configured", hint=hint)


def validate_pipeline_name(name: str, path: KeyPath, config: Config, report: ValidationReport) -> None:
    known = [pipeline.name for pipeline in config.pipelines]
    if name not in known:
        report.error(path, f"there is no pipeline {report.quote(path)}", hint=did_you_mean(name, known))


def _check_call_cycles(config: Config, report: ValidationReport) -> None:
    """A pipeline that calls itself, directly or through others, would never end."""
    calls: dict[str, list[tuple[str, KeyPath]]] = {}
    for index, pipeline in enumerate(config.pipelines):
        steps = steps_of(pipeline, ("pipelines", index))
        calls[pipeline.name] = [(step.call, (*path, "call")) for path, step in steps if step.call]
    done: set[str] = set()

    def follow(name: str, callers: tuple[str, ...]) -> None:
        for target, path in calls.get(name, ()):
            if target in callers:
                cycle = " → ".join((*callers[callers.index(target) :], target))
                report.error(path, f"these pipelines call each other in a circle: {cycle}")
            elif target not in done:
                follow(target, (*callers, target))
        done.add(name)

    for name in calls:
        if name not in done:
            follow(name, (name,))
