"""Rules over service, store, paths and plugins, and the order in which all rules are applied.

Pure over the decoded model; locations come from the tree it was decoded from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from zoneinfo import available_timezones

from ductile.config.cron import CRON_EXPECTED, parse_cron
from ductile.config.find_config import is_url
from ductile.config.names import NAME, VARIABLE, name_error
from ductile.config.schema.model import Config
from ductile.config.schema.plugins import PluginSettings, ScheduleSettings
from ductile.config.timezones import find_timezone
from ductile.config.validate.access import (
    validate_access_references,
    validate_literal_secrets,
    validate_state_webhooks,
    validate_tokens,
    validate_webhooks,
)
from ductile.config.validate.context import validate_context
from ductile.config.validate.pipelines import (
    missing_plugins,
    validate_pipelines,
    validate_references,
    validate_routes,
)
from ductile.config.validate.report import ValidationReport
from ductile.core.durations import format_duration
from ductile.core.jobs.model import OutputFormat
from ductile.core.scripts import EXEC_PLUGIN, read_command
from ductile.core.suggest import did_you_mean
from ductile.protocol.yaml_tree import KeyPath

_TRIGGERS = ("every", "cron", "at", "after")
_SCRIPT_KEYS = ("cwd", "output", "retry_on")
_MAX_EXIT_STATUS = 255


def validate_config(config: Config, report: ValidationReport, *, complete: bool) -> None:
    """Add every broken rule to the report.

    `complete` is false if some values could not be read. Names are then not looked up: they may refer to one
    of those values.
    """
    service = config.service
    if service.job_queue_retention < service.dedupe_ttl:
        report.error(
            ("service", "job_queue_retention"),
            "jobs would leave the queue before their dedupe key expires",
            expected=f"at least dedupe_ttl, {format_duration(service.dedupe_ttl)}",
            found=format_duration(service.job_queue_retention),
        )
    for index, variable in enumerate(service.plugin_env_passthrough):
        if not VARIABLE.fullmatch(variable):
            path = ("service", "plugin_env_passthrough", index)
            report.error(path, f"{report.quote(path)} cannot be the name of a variable")
    state = config.state
    if state.path is not None and state.url is not None:
        report.error(("state",), "there can be only one store", expected="`path` or `url`", found="both")
    if state.url is None and state.directory is not None:
        hint = "the directory of a SQLite store is that of `state.path`"
        report.error(("state", "directory"), "there is no `state.url`", hint=hint)
    if state.url is not None and (fault := _fault_of_postgres_url(state.url.reveal())) is not None:
        report.error(("state", "url"), fault, expected="postgresql://user:password@host/database")
    if config.plugins_dir is not None and config.plugin_roots:
        hint = "move it into `plugin_roots`"
        report.error(("plugins_dir",), "`plugins_dir` and `plugin_roots` are both set", hint=hint)
    _check_paths(config, report)
    validate_timezone(config.service.timezone, ("service", "timezone"), report)
    validate_plugins(config, report)
    validate_routes(config, report)
    validate_pipelines(config, report)
    validate_tokens(config, report)
    validate_webhooks(config, report)
    validate_state_webhooks(config, report)
    validate_literal_secrets(config, report)
    if complete:
        validate_references(config, report)
        validate_context(config, report)
        validate_access_references(config, report)


def _fault_of_postgres_url(url: str) -> str | None:
    """Return the fault in a URL, without any of its text; None if it is valid.

    The database driver would quote the parts that it cannot read, which may be parts of the password.
    """
    scheme, separator, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres") or not separator:
        return "this is not a PostgreSQL URL"
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if authority.count("@") > 1 or ("@" not in authority and "@" in rest):
        return "characters such as @, / and # in the user or the password must be percent-encoded"
    if re.search(r"%(?![0-9A-Fa-f]{2})", url):
        return "a % is not followed by two hexadecimal digits; % itself is written as %25"
    if re.search(r"[\x00-\x20\x7f#]", url):
        return "spaces, control characters and # must be percent-encoded"
    for host in authority.rpartition("@")[2].split(","):
        if not re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", host):
            return "the port is not a number"
    return None


def _check_paths(config: Config, report: ValidationReport) -> None:
    paths: list[tuple[KeyPath, str | None]] = [
        (("state", "path"), config.state.path),
        (("state", "directory"), config.state.directory),
        (("plugins_dir",), config.plugins_dir),
        *((("plugin_roots", index), root) for index, root in enumerate(config.plugin_roots)),
        *((("artifacts", "roots", index), root) for index, root in enumerate(config.artifacts.roots)),
        *((("tokens", index, "scopes_file"), token.scopes_file) for index, token in enumerate(config.tokens)),
    ]
    for key, text in paths:
        if text is None:
            continue
        if is_url(text):
            report.error(key, "this has to be a local path, not a URL")
        elif not text.strip() or "\0" in text:
            report.error(key, "this is not a path")


def schedules_of(name: str, plugin: PluginSettings) -> Iterator[tuple[KeyPath, ScheduleSettings]]:
    """Yield every schedule of a plugin with its path, the single one last."""
    for index, schedule in enumerate(plugin.schedules):
        yield ("plugins", name, "schedules", index), schedule
    if plugin.schedule is not None:
        yield ("plugins", name, "schedule"), plugin.schedule


def validate_plugins(config: Config, report: ValidationReport) -> None:
    """Check the names, scripts, variables, timeouts and schedules of all plugins."""
    for name, plugin in config.plugins.items():
        path = ("plugins", name)
        error = (
            "is reserved: its jobs are those of `ductile exec`" if name == EXEC_PLUGIN else name_error(name)
        )
        if error:
            report.error(path, f'the plugin name "{name}" {error}', hint="choose another name")
        _check_script(path, plugin, config, report)
        if plugin.uses is not None and not NAME.fullmatch(plugin.uses):
            key_path = (*path, "uses")
            report.error(key_path, "this is not the name of a plugin", found=report.quote(key_path))
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


def _check_script(path: KeyPath, plugin: PluginSettings, config: Config, report: ValidationReport) -> None:
    """Check `run`, and the settings that are for scripts only."""
    if plugin.run is None:
        # A `run` that cannot be read is reported already.
        for key in () if report.is_written((*path, "run")) else _SCRIPT_KEYS:
            if getattr(plugin, key) is not None:
                report.error((*path, key), f"`{key}` is for scripts", hint="name the program with `run`")
        used_plugin = config.plugins.get(plugin.uses or "")
        if used_plugin is not None and used_plugin.run is not None:
            message = f"{plugin.uses} is a script of this configuration, not an installed plugin"
            report.error((*path, "uses"), message, hint=f"write the `run` of {plugin.uses} here as well")
        return
    if plugin.uses is not None:
        hint = "remove `uses`: a script needs no installed plugin"
        report.error((*path, "uses"), "`run` and `uses` are both set", expected="one of them", hint=hint)
    try:
        read_command(plugin.run)
    except ValueError as error:
        report.error((*path, "run"), f"this cannot be run: {error}", expected="a program and its arguments")
    if plugin.cwd is not None and (is_url(plugin.cwd) or not plugin.cwd.strip() or "\0" in plugin.cwd):
        report.error((*path, "cwd"), "this is not a local path")
    for index, status in enumerate(plugin.retry_on if isinstance(plugin.retry_on, tuple) else ()):
        if not 0 < status <= _MAX_EXIT_STATUS:
            expected = f"1 to {_MAX_EXIT_STATUS}"
            key_path = (*path, "retry_on", index)
            report.error(key_path, "this is not the exit status of a failure", expected=expected)
    _warn_about_unused(path, plugin, report)


def _warn_about_unused(path: KeyPath, script: PluginSettings, report: ValidationReport) -> None:
    if script.config.names() and script.output is not OutputFormat.PROTOCOL:
        hint = "put it into `env`, or answer in the protocol with `output: protocol`"
        report.warn((*path, "config"), "a script does not get its `config`", hint=hint)
    for key in ("warm", "preload"):
        if report.is_written((*path, key)):
            report.warn((*path, key), f"`{key}` does nothing for a script")


def report_missing_plugins(config: Config, report: ValidationReport) -> None:
    """Add an error for each configured plugin that is not installed.

    Called only beside other errors: alone, a missing plugin stops nothing.
    """
    installed = () if report.list_installed_plugins is None else report.list_installed_plugins()
    missing = missing_plugins(config, report)
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
    written = [trigger for trigger in _TRIGGERS if report.is_written((*path, trigger))]
    expected = "exactly one of every, cron, at and after"
    report.require_one(path, written, "a schedule needs exactly one trigger", expected=expected)
    if schedule.command == "handle":
        hint = "schedule `poll`, or a command of your own"
        report.error((*path, "command"), "handle cannot be scheduled: it needs an event", hint=hint)
    if not NAME.fullmatch(schedule.id):
        report.error((*path, "id"), f"{report.quote((*path, 'id'))} cannot be the id of a schedule")
    validate_timezone(schedule.timezone, (*path, "timezone"), report)
    if schedule.cron is not None:
        key_path = (*path, "cron")
        try:
            parse_cron(schedule.cron)
        except ValueError as error:
            message = f"this is not a cron expression: {error}"
            report.error(key_path, message, expected=CRON_EXPECTED, found=report.quote(key_path))
    window = schedule.preferred_window
    if window is not None and window.start == window.end:
        report.error((*path, "preferred_window"), "start and end of the window are the same")


def validate_timezone(name: str | None, path: KeyPath, report: ValidationReport) -> None:
    if name is not None and not find_timezone(name):
        expected = "an IANA name such as Europe/Vienna"
        hint = did_you_mean(name, sorted(available_timezones()))
        report.error(path, "unknown time zone", expected=expected, found=report.quote(path), hint=hint)
