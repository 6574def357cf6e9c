"""The port of the runner: launches with their environment, the ways in which a process can end, and runners.

A fault of a plugin is a value here and no exception. From this value, `ductile.runner.interpret` decides the
outcome of the job.
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


#: Called on the event loop with each piece of output as it is read. It must not raise.
OutputCallback: TypeAlias = Callable[[OutputStream, bytes], None]
#: Streams that are passed on while the process runs. Stdout of a plugin is its response, read as a whole.
LIVE_STREAMS = frozenset({OutputStream.STDERR})


@hide_in_repr("environment", "arguments")
class Launch(Value):
    """A process to start: its program, its environment and limits, and the request that it reads."""

    #: Absolute path of the executable.
    entrypoint: str
    #: The bytes for its stdin.
    request: bytes
    #: The whole environment of the process. It may contain secrets.
    environment: Mapping[str, str]
    directory: str
    timeout: timedelta
    #: The arguments after the name of the executable. A fork server starts programs without arguments only.
    arguments: tuple[str, ...] = ()
    limits: ResourceLimits = NO_LIMITS
    warm: WarmStart | None = None
    #: Called with the output of `live_streams` while the process runs, also with output beyond the limits.
    on_output: OutputCallback | None = None
    live_streams: frozenset[OutputStream] = LIVE_STREAMS


#: Variables of the daemon that every plugin inherits: session, user and language, no credentials.
ALLOWED_VARIABLES = frozenset(
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
    """Return the environment of a plugin: allowed variables of the daemon, the plugin's own, then the job's.

    The job's variables come last: recovery finds the processes of a crashed daemon by them, so a plugin's
    configuration must not replace them. The daemon's own `DUCTILE_` variables are not passed on unless they
    are named in `passthrough`.
    """
    passed_on = {*ALLOWED_VARIABLES, *passthrough}
    inherited = {
        name: value
        for name, value in daemon.items()
        if name in passed_on or name.startswith(ALLOWED_PREFIXES)
    }
    return {**inherited, **(own or {}), **job}


def job_variables(
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

    `data_dir` is the directory in which the plugin may keep files from job to job.
    """
    variables = {
        STORE_VARIABLE: store_id,
        OWNER_VARIABLE: daemon,
        JOB_VARIABLE: job_id,
        "DUCTILE_PLUGIN": plugin,
        "DUCTILE_COMMAND": command,
        "DUCTILE_ATTEMPT": str(attempt),
    }
    if data_dir is not None:
        variables["DUCTILE_DATA_DIR"] = data_dir
    if trace_id is not None:
        variables["DUCTILE_TRACE_ID"] = trace_id
    return variables


class GracePeriods(Value):
    """The seconds that the runner waits before it kills a process."""

    #: From SIGTERM to SIGKILL.
    after_terminate: float = 5.0
    #: For other members of the group, and holders of its pipes, after the leader has exited.
    for_group_members: float = 0.5


class ExitStatus(Value):
    """The way in which a process ended. One field is set; none, if the status is unknown."""

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
    """The process was running at its deadline and was ended, even if it had printed a response."""

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
    """No process was started. `permanent` is true if a retry cannot help."""

    error: str
    permanent: bool
    #: A resource of the daemon or the machine is exhausted; the plugin is not at fault.
    resources_exhausted: bool = False


ProcessResult: TypeAlias = (
    Exited | DeadlinePassed | OutputLimitExceeded | StoppedOnRequest | ForkServerLost | CouldNotStart
)


class StartedBy(StrEnum):
    """The way in which a process was started."""

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
        """Return how the process ended, after its group has been cleared.

        May be called more than once. Cancelling the caller does not affect the process.
        """

    def stop(self, *, at_once: bool = False) -> None:
        """Send SIGTERM to the group, and SIGKILL after the grace period. `at_once`: SIGKILL now."""


class Runner(Protocol):
    """Starts processes. Closing it ends everything it has started."""

    async def start(self, launch: Launch) -> Process | CouldNotStart | ForkServerLost: ...

    async def close(self) -> None: ...
