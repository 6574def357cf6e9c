"""The daemon's life: reload its configuration, stop it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import UNSET, Meta

from ductile.engine.results import RemovedPluginWork
from ductile.errors import Problem
from ductile.operations.context import OperationContext
from ductile.operations.plugins.draining import DEFAULT_DRAIN_TIMEOUT
from ductile.operations.request import DryRun
from ductile.operations.response import Response, WasDryRun, from_record
from ductile.struct import Value


class ReloadConfig(Value):
    drain: Annotated[
        bool,
        Meta(description="Let plugins that are removed or disabled finish their accepted work first."),
    ] = False
    drain_timeout: Annotated[
        timedelta | None,
        Meta(
            description="How long a drain may take, such as 10m (default 1h). After that nothing is changed."
        ),
    ] = None
    dry_run: DryRun = False


class ConfigReloaded(Response):
    config: Annotated[str, Meta(description="The fingerprint of the configuration that is in force now.")]
    added: Annotated[tuple[str, ...], Meta(description="Plugins.")]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    settings: Annotated[
        tuple[str, ...],
        Meta(description="Sections of the configuration, besides `plugins`, that changed."),
    ]
    ends: Annotated[
        tuple[RemovedPluginWork, ...],
        Meta(
            description="For each plugin that is removed or disabled: its queued jobs that ended as dead "
            "(`plugin_removed`), and the runs that still use it. In a dry run, those that would."
        ),
    ]
    warnings: tuple[Problem, ...]
    dry_run: WasDryRun = UNSET


class StopDaemon(Value):
    dry_run: DryRun = False


class DaemonStopping(Response):
    stopping: bool
    pid: int
    dry_run: WasDryRun = UNSET


async def reload(context: OperationContext, request: ReloadConfig) -> ConfigReloaded:
    """Switch to the configuration on disk; with `drain`, after the plugins it removes have no work left."""
    engine = context.require_engine()
    if request.dry_run:
        return from_record(ConfigReloaded, await engine.preview_reload(), dry_run=True)
    drain = (request.drain_timeout or DEFAULT_DRAIN_TIMEOUT) if request.drain else None
    return from_record(ConfigReloaded, await engine.reload(drain))


async def stop(context: OperationContext, request: StopDaemon) -> DaemonStopping:
    engine = context.require_engine()
    pid = engine.status().pid
    if request.dry_run:
        return DaemonStopping(stopping=False, pid=pid, dry_run=True)
    engine.stop()
    return DaemonStopping(stopping=True, pid=pid)
