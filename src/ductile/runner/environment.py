"""The environment of a plugin's process: an allow-list, and never more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Where the session, the user and the language are told; no credentials.
ALLOWED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "SSH_AUTH_SOCK",
    }
)
ALLOWED_PREFIXES = ("LC_", "XDG_")
#: Names under this prefix say which job it is, and are the core's alone.
OURS = "DUCTILE_"


def plugin_environment(
    daemon: Mapping[str, str],
    *,
    passthrough: Iterable[str] = (),
    own: Mapping[str, str] | None = None,
    job: Mapping[str, str],
) -> dict[str, str]:
    """What the process gets: allowed variables of the daemon, then the plugin's own, then the job's.

    The job's come last: recovery finds the processes of a crashed daemon by them, so a plugin's
    configuration must not be able to replace them. The daemon's own `DUCTILE_` variables stay behind
    unless they are passed through by name.
    """
    named = set(passthrough)
    inherited = {name: value for name, value in daemon.items() if _allowed(name) or name in named}
    return {**inherited, **(own or {}), **job}


def describe_job(
    *,
    store_id: str,
    daemon: str,
    job_id: str,
    plugin: str,
    command: str,
    attempt: int,
    trace_id: str | None = None,
) -> dict[str, str]:
    """The variables that tell a process, and whoever finds it, which job it is and which process runs it."""
    described = {
        f"{OURS}STORE_ID": store_id,
        f"{OURS}DAEMON": daemon,
        f"{OURS}JOB_ID": job_id,
        f"{OURS}PLUGIN": plugin,
        f"{OURS}COMMAND": command,
        f"{OURS}ATTEMPT": str(attempt),
    }
    if trace_id is not None:
        described[f"{OURS}TRACE_ID"] = trace_id
    return described


def _allowed(name: str) -> bool:
    return name in ALLOWED or name.startswith(ALLOWED_PREFIXES)
