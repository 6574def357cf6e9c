"""Rules over scripts: `run`, and the settings that are for scripts only."""

from __future__ import annotations

from ductile.config.find_config import is_url
from ductile.config.schema.model import Config
from ductile.config.schema.plugins import PluginSettings
from ductile.config.validate.report import ValidationReport
from ductile.core.jobs.model import OutputFormat
from ductile.core.scripts import read_command
from ductile.protocol.yaml_tree import KeyPath

_SCRIPT_KEYS = ("cwd", "output", "retry_on")
#: The largest exit status.
_MAX_STATUS = 255


def validate_script(path: KeyPath, plugin: PluginSettings, config: Config, report: ValidationReport) -> None:
    if plugin.run is None:
        _check_without_run(path, plugin, config, report)
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
        if not 0 < status <= _MAX_STATUS:
            where = (*path, "retry_on", index)
            report.error(where, "this is not the exit status of a failure", expected=f"1 to {_MAX_STATUS}")
    _warn_about_unused(path, plugin, report)


def _check_without_run(
    path: KeyPath, plugin: PluginSettings, config: Config, report: ValidationReport
) -> None:
    # A `run` that cannot be read is reported already.
    for key in () if report.is_written((*path, "run")) else _SCRIPT_KEYS:
        if getattr(plugin, key) is not None:
            report.error((*path, key), f"`{key}` is for scripts", hint="name the program with `run`")
    named = config.plugins.get(plugin.uses or "")
    if named is not None and named.run is not None:
        message = f"{plugin.uses} is a script of this configuration, not an installed plugin"
        report.error((*path, "uses"), message, hint=f"write the `run` of {plugin.uses} here as well")


def _warn_about_unused(path: KeyPath, plugin: PluginSettings, report: ValidationReport) -> None:
    if plugin.config.names() and plugin.output is not OutputFormat.PROTOCOL:
        hint = "put it into `env`, or answer in the protocol with `output: protocol`"
        report.warn((*path, "config"), "a script does not get its `config`", hint=hint)
    for key in ("warm", "preload"):
        if report.is_written((*path, key)):
            report.warn((*path, key), f"`{key}` does nothing for a script")
