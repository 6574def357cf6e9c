"""Show and reload the daemon's configuration, drain plugins that are to be disabled, stop the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

from msgspec import UNSET

from ductile.config.differences import ChangeKind
from ductile.config.edit.change import parse_key
from ductile.config.schema.fields import SectionOf, fill_in_defaults
from ductile.config.schema.model import Config
from ductile.core.suggest import did_you_mean
from ductile.engine.reload.effects import NameChanges
from ductile.engine.reload.reloader import ReloadResult, RemovedPluginWork
from ductile.errors import NotFoundError, Problem
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import OnePlugin, find_plugin
from ductile.operations.request import DryRun, NoFields, in_local_call, refused
from ductile.operations.response import Response, Timestamp, WasDryRun, from_record
from ductile.store.model.maintenance import LoadCause, PluginWork
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


class ShowConfigValue(Value):
    key: Annotated[
        str | None, about("Only this part, such as plugins.echo or routes[0]. Everything if absent.")
    ] = None


class ConfigValue(Response):
    key: str | None
    value: Annotated[Any, about("As it is written, without defaults; secrets masked.")]


class ReloadConfig(Value):
    drain: Annotated[
        bool, about("Let plugins that are removed or disabled finish their accepted work first.")
    ] = False
    drain_timeout: Annotated[
        timedelta | None,
        about("How long a drain may take, such as 10m (default 1h). After that nothing is changed."),
    ] = None
    expected: Annotated[str | None, in_local_call("The fingerprint that the configuration must have.")] = None
    command: Annotated[str, in_local_call("The command that is recorded with it.")] = "reload"
    plan: Annotated[str | None, in_local_call("The id of the plan that it applies.")] = None
    dry_run: DryRun = False


class ScheduleEffect(Value):
    plugin: str
    id: str
    change: Annotated[ChangeKind, about("`changed`: another rule, or another next run.")]
    next_run_before: Timestamp | None
    next_run: Annotated[
        Timestamp | None,
        about("Null without a next run, and while it is paused. With jitter, one possibility."),
    ]


class ReloadEffects(Value):
    config: Annotated[str, about("The fingerprint of the configuration that is in force now.")]
    added: Annotated[tuple[str, ...], about("Plugins.")]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    schedules: tuple[ScheduleEffect, ...]
    pipelines: NameChanges
    routes: Annotated[NameChanges, about("Each as `source event_type -> plugin.command`.")]
    webhooks: Annotated[NameChanges, about("By path.")]
    tokens: Annotated[NameChanges, about("Tokens and shared secrets, by name.")]
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


class ConfigReloaded(ReloadEffects, Response):
    pass


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
    """Return the configuration in force, with its warnings."""
    snapshot = context.snapshot()
    config = fill_in_defaults(snapshot.redacted, SectionOf(section=Config))
    return ConfigView(
        config=config if isinstance(config, dict) else {},
        fingerprint=snapshot.fingerprint,
        warnings=_problems(snapshot.warnings),
    )


async def show_value(context: OperationContext, request: ShowConfigValue) -> ConfigValue:
    """Return a part of the configuration in force. Raises `NotFoundError`."""
    value: Any = context.snapshot().redacted
    if request.key is not None:
        for part in parse_key(request.key):
            # `routes.0` means the same as `routes[0]`.
            is_index = isinstance(value, list) and str(part).isascii() and str(part).isdigit()
            try:
                value = value[int(part) if is_index else part]
            except (LookupError, TypeError):
                names = list(value) if isinstance(value, dict) else []
                contents = f"There are {', '.join(names)}." if names else None
                if isinstance(value, list):
                    contents = f"There are {len(value)} entries."
                hint = did_you_mean(str(part), names) or contents
                raise NotFoundError(f"{request.key} is not set", hint=hint) from None
    return ConfigValue(key=request.key, value=value)


async def reload(context: OperationContext, request: ReloadConfig) -> ConfigReloaded:
    """Switch to the configuration on disk; with `drain`, after the plugins it removes have no work left."""
    if request.drain_timeout is not None and not request.drain:
        raise refused("drain_timeout", "drain_timeout needs drain: without it nothing is waited for")
    reloader = context.require_engine().reloader
    drain = (request.drain_timeout or DEFAULT_DRAIN_TIMEOUT) if request.drain else None
    if request.dry_run:
        result = await reloader.preview()
    else:
        cause = LoadCause(command=request.command, author=context.source.author, plan=request.plan)
        result = await reloader.reload(drain, expected=request.expected, cause=cause)
    return reloaded_response(result, dry_run=request.dry_run)


def reloaded_response(result: ReloadResult, *, dry_run: bool) -> ConfigReloaded:
    """Return what a reload changed; in a dry run, what it would change."""
    effects = result.effects
    return ConfigReloaded(
        config=result.config,
        added=effects.plugins.added,
        changed=effects.plugins.changed,
        removed=effects.plugins.removed,
        schedules=tuple(from_record(ScheduleEffect, schedule) for schedule in effects.schedules),
        pipelines=effects.pipelines,
        routes=effects.routes,
        webhooks=effects.webhooks,
        tokens=effects.tokens,
        settings=effects.settings,
        ends=result.ends,
        warnings=_problems(result.warnings),
        dry_run=dry_run or UNSET,
    )


def _problems(problems: Sequence[Problem]) -> tuple[ConfigProblem, ...]:
    return tuple(from_record(ConfigProblem, problem) for problem in problems)


async def stop(context: OperationContext, request: StopDaemon) -> DaemonStopping:
    """Stop the daemon. Returns at once, while running jobs may still have their grace period."""
    engine = context.require_engine()
    pid, dry_run = engine.status().pid, request.dry_run
    if not dry_run:
        engine.stop()
    return DaemonStopping(stopping=not dry_run, pid=pid, dry_run=dry_run or UNSET)


async def pending_work(context: OperationContext, request: OnePlugin) -> PendingPluginWork:
    """Return how much accepted work needs a plugin."""
    work = await context.store.pending_work((request.plugin,))
    return from_record(PendingPluginWork, work[0] if work else PluginWork(plugin=request.plugin))


async def drain_plugin(context: OperationContext, request: DrainPlugin) -> PluginDrained:
    """Wait until no accepted work needs the plugin; it gets no new jobs from now on.

    If no reload disables it within a minute after that, it gets jobs again.
    """
    engine = context.require_engine()
    plugin = find_plugin(context.snapshot(), request.plugin)
    if plugin.enabled:
        await engine.reloader.drain((plugin.name,), request.drain_timeout)
    return PluginDrained(plugin=plugin.name, drained=True)
