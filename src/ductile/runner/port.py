"""The port of the runner: what is launched, in which environment, how it can end, and what a runner does.

What a plugin does wrong is a value here. The endings say what happened; `ductile.runner.interpret` decides
what that means for the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, TypeAlias

from ductile.struct import Value, hide_in_repr

MAX_STDOUT = 10 * 1024 * 1024
MAX_STDERR = 64 * 1024


class ResourceLimits(Value):
    """Limits that the kernel enforces on each process of a plugin. None leaves the daemon's own."""

    memory: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None
    processes: int | None = None


NO_LIMITS = ResourceLimits()


class WarmStart(Value):
    """The plugin may be forked from an interpreter that has imported these modules."""

    preload: tuple[str, ...] = ()


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


#: Takes a piece of output as it is read. It is called on the event loop and must not raise.
OutputCallback: TypeAlias = Callable[[OutputStream, bytes], None]
#: The stdout of a plugin is its response, which is read as a whole.
LIVE_STREAMS = frozenset({OutputStream.STDERR})


@hide_in_repr("environment", "arguments")
class Launch(Value):
    """A request for one process."""

    #: Absolute path of the executable.
    entrypoint: str
    request: bytes
    #: The whole environment of the process. It may contain secrets.
    environment: Mapping[str, str]
    directory: str
    timeout: timedelta
    #: What the executable gets after its own name. A fork server starts programs without arguments only.
    arguments: tuple[str, ...] = ()
    limits: ResourceLimits = NO_LIMITS
    warm: WarmStart | None = None
    #: Gets the output of `live_streams` while the process runs, also what lies beyond the limits.
    on_output: OutputCallback | None = None
    live_streams: frozenset[OutputStream] = LIVE_STREAMS


#: Variables about session, user and language; no credentials.
ALLOWED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSH_AUTH_SOCK"}
)
ALLOWED_PREFIXES = ("LC_", "XDG_")
#: Variables by which recovery finds the processes of a crashed daemon.
STORE_VARIABLE = "DUCTILE_STORE_ID"
OWNER_VARIABLE = "DUCTILE_DAEMON"
JOB_VARIABLE = "DUCTILE_JOB_ID"


def plugin_environment(
    daemon: Mapping[str, str],
    *,
    passthrough: Iterable[str] = (),
    own: Mapping[str, str] | None = None,
    job: Mapping[str, str],
) -> dict[str, str]:
    """Return allowed variables of the daemon, then the plugin's own, then those of the job.

    Those of the job come last: recovery finds the processes of a crashed daemon by them, so a plugin's
    configuration must not replace them. The daemon's own `DUCTILE_` variables are not passed on unless they
    are named in `passthrough`.
    """
    named = set(passthrough)
    inherited = {
        name: value
        for name, value in daemon.items()
        if name in ALLOWED or name.startswith(ALLOWED_PREFIXES) or name in named
    }
    return {**inherited, **(own or {}), **job}


def describe_job(
    *,
    store_id: str,
    daemon: str,
    job_id: str,
    plugin: str,
    command: str,
    attempt: int,
    data_dir: str | None = None,
    trace_id: str | None = None,
) -> dict[str, str]:
    """Return the variables that identify the job of a process and the daemon that runs it.

    `data_dir` is where the plugin may keep files from job to job.
    """
    described = {
        STORE_VARIABLE: store_id,
        OWNER_VARIABLE: daemon,
        JOB_VARIABLE: job_id,
        "DUCTILE_PLUGIN": plugin,
        "DUCTILE_COMMAND": command,
        "DUCTILE_ATTEMPT": str(attempt),
    }
    if data_dir is not None:
        described["DUCTILE_DATA_DIR"] = data_dir
    if trace_id is not None:
        described["DUCTILE_TRACE_ID"] = trace_id
    return described


class GracePeriods(Value):
    """How long the runner waits before it kills, in seconds."""

    #: From SIGTERM to SIGKILL.
    after_terminate: float = 5.0
    #: For other members of the group, and holders of its pipes, after the leader has exited.
    for_group_members: float = 0.5


class ExitStatus(Value):
    """Exactly one of the two is set, unless the status is unknown."""

    exit_code: int | None = None
    signal: int | None = None


UNKNOWN_STATUS = ExitStatus()


@hide_in_repr("stdout", "stderr")
class ProcessOutput(Value):
    """The exit status and output of a process that has ended."""

    status: ExitStatus
    stdout: bytes
    stderr: bytes
    #: More was printed than is kept. Too much on stdout ends the process (`OutputLimitExceeded`).
    stderr_truncated: bool = False
    #: Other members of its group, or holders of its pipes, outlived it and were killed.
    leftovers: bool = False
    duration: timedelta = timedelta(0)


class Exited(Value):
    """The process ended by itself."""

    output: ProcessOutput


class DeadlinePassed(Value):
    """The process was running at its deadline and was ended, whatever it had printed."""

    output: ProcessOutput
    timeout: timedelta


class OutputLimitExceeded(Value):
    """The process printed more than `MAX_STDOUT` and was ended."""

    output: ProcessOutput


class StoppedOnRequest(Value):
    """`Process.stop` was called: a cancel or a shutdown."""

    output: ProcessOutput


class ForkServerLost(Value):
    """The fork server of the process was lost, and with it the exit status."""

    error: str
    output: ProcessOutput | None = None


class CouldNotStart(Value):
    """There was no process. `permanent` if a retry cannot help."""

    error: str
    permanent: bool
    #: A resource of the daemon or the machine is exhausted; the plugin is not at fault.
    resources_exhausted: bool = False


ProcessResult: TypeAlias = (
    Exited | DeadlinePassed | OutputLimitExceeded | StoppedOnRequest | ForkServerLost | CouldNotStart
)


class StartedBy(StrEnum):
    """How a process was started."""

    SPAWN = "spawn"
    WARM = "warm"


class Process(Protocol):
    """A running plugin process."""

    @property
    def pid(self) -> int: ...

    @property
    def started_by(self) -> StartedBy: ...

    @property
    def age(self) -> float:
        """Seconds since the process was started. It may have ended meanwhile."""

    async def wait(self) -> ProcessResult:
        """Return how the process ended, after its group has been cleared. May be called more than once;
        cancelling the caller does not affect the process.
        """

    def stop(self, *, at_once: bool = False) -> None:
        """Send SIGTERM to the group, and SIGKILL after the grace period. `at_once`: SIGKILL now."""


class Runner(Protocol):
    """Starts processes. Closing it ends everything it has started."""

    async def start(self, launch: Launch) -> Process | CouldNotStart | ForkServerLost: ...

    async def close(self) -> None: ...
