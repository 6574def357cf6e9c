"""The port: what can be run, how a process can end, and what a runner is.

What a plugin does wrong is a value here. The endings say what *happened*; what it means for the job
is decided by `ductile.runner.interpret`, which is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, TypeAlias

from ductile.struct import Value, hide_in_repr

MAX_STDOUT = 10 * 1024 * 1024
MAX_STDERR = 64 * 1024


class ResourceLimits(Value):
    """Bounds that the kernel puts on each process of a plugin. None leaves the daemon's own."""

    memory: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None
    processes: int | None = None


NO_LIMITS = ResourceLimits()


class WarmStart(Value):
    """The plugin may be forked from a prepared interpreter that has imported these modules."""

    preload: tuple[str, ...] = ()


@hide_in_repr("environment")
class Launch(Value):
    """One request for one process."""

    #: Absolute path of the executable. It gets no arguments.
    entrypoint: str
    request: bytes
    #: The whole environment of the process; may hold secrets, so it is not shown.
    environment: Mapping[str, str]
    directory: str
    timeout: timedelta
    limits: ResourceLimits = NO_LIMITS
    warm: WarmStart | None = None


class GracePeriods(Value):
    """How long the runner waits, in seconds, before it uses force."""

    #: From SIGTERM to SIGKILL.
    after_terminate: float = 5.0
    #: For what is left of the group, and holds a pipe open, after the leader has exited.
    for_leftovers: float = 0.5


class ExitStatus(Value):
    """Exactly one of the two is set, unless the status was lost."""

    exit_code: int | None = None
    signal: int | None = None


UNKNOWN_STATUS = ExitStatus()


@hide_in_repr("stdout", "stderr")
class ProcessOutput(Value):
    """What a process left behind."""

    status: ExitStatus
    stdout: bytes
    stderr: bytes
    #: More was printed than is kept.
    stdout_cut: bool = False
    stderr_cut: bool = False
    #: Other processes held its pipes after it had exited, and were ended.
    leftovers: bool = False
    duration: timedelta = timedelta(0)


class Exited(Value):
    """It ended by itself."""

    remains: ProcessOutput


class DeadlinePassed(Value):
    """It was running at its deadline and was ended, whatever it had printed."""

    remains: ProcessOutput
    timeout: timedelta


class OutputLimitExceeded(Value):
    """It went over the cap on stdout and was ended."""

    remains: ProcessOutput


class StoppedOnRequest(Value):
    """Somebody called `stop`: a cancel or a shutdown."""

    remains: ProcessOutput


class RunnerLost(Value):
    """What had started it was lost, and with it the exit status."""

    error: str
    remains: ProcessOutput | None = None


class CouldNotStart(Value):
    """There never was a process. `permanent` when trying again cannot help."""

    error: str
    permanent: bool
    #: The daemon or the machine lacks something, and nothing is wrong with the plugin.
    shortage: bool = False


Ending: TypeAlias = (
    Exited | DeadlinePassed | OutputLimitExceeded | StoppedOnRequest | RunnerLost | CouldNotStart
)


class StartedBy(StrEnum):
    """How a process came to be."""

    SPAWN = "spawn"
    WARM = "warm"


class Process(Protocol):
    """A plugin at work."""

    @property
    def pid(self) -> int: ...

    @property
    def started_by(self) -> StartedBy: ...

    @property
    def age(self) -> float:
        """Seconds since it was given its request. It may have ended meanwhile."""

    async def wait(self) -> Ending:
        """How it ended. When this returns its group has been cleared. May be called more than once,
        and cancelling the caller does not touch the process.
        """

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the group to end (SIGTERM), and make it end if it does not. `at_once`: SIGKILL now."""


class Runner(Protocol):
    """Starts processes. Everything it started is ended when it is closed."""

    async def start(self, run: Launch) -> Process | CouldNotStart | RunnerLost: ...

    async def close(self) -> None: ...
