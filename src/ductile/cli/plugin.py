"""`ductile plugin …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.admin.plugins import PluginCheck, PluginEntry, Standing, check_plugins, list_plugins, show_plugin
from ductile.cli.client import Document, request_if_available
from ductile.cli.console.console import indent_continuation
from ductile.cli.console.errors import paragraph, problem_as_json, problems_as_text
from ductile.cli.console.format import health_error
from ductile.cli.invocation import CommandResult, Invocation
from ductile.core.durations import format_duration
from ductile.errors import Exit

if TYPE_CHECKING:
    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject
    from ductile.protocol.manifest.model import Command, Manifest


def list_all(call: Invocation) -> CommandResult:
    plugins = list_plugins(call.config, call.environ)
    marks = _marks(call)
    return CommandResult(
        data={"plugins": [_summary(view) | {"unhealthy": marks.get(view.name)} for view in plugins]},
        text=lambda screen: _list_text(plugins, marks, screen),
    )


def show(call: Invocation) -> CommandResult:
    view = show_plugin(call.config, call.environ, call.text("NAME"))
    mark = _marks(call).get(view.name)
    return CommandResult(
        data=_details(view) | {"unhealthy": mark}, text=lambda screen: _show_text(view, mark, screen)
    )


def _marks(call: Invocation) -> Document:
    """The plugins whose init failed, as far as there is a store that tells; unlike the rest, that is not in
    the configuration.
    """
    found = request_if_available(call, "plugin.health", {})
    return {} if found is None else found["unhealthy"]


def check(call: Invocation) -> CommandResult:
    found = check_plugins(call.config, call.environ, call.optional("NAME|DIR"))
    return CommandResult(
        data={
            "valid": not found.refused,
            "plugins": [_summary(view) for view in found.plugins],
            "warnings": [problem_as_json(warning) for warning in found.warnings],
        },
        text=lambda screen: _check_text(found, screen),
        exit_status=Exit.CONFIG if found.refused else Exit.OK,
    )


def _summary(view: PluginEntry) -> JsonObject:
    manifest = view.manifest
    return {
        "name": view.name,
        "status": view.standing,
        "uses": view.uses,
        "configured": view.configured,
        "version": manifest.version if manifest else None,
        "description": manifest.description if manifest else None,
        "commands": list(manifest.commands) if manifest else [],
        "directory": str(view.directory) if view.directory else None,
        "code": view.code,
        "reason": view.reason,
        "hint": view.hint,
    }


def _details(view: PluginEntry) -> JsonObject:
    details: JsonObject = _summary(view) | {"instances": [*view.instances]}
    manifest, instance = view.manifest, view.instance
    if manifest is not None:
        details |= {
            "fingerprint": view.fingerprint,
            "concurrency_safe": manifest.concurrency_safe,
            "required_config": list(manifest.required_config),
            "optional_config": list(manifest.optional_config),
            "commands": [_command_as_json(command) for command in manifest.commands.values()],
        }
    if instance is not None:
        details |= {
            "config": instance.config.shown(),
            "schedules": [schedule.id for schedule in instance.schedules],
            "parallelism": instance.parallelism,
            "max_attempts": instance.retry.max_attempts,
        }
    return details


def _command_as_json(command: Command) -> JsonObject:
    return {
        "name": command.name,
        "type": command.type,
        "description": command.description,
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
    }


def _list_text(plugins: tuple[PluginEntry, ...], marks: Document, screen: Console) -> str:
    if not plugins:
        return "No plugins were found. Put one under a plugin root, or see `ductile init`."
    rows = [
        (
            view.name if view.name == view.uses else f"{view.name} ({view.uses})",
            f"{view.standing}, unhealthy" if view.name in marks else view.standing,
            (view.manifest.version if view.manifest else "") or "-",
            screen.advice(f"init failed: {health_error(mark)}")
            if (mark := marks.get(view.name))
            else _about(view),
        )
        for view in plugins
    ]
    return screen.table(("NAME", "STATUS", "VERSION", "ABOUT"), rows)


def _about(view: PluginEntry) -> str:
    """One line: `plugin check` tells the whole reason."""
    if view.reason:
        return view.reason.partition("\n")[0].rstrip(":")
    return view.manifest.description if view.manifest else ""


def _show_text(view: PluginEntry, mark: Document | None, screen: Console) -> str:
    facts = [("status", view.standing.value), *_facts(view, screen)]
    if mark is not None:
        facts.insert(1, ("unhealthy", screen.advice(f"its init failed: {health_error(mark)}")))
    width = max(len(name) for name, _ in facts)
    lines = [screen.style("bold", view.name)]
    lines += [
        f"  {name.ljust(width)}  {indent_continuation(value, ' ' * (width + 4))}"
        for name, value in facts
        if value
    ]
    if view.manifest is not None:
        lines += ["", _commands_text(view, view.manifest, screen)]
    return "\n".join(lines)


def _facts(view: PluginEntry, screen: Console) -> list[tuple[str, str]]:
    facts = [("reason", (view.reason or "").replace("\n", " ")), ("hint", view.hint or "")]
    if view.uses != view.name:
        facts.append(("uses", view.uses))
    if view.instances:
        facts.append(("used as", ", ".join(view.instances)))
    if view.manifest is not None:
        facts += [
            ("about", view.manifest.description),
            ("version", view.manifest.version),
            ("required config", ", ".join(view.manifest.required_config)),
            ("optional config", ", ".join(view.manifest.optional_config)),
        ]
    if view.directory is not None:
        facts.append(("directory", screen.place(str(view.directory))))
    if view.fingerprint is not None:
        facts.append(("fingerprint", view.fingerprint))
    if view.instance is not None and view.manifest is not None:
        facts += [
            ("schedules", ", ".join(schedule.id for schedule in view.instance.schedules)),
            ("at once", str(view.instance.parallelism)),
            ("attempts", str(view.instance.retry.max_attempts)),
        ]
    return facts


def _commands_text(view: PluginEntry, manifest: Manifest, screen: Console) -> str:
    """With the time each may take, which only a configured plugin has."""
    instance = view.instance
    rows = [
        (
            command.name,
            command.type,
            format_duration(instance.timeout_for(command.name)) if instance else "-",
            command.description,
        )
        for command in manifest.commands.values()
    ]
    return screen.table(("COMMAND", "TYPE", "TIMEOUT", "ABOUT"), rows, prose=True)


def _check_text(found: PluginCheck, screen: Console) -> str:
    good = [view for view in found.plugins if view.standing is not Standing.REFUSED]
    parts = ["\n".join(_verdict(view, screen) for view in good)] if good else []
    for view in found.refused:
        title = f"{screen.style('red', 'refused:')} {screen.style('bold', view.name)}"
        parts.append(f"{title}\n{paragraph('', view.reason or '', (('hint', view.hint),), screen)}")
    if found.warnings:
        parts += [screen.style("yellow", "also:"), problems_as_text(found.warnings, screen)]
    return "\n\n".join(parts) or "No plugins were found."


def _verdict(view: PluginEntry, screen: Console) -> str:
    version = view.manifest.version if view.manifest else ""
    return f"{screen.style('green', 'ok:')} {view.name} {version}".rstrip()
