"""Rules over `plugins`: names, variables, schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.compile.cron import CRON_EXPECTED, parse_cron
from ductile.config.key_paths import did_you_mean
from ductile.config.names import NAME, VARIABLE, name_error
from ductile.config.timezones import all_timezones, find_timezone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.model import Config
    from ductile.config.schema.plugins import PluginSettings, ScheduleSettings
    from ductile.config.validate.report import ValidationReport

_TRIGGERS = ("every", "cron", "at", "after")


def schedules_of(name: str, plugin: PluginSettings) -> Iterator[tuple[KeyPath, ScheduleSettings]]:
    """Every schedule of a plugin with its path, the single one last."""
    for index, schedule in enumerate(plugin.schedules):
        yield ("plugins", name, "schedules", index), schedule
    if plugin.schedule is not None:
        yield ("plugins", name, "schedule"), plugin.schedule


def validate_plugins(config: Config, report: ValidationReport) -> None:
    for name, plugin in config.plugins.items():
        path = ("plugins", name)
        if fault := name_error(name):
            report.error(path, f'the plugin name "{name}" {fault}', hint="choose another name")
        if plugin.uses is not None and not NAME.fullmatch(plugin.uses):
            report.error(
                (*path, "uses"), "this is not the name of a plugin", found=report.quote((*path, "uses"))
            )
        for variable in plugin.env.names():
            if not VARIABLE.fullmatch(variable):
                report.error((*path, "env", variable), f'"{variable}" cannot be the name of a variable')
        for command in plugin.timeouts:
            if not NAME.fullmatch(command):
                report.error((*path, "timeouts", command), f'"{command}" is not the name of a command')
        _check_schedules(name, plugin, report)


def missing_plugins(config: Config, found: Collection[str]) -> frozenset[str]:
    """The names under `plugins` that stand for nothing in the roots."""
    return frozenset(name for name, plugin in config.plugins.items() if (plugin.uses or name) not in found)


def report_missing_plugins(config: Config, found: Collection[str], report: ValidationReport) -> None:
    """Told with other errors only: by itself a plugin that is missing does not keep the rest from running."""
    absent = missing_plugins(config, found)
    for name, plugin in config.plugins.items():
        if plugin.enabled and name in absent:
            path = ("plugins", name) if plugin.uses is None else ("plugins", name, "uses")
            message, hint = not_installed_message(plugin.uses or name, found)
            report.error(path, message, hint=hint)


def not_installed_message(plugin: str, found: Iterable[str]) -> tuple[str, str]:
    """What is said of a plugin that is in none of the roots, and what to do about it."""
    near = did_you_mean(plugin, found)
    hint = "install it under one of `plugin_roots`, or remove it from `plugins`"
    told = hint if near is None else f"{near} Otherwise {hint}"
    return f'no plugin "{plugin}" was found in the plugin roots', told


def _check_schedules(name: str, plugin: PluginSettings, report: ValidationReport) -> None:
    found = list(schedules_of(name, plugin))
    for path, schedule in found:
        _check_schedule(path, schedule, report)
    ids = ((schedule.id, (*path, "id")) for path, schedule in found)
    report.refuse_duplicates("schedule id", ids)


def _check_schedule(path: KeyPath, schedule: ScheduleSettings, report: ValidationReport) -> None:
    # By what is written: a trigger that could not be read was told already and is not missing besides.
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
    if schedule.timezone is not None and not find_timezone(schedule.timezone):
        _refuse_zone((*path, "timezone"), schedule.timezone, report)
    if schedule.cron is not None:
        _check_cron((*path, "cron"), schedule.cron, report)
    window = schedule.preferred_window
    if window is not None and window.start == window.end:
        report.error((*path, "preferred_window"), "start and end of the window are the same")


def _check_cron(path: KeyPath, cron: str, report: ValidationReport) -> None:
    try:
        parse_cron(cron)
    except ValueError as error:
        message = f"this is not a cron expression: {error}"
        report.error(path, message, expected=CRON_EXPECTED, found=report.quote(path))


def validate_timezone(config: Config, report: ValidationReport) -> None:
    zone = config.service.timezone
    if zone is not None and not find_timezone(zone):
        _refuse_zone(("service", "timezone"), zone, report)


def _refuse_zone(path: KeyPath, zone: str, report: ValidationReport) -> None:
    report.error(
        path,
        "unknown time zone",
        expected="an IANA name such as Europe/Vienna",
        found=report.quote(path),
        hint=did_you_mean(zone, all_timezones()),
    )
