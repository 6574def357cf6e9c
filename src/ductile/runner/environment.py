"""The environment of a plugin's process: an allow-list of the daemon's, and what is configured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    trace_id: str | None = None,
) -> dict[str, str]:
    """Return the variables that identify the job of a process and the daemon that runs it."""
    described = {
        STORE_VARIABLE: store_id,
        OWNER_VARIABLE: daemon,
        JOB_VARIABLE: job_id,
        "DUCTILE_PLUGIN": plugin,
        "DUCTILE_COMMAND": command,
        "DUCTILE_ATTEMPT": str(attempt),
    }
    if trace_id is not None:
        described["DUCTILE_TRACE_ID"] = trace_id
    return described
