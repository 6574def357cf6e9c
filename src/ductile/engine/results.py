"""What the engine returns to operations."""

from __future__ import annotations

from ductile.errors import Problem
from ductile.struct import Value


class EngineStatus(Value):
    pid: int
    version: str
    uptime_seconds: float
    #: The fingerprint of the configuration in force.
    config: str
    #: Whether recovery has ended.
    ready: bool
    stopping: bool
    #: Callers that wait for a job to end.
    waiting_callers: int


class RemovedPluginWork(Value):
    """Work that needed a plugin which is no longer configured or enabled."""

    plugin: str
    #: Queued jobs that ended, or would end, as dead (`plugin_removed`).
    jobs: int
    #: Pipeline runs that still use it.
    runs: int


class ReloadResult(Value):
    """What a reload changed, or what one would change."""

    #: The fingerprint of the new configuration.
    config: str
    #: Names of plugins.
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    #: Sections of the configuration, besides `plugins`, that differ.
    settings: tuple[str, ...]
    ends: tuple[RemovedPluginWork, ...]
    warnings: tuple[Problem, ...]
