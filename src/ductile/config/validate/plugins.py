"""Rules over `plugins`: names, variables, schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.compile.cron import CRON_EXPECTED, parse_cron
from ductile.config.names import NAME, VARIABLE, name_error
from ductile.config.timezones import all_timezones, find_timezone
from ductile.core.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ductile.config.schema.model import Config
    from ductile.config.schema.plugins import PluginSettings, ScheduleSettings
    from ductile.config.validate.report import ValidationReport
    from ductile.protocol.yaml_tree import KeyPath

_TRIGGERS = ("every", "cron", "at", "after")


def schedules_of(name: str, plugin: PluginSettings) -> Iterator[tuple[KeyPath, ScheduleSettings]]:
    """Yield every schedule of a plugin with its path, the single one last."""
    for index, schedule in enumerate(plugin.schedules):
        yield ("plugins", name, "schedules", index), schedule
    if plugin.schedule is not None:
        yield ("plugins", name, "schedule"), plugin.schedule


def validate_plugins(config: Config, report: ValidationReport) -> None:
    for name, plugin in config.plugins.items():
        path = ("plugins", name)
        if error := name_error(name):
            report.error(path, f'the plugin name "{name}" {error}', hint="choose another name")
        if plugin.uses is not None and not NAME.fullmatch(plugin.uses):
            found = report.quote((*path, "uses"))
            report.error((*path, "uses"), "this is not the name of a plugin", found=found)
        for variable in plugin.env.names():
            if not VARIABLE.fullmatch(variable):
                report.error((*path, "env", variable), f'"{variable}" cannot be the name of a variable')
        for command in plugin.timeouts:
            if not NAME.fullmatch(command):
                report.error((*path, "timeouts", command), f'"{command}" is not the name of a command')
        schedules = list(schedules_of(name, plugin))
        for schedule_path, schedule in schedules:
            _check_schedule(schedule_path, schedule, report)
        ids = ((schedule.id, (*schedule_path, "id")) for schedule_path, schedule in schedules)
        report.refuse_duplicates("schedule id", ids)


def missing_plugins(config: Config, installed: Collection[str]) -> frozenset[str]:
    """Return the names under `plugins` whose plugin is in none of the roots."""
    return frozenset(
        name for name, plugin in config.plugins.items() if (plugin.uses or name) not in installed
    )


def report_missing_plugins(config: Config, installed: Collection[str], report: ValidationReport) -> None:
    """Add an error for each. Called only beside other errors: alone, a missing plugin stops nothing."""
    missing = missing_plugins(config, installed)
    for name, plugin in config.plugins.items():
        if plugin.enabled and name in missing:
            path = ("plugins", name) if plugin.uses is None else ("plugins", name, "uses")
            message, hint = not_installed_message(plugin.uses or name, installed)
            report.error(path, message, hint=hint)


def not_installed_message(plugin: str, installed: Iterable[str]) -> tuple[str, str]:
    """Return the message about a plugin that is in none of the roots, and the hint."""
    similar = did_you_mean(plugin, installed)
    hint = "install it under one of `plugin_roots`, or remove it from `plugins`"
    message = f'no plugin "{plugin}" was found in the plugin roots'
    return message, hint if similar is None else f"{similar} Otherwise {hint}"


def _check_schedule(path: KeyPath, schedule: ScheduleSettings, report: ValidationReport) -> None:
    # Counts what is written: a trigger that cannot be read is reported already and is not missing.
    given = [trigger for trigger in _TRIGGERS if report.is_written((*path, trigger))]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        expected = "exactly one of every, cron, at and after"
        report.error(path, "a schedule needs one answer to when it runs", expected=expected, found=found)
    if schedule.command == "handle":
        hint = "schedule `poll`, or a command of your own"
        report.error((*path, "command"), "handle cannot be scheduled: it answers to an event", hint=hint)
    if not NAME.fullmatch(schedule.id):
        report.error((*path, "id"), f"{report.quote((*path, 'id'))} cannot be the id of a schedule")
    validate_timezone(schedule.timezone, (*path, "timezone"), report)
    if schedule.cron is not None:
        at = (*path, "cron")
        try:
            parse_cron(schedule.cron)
        except ValueError as error:
            message = f"this is not a cron expression: {error}"
            report.error(at, message, expected=CRON_EXPECTED, found=report.quote(at))
    window = schedule.preferred_window
    if window is not None and window.start == window.end:
        report.error((*path, "preferred_window"), "start and end of the window are the same")


def validate_timezone(name: str | None, path: KeyPath, report: ValidationReport) -> None:
    if name is not None and not find_timezone(name):
        report.error(
            path,
            "unknown time zone",
            expected="an IANA name such as Europe/Vienna",
            found=report.quote(path),
            hint=did_you_mean(name, all_timezones()),
        )
