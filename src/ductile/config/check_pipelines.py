"""Rules over `routes` and `pipelines` that can be judged as they are written (SPEC 6, 7.1, 7.3).

Whether a plugin has a command is known only with its manifest: `compile` looks at that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ductile.config.keypath import did_you_mean
from ductile.config.names import NAME, OUTSIDE_SOURCES, fault_in_name, parse_target
from ductile.config.pipeline_settings import Condition, Join, Operator, PipelineSettings, StepSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.config.keypath import KeyPath
    from ductile.config.model import Config
    from ductile.config.report import Report

_KINDS = ("uses", "call", "steps", "split")
#: Attribute and YAML name of what only a step that runs a plugin can have.
_ONLY_WITH_USES = {
    "payload": "with",
    "baggage": "baggage",
    "retry": "retry",
    "timeout": "timeout",
    "on_events": "on_events",
}
_ROOTS = ("payload", "context", "config", "event")


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


def check_pipelines(config: Config, report: Report) -> None:
    named = ((pipeline.name, ("pipelines", index, "name")) for index, pipeline in enumerate(config.pipelines))
    report.refuse_duplicates("pipeline", named)
    for index, pipeline in enumerate(config.pipelines):
        _check_pipeline(pipeline, ("pipelines", index), report)


def _check_pipeline(pipeline: PipelineSettings, path: KeyPath, report: Report) -> None:
    if fault := fault_in_name(pipeline.name):
        report.error(
            (*path, "name"),
            f"the pipeline name {report.quote((*path, 'name'))} {fault}",
            hint="choose another name",
        )
    if pipeline.on is not None and pipeline.on_hook is not None:
        report.error(
            path, "a pipeline starts on an event or on a hook", expected="`on` or `on-hook`", found="both"
        )
    if not pipeline.steps:
        report.error((*path, "steps"), "a pipeline needs at least one step")
    if pipeline.condition is not None:
        _check_condition(pipeline.condition, (*path, "if"), report)
    found = list(steps_of(pipeline, path))
    for step_path, step in found:
        _check_step(step, step_path, report)
    ids = ((step.id, (*step_path, "id")) for step_path, step in found if step.id is not None)
    report.refuse_duplicates("step id", ids)


def _check_step(step: StepSettings, path: KeyPath, report: Report) -> None:
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
    if step.join is not Join.SUCCEEDED and "split" not in given:
        report.error((*path, "join"), "`join` goes with `split` only")
    if step.id is not None and not NAME.fullmatch(step.id):
        report.error((*path, "id"), f"{report.quote((*path, 'id'))} cannot be the id of a step")
    if step.condition is not None:
        _check_condition(step.condition, (*path, "if"), report)


def _check_condition(condition: Condition, path: KeyPath, report: Report) -> None:
    forms = {
        "path": condition.path is not None or condition.op is not None,
        "all": condition.all_of is not None,
        "any": condition.any_of is not None,
        "not": condition.negated is not None,
    }
    given = [form for form, present in forms.items() if present]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        report.error(
            path, "this is not a condition", expected="path and op, or one of all, any, not", found=found
        )
        return
    for name, inner in (("all", condition.all_of), ("any", condition.any_of)):
        for index, part in enumerate(inner or ()):
            _check_condition(part, (*path, name, index), report)
        if inner == ():
            report.error((*path, name), f"`{name}` needs at least one condition")
    if condition.negated is not None:
        _check_condition(condition.negated, (*path, "not"), report)
    if forms["path"]:
        _check_comparison(condition, path, report)


def _check_comparison(condition: Condition, path: KeyPath, report: Report) -> None:
    if condition.path is None or condition.op is None:
        report.error(path, "a comparison needs both `path` and `op`")
        return
    root, dot, _ = condition.path.partition(".")
    if root not in _ROOTS or (not dot and root == "event"):
        expected = "a path that begins with payload., context., config. or event."
        report.error(
            (*path, "path"), "this path leads nowhere", expected=expected, found=report.quote((*path, "path"))
        )
    has_value = condition.value is not msgspec.UNSET
    if condition.op is Operator.EXISTS and has_value and not isinstance(condition.value, bool):
        report.error((*path, "value"), "`exists` takes no value")
    if condition.op is not Operator.EXISTS and not has_value:
        report.error(path, f"`{condition.op}` needs a `value` to compare with")
    if condition.op is Operator.IN and has_value and not isinstance(condition.value, list):
        report.error((*path, "value"), "`in` looks in a list", expected="a list")
    if condition.op is Operator.REGEX and has_value:
        _check_regex(condition.value, (*path, "value"), report)


def _check_regex(value: object, path: KeyPath, report: Report) -> None:
    try:
        re.compile(value if isinstance(value, str) else "(")
    except re.error as error:
        said = str(error) if isinstance(value, str) else "it is not text"
        report.error(path, f"this is not a regular expression: {said}")


def check_references(config: Config, report: Report) -> None:
    """Names in routes and pipelines that stand for nothing (SPEC 3.1, 7.1)."""
    for index, route in enumerate(config.routes):
        path = ("routes", index)
        if route.source not in OUTSIDE_SOURCES:
            check_plugin_name(route.source, (*path, "from"), config, report)
        check_plugin_name(parse_target(route.to)[0], (*path, "to"), config, report)
    for index, pipeline in enumerate(config.pipelines):
        path = ("pipelines", index)
        if pipeline.from_plugin is not None and pipeline.from_plugin not in OUTSIDE_SOURCES:
            check_plugin_name(pipeline.from_plugin, (*path, "from_plugin"), config, report)
        for step_path, step in steps_of(pipeline, path):
            if step.uses is not None:
                check_plugin_name(parse_target(step.uses)[0], (*step_path, "uses"), config, report)
            if step.call is not None:
                check_pipeline_name(step.call, (*step_path, "call"), config, report)
    _check_call_cycles(config, report)


def check_plugin_name(name: str, path: KeyPath, config: Config, report: Report) -> None:
    if name not in config.plugins:
        hint = did_you_mean(name, config.plugins) or "add it under `plugins`"
        report.error(path, f"{report.quote(path)} names a plugin that is not configured", hint=hint)


def check_pipeline_name(name: str, path: KeyPath, config: Config, report: Report) -> None:
    known = [pipeline.name for pipeline in config.pipelines]
    if name not in known:
        report.error(path, f"there is no pipeline {report.quote(path)}", hint=did_you_mean(name, known))


def _check_call_cycles(config: Config, report: Report) -> None:
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
