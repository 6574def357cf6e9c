"""Runs a plugin's entrypoint once, outside any queue, for its author: nothing is stored, no job follows.

The plugin is named by its configured name, or by its directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.admin.plugins import is_plugin_directory
from ductile.config.snapshot import (
    COMMAND_TIMEOUTS,
    OTHER_TIMEOUT,
    InstalledPlugin,
    PluginInstance,
    RefusedPlugin,
)
from ductile.core.jobs.model import Completed, Failed, TimedOut
from ductile.core.json import JsonObject
from ductile.engine.launches import PreparedLaunch, prepare_script
from ductile.errors import ConfigError, UsageError
from ductile.plugins.catalogue import find_entry
from ductile.plugins.discovery import load_directory
from ductile.runner.interpret import Interpretation, interpret
from ductile.runner.port import (
    NO_LIMITS,
    CouldNotStart,
    ForkServerLost,
    Launch,
    ResourceLimits,
    job_variables,
    plugin_environment,
)
from ductile.runner.process.spawn import SpawnRunner
from ductile.struct import Value, convert

if TYPE_CHECKING:
    from ductile.runner.port import Runner

#: In place of the id of a store, so that no daemon takes the process for one of its own.
_NO_STORE = "none"


class PluginUnderTest(Value):
    """A plugin, and the configuration it runs with."""

    name: str
    plugin: InstalledPlugin
    config: JsonObject
    #: None for a plugin that is not configured.
    instance: PluginInstance | None = None
    passthrough: tuple[str, ...] = ()

    def timeout_for(self, command: str) -> timedelta:
        if self.instance is not None:
            return self.instance.timeout_for(command)
        return COMMAND_TIMEOUTS.get(command, OTHER_TIMEOUT)

    @property
    def env(self) -> Mapping[str, str]:
        return {} if self.instance is None else self.instance.env.reveal()

    @property
    def limits(self) -> ResourceLimits:
        if self.instance is None:
            return NO_LIMITS
        return convert(self.instance.limits, ResourceLimits, from_attributes=True)


class RunOnceResult(Value):
    interpretation: Interpretation

    @property
    def kind(self) -> str:
        """The kind: `ok`, `error`, `config` (exit 78 without a response), `timeout`, or `broken`."""
        match self.interpretation.outcome:
            case Completed():
                return "ok"
            case TimedOut():
                return "timeout"
            case Failed(reason="plugin_error"):
                return "error"
            case Failed(reason="bad_exit", permanent=True):
                return "config"
            case _:
                return "broken"

    @property
    def error(self) -> str | None:
        outcome = self.interpretation.outcome
        return outcome.error if isinstance(outcome, Failed | TimedOut) else None


def find_plugin_under_test(
    config_path: str | None, environ: Mapping[str, str], target: str
) -> PluginUnderTest | RefusedPlugin:
    """Return the plugin in a directory or of a name; one that is not configured gets an empty config.

    Raises NotFoundError for an unknown name.
    """
    if is_plugin_directory(target):
        return _unconfigured(load_directory(Path(target)))
    opened = open_configuration(config_path, environ)
    entry = find_entry(opened.snapshot, target, opened.discovery)
    instance = entry.instance
    if instance is None or instance.installed is None or instance.refused is not None:
        if entry.reason is None and entry.directory is not None:
            return _unconfigured(load_directory(entry.directory))
        return RefusedPlugin(
            name=entry.name,
            directory=entry.directory or Path(),
            code=entry.code or "refused",
            reason=entry.reason or "it cannot run",
            hint=entry.hint,
        )
    return PluginUnderTest(
        name=instance.name,
        plugin=instance.installed,
        config=instance.config.reveal(),
        instance=instance,
        passthrough=tuple(opened.snapshot.service.plugin_env_passthrough),
    )


def find_runnable_plugin(config_path: str | None, environ: Mapping[str, str], target: str) -> PluginUnderTest:
    """Return the plugin as `find_plugin_under_test` does. Raises ConfigError for one that cannot run."""
    tested = find_plugin_under_test(config_path, environ, target)
    if isinstance(tested, RefusedPlugin):
        raise ConfigError(f"{tested.name} cannot run: {tested.reason}", hint=tested.hint)
    return tested


def _unconfigured(plugin: InstalledPlugin | RefusedPlugin) -> PluginUnderTest | RefusedPlugin:
    if isinstance(plugin, RefusedPlugin):
        return plugin
    return PluginUnderTest(name=plugin.name, plugin=plugin, config={})


async def run_request(
    config_path: str | None,
    environ: Mapping[str, str],
    target: str,
    request: bytes,
    *,
    time_limit: timedelta | None = None,
) -> RunOnceResult:
    """Start the plugin with exactly these bytes on stdin, and wait for its end."""
    tested = find_runnable_plugin(config_path, environ, target)
    runner = SpawnRunner()
    try:
        return await run_once(runner, tested, request, environ, time_limit=time_limit)
    finally:
        await runner.close()


async def run_once(
    runner: Runner,
    tested: PluginUnderTest,
    request: bytes,
    environ: Mapping[str, str],
    *,
    time_limit: timedelta | None = None,
) -> RunOnceResult:
    """Run the plugin to its end. It gets the bytes of the request even if they are no JSON object."""
    try:
        decoded = json.loads(request)
    except ValueError:
        decoded = None
    body: JsonObject = decoded if isinstance(decoded, dict) else {}
    # Without texts that cannot be variables of a process.
    fields = {name: value for name, value in body.items() if isinstance(value, str) and "\0" not in value}
    command = fields.get("command", "")
    job = job_variables(
        store_id=_NO_STORE,
        daemon="",
        job_id=fields.get("job_id", ""),
        plugin=fields.get("instance") or tested.name,
        command=command,
        attempt=1,
    )
    launch = Launch(
        entrypoint=str(tested.plugin.entrypoint),
        request=request,
        environment=plugin_environment(environ, passthrough=tested.passthrough, own=tested.env, job=job),
        directory=str(Path.cwd()),
        timeout=time_limit or tested.timeout_for(command),
        limits=tested.limits,
    )
    prepared: PreparedLaunch | Failed = PreparedLaunch(launch=launch)
    if tested.plugin.script is not None:
        payload = body.get("payload")
        prepared = prepare_script(
            tested.plugin.script, launch, payload if isinstance(payload, dict) else {}, job
        )
    if isinstance(prepared, Failed):
        return RunOnceResult(interpretation=Interpretation(outcome=prepared))
    started = await runner.start(prepared.launch)
    ended = started if isinstance(started, CouldNotStart | ForkServerLost) else await started.wait()
    return RunOnceResult(interpretation=interpret(ended, prepared.script))


def read_request(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
