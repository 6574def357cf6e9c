"""`ductile config …`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ductile.admin.config import (
    ConfigCheck,
    SealChange,
    SealEntry,
    SealResult,
    SettingChange,
    change_setting,
    check_configuration,
    describe_configuration,
    lock_configuration,
    read_setting,
    show_configuration,
)
from ductile.cli.console.console import printable
from ductile.cli.console.errors import error_as_json, error_as_text, problem_as_json, problems_as_text
from ductile.cli.console.yaml import to_yaml
from ductile.cli.invocation import CommandResult, Invocation
from ductile.errors import ConfigError, Exit, IntegrityError, NotFoundError

if TYPE_CHECKING:
    from ductile.cli.console.console import Console
    from ductile.config.snapshot import PluginInstance
    from ductile.core.json import JsonObject, JsonValue


def check(call: Invocation) -> CommandResult:
    """The verdict is what was asked for, so it is an answer even when it is a bad one."""
    try:
        found = check_configuration(call.config, call.environ)
    except ConfigError as refusal:
        return _answer_refused(refusal)
    error = _refusal(found)
    data: JsonObject = {
        "valid": error is None,
        "path": str(found.path),
        "files": list(found.files),
        "problems": [problem_as_json(problem) for problem in found.broken.problems] if found.broken else [],
        "warnings": [problem_as_json(warning) for warning in found.warnings],
        "refused": [_refused_as_json(plugin, found) for plugin in found.refused],
    }
    if error is not None:
        data |= error_as_json(error)
    return CommandResult(
        data=data,
        text=lambda screen: _check_text(found, error, screen, verbose=call.verbose),
        exit_status=Exit.OK if error is None else error.exit_status,
    )


def _answer_refused(error: ConfigError) -> CommandResult:
    problems: JsonValue = [problem_as_json(problem) for problem in error.problems]
    data: JsonObject = {
        "valid": False,
        "path": None,
        "files": [],
        "problems": problems,
        "warnings": [],
        "refused": [],
    }
    return CommandResult(
        data=data | error_as_json(error),
        text=lambda screen: error_as_text(error, screen),
        exit_status=error.exit_status,
    )


def _refused_as_json(plugin: PluginInstance, found: ConfigCheck) -> JsonObject:
    why, place = plugin.refused, found.refusal_of(plugin)
    return {
        "name": plugin.name,
        "code": why.code if why else None,
        "reason": why.reason if why else None,
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "key": place.key,
        "hint": why.hint if why else None,
    }


def lock(call: Invocation) -> CommandResult:
    return lock_answer(lock_configuration(call.config, call.environ, dry_run=call.switch("dry_run")))


def lock_answer(done: SealResult) -> CommandResult:
    return CommandResult(
        data={
            "path": str(done.path),
            "written": done.written,
            "sealed": [_entry_as_json(entry) for entry in done.entries],
        },
        text=lambda screen: _lock_text(done, screen),
    )


def show(call: Invocation) -> CommandResult:
    shown = show_configuration(call.config, call.environ)
    section = call.optional("SECTION")
    if section is not None:
        shown = _part(shown, section)
    data: JsonObject = shown if isinstance(shown, dict) else {"value": shown}
    return CommandResult(data=data, text=lambda _: to_yaml(shown))


def get(call: Invocation) -> CommandResult:
    found = read_setting(call.config, call.environ, call.text("KEY"))
    data: JsonObject = {
        "key": found.key,
        "value": found.value,
        "default": found.place is None,
        "file": found.place.file if found.place else None,
        "line": found.place.line if found.place else None,
    }
    return CommandResult(data=data, text=lambda _: _value_text(found.value))


def change(call: Invocation) -> CommandResult:
    done = change_setting(
        call.config,
        call.environ,
        call.text("KEY"),
        call.text("VALUE"),
        dry_run=call.switch("dry_run"),
        lock=call.switch("lock"),
    )
    data: JsonObject = {
        "key": done.key,
        "file": str(done.path),
        "diff": done.diff,
        "written": done.written,
        "sealed": done.sealed,
    }
    return CommandResult(data=data, text=lambda screen: _change_text(done, _lock_line(call), screen))


def schema(_call: Invocation) -> CommandResult:
    from json import dumps  # noqa: PLC0415 - the other actions print text

    described = describe_configuration()
    return CommandResult(data=described, text=lambda _: dumps(described, indent=2, ensure_ascii=False))


def _refusal(found: ConfigCheck) -> ConfigError | None:
    """A plugin that is wanted and cannot run does not keep the daemon from starting, but it is not right."""
    if not found.refused:
        return found.broken
    names = ", ".join(plugin.name for plugin in found.refused)
    count = len(found.refused)
    what = "a configured plugin cannot run" if count == 1 else f"{count} configured plugins cannot run"
    if found.broken is None:
        return ConfigError(f"{what}: {names}")
    broken = found.broken
    return IntegrityError(f"{broken.message}, and {what}: {names}", problems=broken.problems)


def _check_text(found: ConfigCheck, error: ConfigError | None, screen: Console, *, verbose: bool) -> str:
    parts = []
    if found.warnings:
        title = screen.style("yellow", f"{_count(len(found.warnings), 'warning')}:")
        parts += [title, problems_as_text(found.warnings, screen)]
    if error is None:
        return "\n\n".join([*parts, _all_is_well(found, screen, verbose=verbose)])
    refused = [found.refusal_of(plugin) for plugin in found.refused]
    parts.append(error_as_text(error, screen))
    return "\n\n".join([*parts, problems_as_text(refused, screen)] if refused else parts)


def _all_is_well(found: ConfigCheck, screen: Console, *, verbose: bool) -> str:
    snapshot = found.snapshot
    schedules = sum(len(plugin.schedules) for plugin in snapshot.plugins.values())
    counts = ", ".join(
        (
            _count(len(found.files), "file"),
            _count(len(snapshot.plugins), "plugin"),
            _count(schedules, "schedule"),
            _count(len(snapshot.pipelines), "pipeline"),
            _count(len(snapshot.routes), "route"),
        )
    )
    lines = [f"{screen.style('green', 'ok:')} {screen.place(str(found.path))} ({counts})"]
    if verbose:
        lines += [f"  {name}" for name in found.files]
    return "\n".join(lines)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def _entry_as_json(entry: SealEntry) -> JsonObject:
    return {
        "name": entry.name,
        "kind": "plugin" if entry.plugin else "file",
        "tier": entry.tier,
        "change": entry.change,
    }


def _lock_text(done: SealResult, screen: Console) -> str:
    rows = [
        (f"plugin {entry.name}" if entry.plugin else entry.name, entry.tier or "", _MEANING[entry.change])
        for entry in done.entries
    ]
    title = "Sealed" if done.written else "Would seal"
    kept = sum(entry.change is not SealChange.GONE for entry in done.entries)
    table = screen.table(("NAME", "TIER", "CHANGE"), rows)
    return f"{title} {_count(kept, 'entry', 'entries')} in {screen.place(str(done.path))}:\n\n{table}"


_MEANING = {
    SealChange.NEW: "new",
    SealChange.CHANGED: "changed",
    SealChange.SAME: "as before",
    SealChange.GONE: "no longer part of it",
}


def _part(shown: JsonValue, section: str) -> JsonValue:
    """A section by its dotted name; `config get` is for the rest."""
    for name in section.split("."):
        if not isinstance(shown, dict) or name not in shown:
            known = ", ".join(shown) if isinstance(shown, dict) else ""
            raise NotFoundError(
                f"there is no section {section!r}", hint=f"there are {known}" if known else None
            )
        shown = shown[name]
    return shown


def _value_text(value: JsonValue) -> str:
    """A text as it is, so that a script can use it; anything larger as YAML."""
    if isinstance(value, str):
        return printable(value)
    return "" if value is None else to_yaml(value)


def _lock_line(call: Invocation) -> str:
    """The command that seals this very configuration, to be pasted."""
    return (
        f"ductile config lock --config {shlex.quote(call.config)}" if call.config else "ductile config lock"
    )


def _change_text(done: SettingChange, lock_line: str, screen: Console) -> str:
    file = screen.place(str(done.path))
    if not done.diff:
        return f"{done.key} has this value already; nothing was written."
    if not done.written:
        return f"{_coloured(done.diff, screen)}\nNothing was written."
    if done.sealed:
        return f"{_coloured(done.diff, screen)}\nWrote {file} and renewed its seal."
    return (
        f"{_coloured(done.diff, screen)}\nWrote {file}.\n"
        f"Its seal is not renewed. If the change is what you want, run `{lock_line}`."
    )


def change_text(done: SettingChange, screen: Console) -> str:
    """For commands that always renew the seal."""
    return _change_text(done, "", screen)


def _coloured(diff: str, screen: Console) -> str:
    return "".join(
        screen.style("green" if line.startswith("+") else "red" if line.startswith("-") else "dim", line)
        for line in printable(diff).splitlines(keepends=True)
    )
