"""Show and reload the daemon's configuration, drain plugins that are to be disabled, stop the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

from msgspec import UNSET

from ductile.config.schema.fields import SectionOf, fill_in_defaults
from ductile.config.schema.model import Config
from ductile.engine.reload.reloader import RemovedPluginWork
from ductile.errors import Problem
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import OnePlugin, find_plugin
from ductile.operations.request import DryRun, NoFields, local
from ductile.operations.response import Response, WasDryRun, from_record
from ductile.store.model.maintenance import PluginWork
from ductile.struct import Value, about

DEFAULT_DRAIN_TIMEOUT = timedelta(hours=1)


class ConfigProblem(Value):
    message: str
    file: str | None
    line: int | None
    column: int | None
    key: str | None
    expected: str | None
    found: str | None
    hint: str | None


class ConfigView(Response):
    config: Annotated[dict[str, Any], about("As it is written, with defaults; secrets masked.")]
    fingerprint: str
    warnings: tuple[ConfigProblem, ...]


class ReloadConfig(Value):
    drain: Annotated[
        bool, about("Let plugins that are removed or disabled finish their accepted work first.")
    ] = False
    drain_timeout: Annotated[
        timedelta | None,
        about("How long a drain may take, such as 10m (default 1h). After that nothing is changed."),
    ] = None
    unsealed: Annotated[bool, local("In a dry run: as if the files on disk were sealed.")] = False
    expected: Annotated[str | None, local("The fingerprint that the configuration must have.")] = None
    dry_run: DryRun = False


class ConfigReloaded(Response):
    config: Annotated[str, about("The fingerprint of the configuration that is in force now.")]
    added: Annotated[tuple[str, ...], about("Plugins.")]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    settings: Annotated[
        tuple[str, ...], about("Sections of the configuration, besides `plugins`, that changed.")
    ]
    ends: Annotated[
        tuple[RemovedPluginWork, ...],
        about(
            "For each plugin that is removed or disabled: its queued jobs that ended as dead "
            "(`plugin_removed`), and the runs that still use it. In a dry run, those that would."
        ),
    ]
    warnings: tuple[ConfigProblem, ...]
    dry_run: WasDryRun = UNSET


class StopDaemon(Value):
    dry_run: DryRun = False


class DaemonStopping(Response):
    stopping: bool
    pid: int
    dry_run: WasDryRun = UNSET


class PendingPluginWork(Response):
    """Accepted work that needs a plugin."""

    plugin: str
    queued: int
    running: int
    runs: Annotated[int, about("Pipeline runs with a step that uses it.")]


class DrainPlugin(OnePlugin):
    drain_timeout: Annotated[timedelta, about("How long to wait, such as 10m.")] = DEFAULT_DRAIN_TIMEOUT


class PluginDrained(Response):
    plugin: str
    drained: bool


async def view_configuration(context: OperationContext, _request: NoFields) -> ConfigView:
    snapshot = context.snapshot()
    config = fill_in_defaults(snapshot.redacted, SectionOf(section=Config))
    return ConfigView(
        config=config if isinstance(config, dict) else {},
        fingerprint=snapshot.fingerprint,
        warnings=_problems(snapshot.warnings),
    )


async def reload(context: OperationContext, request: ReloadConfig) -> ConfigReloaded:
    """Switch to the configuration on disk; with `drain`, after the plugins it removes have no work left."""
    reloader = context.require_engine().reloader
    drain = (request.drain_timeout or DEFAULT_DRAIN_TIMEOUT) if request.drain else None
    if request.dry_run:
        result = await reloader.preview(unsealed=request.unsealed)
    else:
        result = await reloader.reload(drain, expected=request.expected)
    warnings = _problems(result.warnings)
    return from_record(ConfigReloaded, result, warnings=warnings, dry_run=request.dry_run or UNSET)


def _problems(problems: Sequence[Problem]) -> tuple[ConfigProblem, ...]:
    return tuple(from_record(ConfigProblem, problem) for problem in problems)


async def stop(context: OperationContext, request: StopDaemon) -> DaemonStopping:
    engine = context.require_engine()
    pid, dry_run = engine.status().pid, request.dry_run
    if not dry_run:
        engine.stop()
    return DaemonStopping(stopping=not dry_run, pid=pid, dry_run=dry_run or UNSET)


async def pending_work(context: OperationContext, request: OnePlugin) -> PendingPluginWork:
    found = await context.store.pending_work((request.plugin,))
    return from_record(PendingPluginWork, found[0] if found else PluginWork(plugin=request.plugin))


async def drain_plugin(context: OperationContext, request: DrainPlugin) -> PluginDrained:
    """Wait until no accepted work needs the plugin; it gets no new jobs from now on.

    If no reload disables it within a minute after that, it gets jobs again.
    """
    engine = context.require_engine()
    plugin = find_plugin(context.snapshot(), request.plugin)
    if plugin.enabled:
        await engine.reloader.drain((plugin.name,), request.drain_timeout)
    return PluginDrained(plugin=plugin.name, drained=True)
