"""The dependencies of the engine, and the status it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Protocol

from ductile.config.snapshot import Snapshot
from ductile.engine.clock import Clock
from ductile.engine.state_webhooks.client import HttpWebhookClient, WebhookClient
from ductile.runner.port import Runner
from ductile.store.port import Store
from ductile.struct import Value, field
from ductile.telemetry.signals import SignalBus


class NetworkListeners(Protocol):
    """Opens and closes the network listeners when the configuration changes."""

    def switched_to(self, snapshot: Snapshot) -> AbstractAsyncContextManager[None]:
        """Return a context in which the caller makes the snapshot the active one.

        Entering binds the addresses of new listeners and raises if one cannot be bound. Leaving starts them
        and closes those that it does not have; leaving with an error releases the addresses.
        """
        ...

    async def check(self, snapshot: Snapshot) -> None:
        """Raise the error that entering `switched_to` would raise."""
        ...


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
    listeners: NetworkListeners
    #: Like `load`, but does not verify the seal, and takes the contents of some files from its argument (None
    #: if there is no such file). Used only to show the effects of sealing the files and of a reload.
    load_unsealed: Callable[[Mapping[Path, bytes | None]], Snapshot] | None = None
    webhook_client: WebhookClient = field(default_factory=HttpWebhookClient)
    #: Takes the store's lock file again if it was removed; returns whether it was.
    renew_lock: Callable[[], bool] = lambda: False


class EngineStatus(Value):
    pid: int
    version: str
    uptime_seconds: float
    #: The fingerprint of the active configuration.
    config: str
    #: Whether recovery has ended.
    ready: bool
    stopping: bool
    #: Callers that wait for a job to end.
    waiting_callers: int
