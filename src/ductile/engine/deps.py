"""What the engine is given, and the status it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from ductile.config.snapshot import Snapshot
from ductile.engine.clock import Clock
from ductile.engine.reload.plan import ListenerSwitch, NoListeners
from ductile.engine.webhook_sender import HttpWebhookClient, WebhookClient
from ductile.runner.port import Runner
from ductile.store.port import Store
from ductile.struct import Value, field
from ductile.telemetry.signals import SignalBus


class EngineDeps(Value):
    """Everything that the engine does not create itself."""

    store: Store
    runner: Runner
    clock: Clock
    rng: Random
    signals: SignalBus
    environ: Mapping[str, str]
    #: Reads and compiles the configuration on disk. Blocks; raises `ConfigError`.
    load: Callable[[], Snapshot]
    webhook_client: WebhookClient = field(default_factory=HttpWebhookClient)
    listeners: ListenerSwitch = NoListeners()
    #: Takes the store's lock file again if it was removed; returns whether it was.
    renew_lock: Callable[[], bool] = lambda: False


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
