"""Running a plugin's entrypoint once, outside any queue: nothing is stored, nothing follows from it.

For authors. Owns how a plugin is named there, by its configured name or by a directory that may lie anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import open_configuration
from ductile.admin.plugins import PluginEntry, find_plugin, is_plugin_directory, load_directory
from ductile.config.snapshot import (
    COMMAND_TIMEOUTS,
    OTHER_TIMEOUT,
    InstalledPlugin,
    PluginInstance,
    RefusedPlugin,
)
from ductile.core.jobs.outcomes import Completed, Failed, TimedOut
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, UsageError
from ductile.runner.environment import describe_job, plugin_environment
from ductile.runner.interpret import Interpretation, interpret
from ductile.runner.port import NO_LIMITS, CouldNotStart, Launch, ResourceLimits, RunnerLost
from ductile.runner.process.spawn import SpawnRunner
from ductile.struct import Value

if TYPE_CHECKING:
    from ductile.runner.port import Runner

#: Where the id of a store stands for other processes: no daemon's recovery may take a trial for its own.
_NO_STORE = "none"


class PluginUnderTest(Value):
    """The plugin that is tried, and what it would be given."""

    name: str
    plugin: InstalledPlugin
    config: JsonObject
    #: None for a plugin that is tried without being configured.
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
        limits = self.instance.limits
        return ResourceLimits(
            memory=limits.memory,
            cpu_seconds=limits.cpu_seconds,
            open_files=limits.open_files,
            processes=limits.processes,
        )


class RunOnceResult(Value):
    """How one run went."""

    judgement: Interpretation

    @property
    def kind(self) -> str:
        """`ok`, `error`, `config` (exit 78 without an answer), `timeout`, or `broken`."""
        match self.judgement.outcome:
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
        outcome = self.judgement.outcome
        return outcome.error if isinstance(outcome, Failed | TimedOut) else None


def find_plugin_under_test(
    named: str | None, environ: Mapping[str, str], target: str
) -> PluginUnderTest | RefusedPlugin:
    """A directory with a manifest, or a plugin by name; one that is not configured has an empty config."""
    if is_plugin_directory(target):
        return _subject_in(load_directory(Path(target)))
    opened = open_configuration(named, environ)
    view = find_plugin(opened, target)
    instance = view.instance
    if instance is None or instance.installed is None or instance.refused is not None:
        return _subject_of(view)
    return PluginUnderTest(
        name=instance.name,
        plugin=instance.installed,
        config=instance.config.reveal(),
        instance=instance,
        passthrough=tuple(opened.snapshot.service.plugin_env_passthrough),
    )


def find_runnable_plugin(named: str | None, environ: Mapping[str, str], target: str) -> PluginUnderTest:
    subject = find_plugin_under_test(named, environ, target)
    if isinstance(subject, RefusedPlugin):
        raise ConfigError(f"{subject.name} cannot run: {subject.reason}", hint=subject.hint)
    return subject


def _subject_of(view: PluginEntry) -> PluginUnderTest | RefusedPlugin:
    if view.reason is None and view.directory is not None:
        return _subject_in(load_directory(view.directory))
    return RefusedPlugin(
        name=view.name,
        directory=view.directory or Path(),
        code=view.code or "refused",
        reason=view.reason or "it cannot run",
        hint=view.hint,
    )


def _subject_in(found: InstalledPlugin | RefusedPlugin) -> PluginUnderTest | RefusedPlugin:
    if isinstance(found, RefusedPlugin):
        return found
    return PluginUnderTest(name=found.name, plugin=found, config={})


async def run_request(
    named: str | None,
    environ: Mapping[str, str],
    target: str,
    request: bytes,
    *,
    within: timedelta | None = None,
) -> RunOnceResult:
    """Start the plugin with exactly these bytes on its stdin."""
    subject = find_runnable_plugin(named, environ, target)
    runner = SpawnRunner()
    try:
        return await run_once(runner, subject, request, environ, within=within)
    finally:
        await runner.close()


async def run_once(
    runner: Runner,
    subject: PluginUnderTest,
    request: bytes,
    environ: Mapping[str, str],
    *,
    within: timedelta | None = None,
) -> RunOnceResult:
    told = _string_fields(request)
    command = told.get("command", "")
    run = Launch(
        entrypoint=str(subject.plugin.entrypoint),
        request=request,
        environment=plugin_environment(
            environ,
            passthrough=subject.passthrough,
            own=subject.env,
            job=describe_job(
                store_id=_NO_STORE,
                daemon="",
                job_id=told.get("job_id", ""),
                plugin=told.get("instance") or subject.name,
                command=command,
                attempt=1,
            ),
        ),
        directory=str(Path.cwd()),
        timeout=within or subject.timeout_for(command),
        limits=subject.limits,
    )
    started = await runner.start(run)
    if isinstance(started, CouldNotStart | RunnerLost):
        return RunOnceResult(judgement=interpret(started))
    return RunOnceResult(judgement=interpret(await started.wait()))


def _string_fields(request: bytes) -> dict[str, str]:
    """The fields that the environment repeats, as far as the bytes are a request at all."""
    try:
        body = json.loads(request)
    except ValueError:
        return {}
    if not isinstance(body, dict):
        return {}
    return {key: value for key, value in body.items() if isinstance(value, str) and "\0" not in value}


def read_request(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
