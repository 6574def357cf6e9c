"""Rules over `routes`, `pipelines` and their conditions that need no manifest and no payload.

A condition never fails at run time. So one that can never be true, because of its path or the type of its
value, is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ductile.config.names import EXTERNAL_SOURCES, NAME, name_error, parse_target
from ductile.config.schema.model import Config
from ductile.config.schema.pipelines import ConditionSettings, PipelineSettings, StepSettings
from ductile.config.secrets import looks_secret
from ductile.config.validate.report import ValidationReport
from ductile.core.expressions.baggage import faults_in_baggage
from ductile.core.expressions.operators import Operator
from ductile.core.expressions.paths import Root, fault_in_path, suggest_root
from ductile.core.expressions.regex import pattern_fault
from ductile.core.expressions.templates import faults_in_template
from ductile.core.runs.graph import JoinPolicy
from ductile.core.suggest import did_you_mean
from ductile.errors import Problem
from ductile.protocol.yaml_tree import KeyPath, MapNode, ScalarNode, is_empty, node_at, problem_at, walk

_EVENT_PATHS = ("event.type", "event.source")
_HEADER_PATH = "event.headers."
_EXPECTED_PATH = "a path such as payload.x, context.x, run.payload.x, config.x or event.type"
#: The types of value that an operator takes, and their name; other operators take any.
_OPERANDS: dict[Operator, tuple[tuple[type, ...], str]] = {
    Operator.EXISTS: ((bool,), "no value, or true or false"),
    Operator.IN: ((list,), "a list"),
    **dict.fromkeys(
        (Operator.GT, Operator.GTE, Operator.LT, Operator.LTE), ((int, float, str), "a number or text")
    ),
    **dict.fromkeys((Operator.STARTSWITH, Operator.ENDSWITH, Operator.REGEX), ((str,), "text")),
}
_TYPE_NAMES = {
    type(None): "nothing",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a map",
}
_STEP_KINDS = ("uses", "call", "steps", "split")
#: Attribute and YAML name of the keys that only a step with a plugin can have.
_ONLY_WITH_USES = {
    "payload": "with",
    "retry": "retry",
    "timeout": "timeout",
    "on_events": "on_events",
}
_ROOT_PREFIXES = tuple(f"{root}." for root in Root)


def validate_condition(condition: ConditionSettings, path: KeyPath, report: ValidationReport) -> None:
    """Check that a condition has one of its forms, and that a comparison can be true."""
    forms = {
        "path": condition.path is not None or condition.op is not None,
        "all": condition.all_of is not None,
        "any": condition.any_of is not None,
        "not": condition.negated is not None,
    }
    written = [form for form, present in forms.items() if present]
    expected = "path and op, or one of all, any, not"
    if not report.require_one(path, written, "this is not a condition", expected=expected):
        return
    for name, inner in (("all", condition.all_of), ("any", condition.any_of)):
        for index, part in enumerate(inner or ()):
            validate_condition(part, (*path, name, index), report)
        if inner == ():
            report.error((*path, name), f"`{name}` needs at least one condition")
    if condition.negated is not None:
        validate_condition(condition.negated, (*path, "not"), report)
    if forms["path"]:
        _check_comparison(condition, path, report)
    elif condition.value is not msgspec.UNSET:
        report.error((*path, "value"), "`value` goes with `path` and `op` only")


def _check_comparison(condition: ConditionSettings, path: KeyPath, report: ValidationReport) -> None:
    subject, op = condition.path, condition.op
    if subject is None or op is None:
        report.error(path, "a comparison needs both `path` and `op`")
        return
    if fault := _path_fault(subject):
        key_path = (*path, "path")
        hint = suggest_root(subject)
        message = f"invalid path: it {fault}"
        report.error(key_path, message, expected=_EXPECTED_PATH, found=report.quote(key_path), hint=hint)
    key_path, value = (*path, "value"), condition.value
    if value is msgspec.UNSET:
        if op is not Operator.EXISTS:
            report.error(path, f"`{op}` needs a `value` to compare with")
    elif op in _OPERANDS and type(value) not in _OPERANDS[op][0]:
        # Messages contain only the type of a value: a value that is compared with a secret is one.
        report.error(key_path, f"`{op}` takes {_OPERANDS[op][1]}", found=_TYPE_NAMES[type(value)])
    elif op is Operator.REGEX and isinstance(value, str) and (fault := pattern_fault(value)):
        hidden = any(looks_secret(key) for key in subject.split(".")) or not may_quote(key_path, report)
        report.error(key_path, f"this is not a regular expression{'' if hidden else f': {fault}'}")


def _path_fault(text: str) -> str | None:
    """Return the fault in the path of a condition, in words that follow "it"; None if it is valid."""
    if text.partition(".")[0] != Root.EVENT or text in _EVENT_PATHS:
        return fault_in_path(text)
    name = text.removeprefix(_HEADER_PATH)
    if not text.startswith(_HEADER_PATH) or "." in name:
        return f"is none of {', '.join(_EVENT_PATHS)} and {_HEADER_PATH}NAME"
    if name != name.lower():  # headers are stored in lower case
        return f"names a header that is known as {_HEADER_PATH}{name.lower()}"
    return fault_in_path(text)


def may_quote(path: KeyPath, report: ValidationReport) -> bool:
    """Return whether a message may quote the text at a path: not from a variable, and no key looks secret."""
    node = node_at(report.root, path)
    from_variable = isinstance(node, ScalarNode) and node.written is not None
    return not from_variable and not any(looks_secret(key) for key in path if isinstance(key, str))


def steps_of(pipeline: PipelineSettings, path: KeyPath) -> Iterator[tuple[KeyPath, StepSettings]]:
    """Yield every step of a pipeline, at any depth, with its path."""
    yield from _steps(pipeline.steps, (*path, "steps"))


def _steps(steps: tuple[StepSettings, ...], path: KeyPath) -> Iterator[tuple[KeyPath, StepSettings]]:
    for index, step in enumerate(steps):
        step_path = (*path, index)
        yield step_path, step
        yield from _steps(step.steps or (), (*step_path, "steps"))
        yield from _steps(step.split or (), (*step_path, "split"))
        for event_type, handlers in step.on_events.items():
            yield from _steps(handlers, (*step_path, "on_events", event_type))


def validate_routes(config: Config, report: ValidationReport) -> None:
    """Refuse wildcards, and a route that is written twice: its second child job would be refused."""
    first: dict[tuple[str, str, str, str], KeyPath] = {}
    for index, route in enumerate(config.routes):
        path = ("routes", index)
        _refuse_wildcard(route.event_type, (*path, "event_type"), "routes match", report)
        same = first.setdefault((route.source, route.event_type, *parse_target(route.to)), path)
        if same is not path:
            message = f"this route is written already, at {report.where(same)}"
            report.error(path, message, hint="remove one of them; a route without a command means `handle`")


def validate_pipelines(config: Config, report: ValidationReport) -> None:
    """Check the names, triggers, conditions and steps of all pipelines; not the names that they refer to."""
    names = ((pipeline.name, ("pipelines", index, "name")) for index, pipeline in enumerate(config.pipelines))
    report.refuse_duplicates("pipeline", names)
    for index, pipeline in enumerate(config.pipelines):
        path = ("pipelines", index)
        if error := name_error(pipeline.name):
            key_path = (*path, "name")
            report.error(
                key_path, f"the pipeline name {report.quote(key_path)} {error}", hint="choose another name"
            )
        if pipeline.on is not None and pipeline.on_hook is not None:
            message = "a pipeline starts on an event or on a hook"
            report.error(path, message, expected="`on` or `on-hook`", found="both")
        if pipeline.on is not None:
            _refuse_wildcard(pipeline.on, (*path, "on"), "a pipeline matches", report)
        if not pipeline.steps:
            report.error((*path, "steps"), "a pipeline needs at least one step")
        if pipeline.condition is not None:
            validate_condition(pipeline.condition, (*path, "if"), report)
        steps = list(steps_of(pipeline, path))
        for step_path, step in steps:
            _check_step(step, step_path, report)
        ids = ((step.id, (*step_path, "id")) for step_path, step in steps if step.id is not None)
        report.refuse_duplicates("step id", ids)


def _refuse_wildcard(event_type: str, path: KeyPath, subject: str, report: ValidationReport) -> None:
    if "*" in event_type.split("."):
        hint = "write one entry for each type of event"
        report.error(path, f"{subject} the type of an event exactly; there are no wildcards", hint=hint)


def _check_step(step: StepSettings, path: KeyPath, report: ValidationReport) -> None:
    written = [kind for kind in _STEP_KINDS if getattr(step, kind) is not None]
    expected = "exactly one of uses, call, steps and split"
    report.require_one(path, written, "a step needs exactly one kind of work", expected=expected)
    for kind in ("steps", "split"):
        if getattr(step, kind) == ():
            report.error((*path, kind), f"`{kind}` needs at least one entry")
    if "uses" not in written:
        for attribute, name in _ONLY_WITH_USES.items():
            if getattr(step, attribute) not in (None, {}):
                report.error((*path, name), f"`{name}` goes with `uses` only")
    if step.join is not JoinPolicy.SUCCEEDED and "split" not in written:
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
            key_path = (*path, name, *fault.where)
            quoted = fault.found if may_quote(key_path, report) else None
            report.error(key_path, fault.message, expected=fault.expected, found=quoted, hint=fault.hint)


def find_unquoted(root: MapNode) -> tuple[Problem, ...]:
    """Return a problem for each reference without quotes: `{payload.x}` alone is a map with one key."""
    pipelines = root.get("pipelines")
    problems = []
    for path, node in () if pipelines is None else walk(pipelines, ("pipelines",)):
        match node:
            case MapNode(entries=((ScalarNode(text=name, plain=True), value),)) if is_empty(
                value
            ) and name.startswith(_ROOT_PREFIXES):
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
    _check_failure_receiver(config, report)


def _check_failure_receiver(config: Config, report: ValidationReport) -> None:
    """Check that `service.on_failure` names one enabled plugin or one pipeline."""
    path, name = ("service", "on_failure"), config.service.on_failure
    if name is None:
        return
    pipelines = [pipeline.name for pipeline in config.pipelines]
    plugin = parse_target(name)[0]
    if name in pipelines and name in config.plugins:
        hint = f"write {name}.handle for the plugin, or rename the pipeline"
        report.error(path, f"{report.quote(path)} names both a plugin and a pipeline", hint=hint)
    elif name not in pipelines and plugin not in config.plugins:
        names = [*set(config.plugins).difference(missing_plugins(config, report)), *pipelines]
        hint = did_you_mean(name, names) or did_you_mean(plugin, names) or "add it to the configuration"
        message = f"{report.quote(path)} names no configured plugin and no pipeline"
        report.error(path, message, hint=hint)
    elif name not in pipelines and not config.plugins[plugin].enabled:
        hint = f"set plugins.{plugin}.enabled to true, or name another receiver"
        report.warn(path, f"{plugin} is disabled: failures are kept until it is enabled", hint=hint)


def missing_plugins(config: Config, report: ValidationReport) -> frozenset[str]:
    """Return the names under `plugins` whose plugin is not installed; none if that is not known."""
    if report.list_installed_plugins is None:
        return frozenset()
    installed = report.list_installed_plugins()
    return frozenset(
        name
        for name, plugin in config.plugins.items()
        if plugin.run is None and (plugin.uses or name) not in installed
    )


def validate_plugin_name(name: str, path: KeyPath, config: Config, report: ValidationReport) -> None:
    if name not in config.plugins:
        # A misspelt name under `plugins` is not suggested where the plugin is named correctly.
        names = set(config.plugins).difference(missing_plugins(config, report))
        hint = did_you_mean(name, names) or "add it under `plugins`"
        report.error(path, f"{report.quote(path)} names a plugin that is not configured", hint=hint)


def validate_pipeline_name(name: str, path: KeyPath, config: Config, report: ValidationReport) -> None:
    names = [pipeline.name for pipeline in config.pipelines]
    if name not in names:
        report.error(path, f"there is no pipeline {report.quote(path)}", hint=did_you_mean(name, names))


def _check_call_cycles(config: Config, report: ValidationReport) -> None:
    """Refuse a pipeline that calls itself, directly or through others: it would never end."""
    calls: dict[str, list[tuple[str, KeyPath]]] = {}
    for index, pipeline in enumerate(config.pipelines):
        steps = steps_of(pipeline, ("pipelines", index))
        calls[pipeline.name] = [(step.call, (*path, "call")) for path, step in steps if step.call]
    checked: set[str] = set()

    def follow(name: str, callers: tuple[str, ...]) -> None:
        for target, path in calls.get(name, ()):
            if target in callers:
                cycle = " → ".join((*callers[callers.index(target) :], target))
                report.error(path, f"these pipelines call each other in a circle: {cycle}")
            elif target not in checked:
                follow(target, (*callers, target))
        checked.add(name)

    for name in calls:
        if name not in checked:
            follow(name, (name,))
