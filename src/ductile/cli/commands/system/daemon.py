"""`ductile system …`: the daemon itself. Further actions of this noun are in modules of their own."""

from __future__ import annotations

from ductile.cli.client import DAEMON_TIMEOUT, Document, connect_to_daemon, request, request_daemon
from ductile.cli.commands.queue import depth_text
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DAEMON_PROCESS, DRY_RUN, PLUGIN, Option, action, renders

#: Running jobs that `status` lists; `queue list` has all of them.
_MAX_RUNNING = 20
#: Lines of a plugin's state; `plugin state` shows all of it.
_STATE_LINES = 20
#: Seconds between two checks of a process, on a system that cannot report its exit.
_POLL_INTERVAL = 0.05


@action(
    "start",
    "run the daemon in the foreground",
    options=(DRY_RUN,),
    about="Logs go to standard output. SIGTERM and Ctrl-C stop it cleanly: running jobs get "
    "service.shutdown_grace to finish, then go back to the queue; a second one stops it at once. "
    "SIGHUP reloads. Exit status 78 if the configuration cannot be used, 1 if another daemon has the "
    "store.",
    local_reason=DAEMON_PROCESS,
)
def start(invocation: Invocation) -> CommandResult:
    if not invocation.switch("dry_run"):
        import asyncio

        from ductile.daemon import serve

        asyncio.run(serve(invocation.config, invocation.environ))
        return CommandResult(None)
    from ductile.admin.config import open_configuration
    from ductile.engine.store_lock import refuse_held
    from ductile.operations.diagnose.doctor_local import refuse_taken_addresses

    snapshot = open_configuration(invocation.config, invocation.environ).snapshot
    store = snapshot.state.name
    refuse_held(snapshot.state)
    refuse_taken_addresses(snapshot)
    names = [name for name, plugin in snapshot.plugins.items() if plugin.runnable]
    refused = [plugin.name for plugin in snapshot.refused]

    def text(console: Console) -> str:
        line = f"Would start with {console.path(store)} and {fmt.count(len(names), 'plugin')}."
        if not refused:
            return line
        hint = f"Without {', '.join(refused)}, which cannot run: `ductile plugin check`"
        return f"{line}\n{console.hint(hint)}"

    return CommandResult({"store": store, "plugins": [*names], "cannot_run": [*refused]}, text)


@action(
    "stop",
    "stop the daemon cleanly and wait until it has stopped",
    "system.stop",
    options=(Option("--no-wait", "return at once instead of waiting for the end"),),
    local_reason=DAEMON_PROCESS,
)
def stop(invocation: Invocation) -> CommandResult:
    advice = "There is nothing to stop. Another configuration's daemon: name it with --config."
    response = request_daemon(invocation, advice=advice)
    pid = response["pid"]
    if invocation.switch("dry_run"):
        return CommandResult(response, f"Would stop process {pid}.")
    if invocation.switch("no_wait"):
        return CommandResult(response, f"Process {pid} is stopping.")
    with show_waiting(invocation, f"process {pid} and the jobs it runs"):
        _wait_for_exit(pid)
    return CommandResult(response | {"stopped": True}, f"Process {pid} has stopped.")


def _wait_for_exit(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    import os
    import select
    import time

    try:
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(pid)
            try:
                # Readable when the process has ended, even if its parent has not collected it.
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)
        else:
            while True:
                os.kill(pid, 0)
                time.sleep(_POLL_INTERVAL)
    except ProcessLookupError:
        return


@action(
    "status",
    "show the daemon, the queue and every plugin",
    "system.status",
    options=(Option("--health", "ask every plugin that has a health command first; needs the daemon"),),
    about="Works without a daemon as well. Running jobs come first, the longest on top; plugins in "
    "trouble come before the others. Values in a plugin's state that look "
    "like secrets are masked, and of a long state only the beginning is shown. Health is "
    "the result of the latest check.",
)
def status(invocation: Invocation) -> CommandResult:
    if invocation.switch("health"):
        with show_waiting(invocation, "the health of the plugins"):
            request_daemon(invocation, "system.health", {}, timeout=None)
    response = request(invocation)

    def text(console: Console) -> str:
        parts = [
            f"{_daemon_text(response['daemon'], console)}\nqueue: {depth_text(response['queue'], console)}"
        ]
        if response["nodes"]:
            parts.append(_nodes_text(response["nodes"], console))
        parts += [_without_node_text(group, console) for group in response["without_node"]]
        if response["running"]:
            parts.append(_running_text(response["running"], console))
        parts.append(_plugins_text(response, console))
        refused, failed_init, unhealthy = [], [], []
        for plugin in response["plugins"]:
            name = escape_controls(plugin["name"])
            if plugin["enabled"] and plugin["refused"]:  # `plugin check` shows the whole reason
                reason = escape_controls(plugin["refused"].partition("\n")[0])
                refused.append(f"{console.style('red', f'{name} is refused:')} {reason}")
            if plugin["unhealthy"]:
                hint = console.hint(fmt.init_failure(plugin["unhealthy"]))
                failed_init.append(f"{console.style('red', f'{name} is unhealthy:')} its init failed: {hint}")
            if plugin["health_error"]:
                error = escape_controls(plugin["health_error"].partition("\n")[0])
                unhealthy.append(f"{console.style('red', f'{name} is not healthy:')} {error}")
        parts += ["\n".join(lines) for lines in (refused, failed_init, unhealthy) if lines]
        parts += [_state_text(plugin, console) for plugin in response["plugins"] if plugin["state"]]
        return "\n\n".join(parts)

    return CommandResult(response, text)


def _state_text(plugin: Document, console: Console) -> str:
    name = escape_controls(plugin["name"])
    lines = fmt.indent(fmt.to_yaml(plugin["state"])).split("\n")
    more = len(lines) - _STATE_LINES
    if more > 1:  # a single further line is shown, in place of the line about it
        lines = [*lines[:_STATE_LINES], console.hint(f"  … {more} more lines: ductile plugin state {name}")]
    return "\n".join([console.style("bold", f"State of {name}"), *lines])


@action(
    "reload",
    "apply the changed configuration",
    "system.reload",
    options=(Option("--lock", "seal the files as they are now first; `ductile apply` also shows them"),),
    usage={"drain_timeout": "--timeout DURATION", "expected": None, "command": None, "plan": None},
    about="Checked as a whole first. If anything is wrong the old configuration stays in force and "
    "the problem is reported. Running jobs keep the configuration they were started with. Queued "
    "jobs of a plugin that is removed or disabled end as dead (plugin_removed): --dry-run counts "
    "them, --drain runs them first. Ctrl-C abandons a drain, and the old configuration stays in "
    "force.",
)
def reload(invocation: Invocation) -> CommandResult:
    from contextlib import nullcontext

    refuse_timeout_without_drain(invocation)
    if invocation.switch("lock"):
        from ductile.cli.commands.config.apply import apply_here

        if invocation.remote is None:
            applied = apply_here(invocation, "reload", {}, is_running=True)
        else:
            timeout = None if invocation.switch("drain") else DAEMON_TIMEOUT
            applied = request_daemon(invocation, "config.apply", timeout=timeout)
        reloaded: Document = applied["reload"]
        return CommandResult(reloaded, lambda console: reload_text(reloaded, console))
    drains = invocation.switch("drain") and not invocation.switch("dry_run")
    with show_waiting(invocation, "plugins to finish their accepted jobs") if drains else nullcontext():
        response = request_daemon(
            invocation,
            timeout=None if drains else DAEMON_TIMEOUT,
            advice="The configuration is read when it starts: `ductile system start`.",
        )
    return CommandResult(response, lambda console: reload_text(response, console))


def can_reload_daemon(invocation: Invocation) -> bool:
    """Return whether a daemon runs that has to be reloaded after a change.

    Raises the error of the daemon if it would refuse a reload, so that nothing is written first.
    """
    connection = connect_to_daemon(invocation)
    if connection is None:
        return False
    connection.close()
    request_daemon(invocation, "system.reload", {"dry_run": True})
    return True


def refuse_timeout_without_drain(invocation: Invocation) -> None:
    """Raise UsageError for --timeout without --drain, before anything is done."""
    if invocation.optional("timeout") is not None and not invocation.switch("drain"):
        from ductile.errors import UsageError

        raise UsageError("--timeout is how long --drain waits", hint="Add --drain, or leave out --timeout.")


@renders("reset", "close the circuit breakers of a plugin", "system.reset", arguments=(PLUGIN,))
def reset(response: Document, _: Console) -> str:
    if response.get("dry_run"):
        return f"Would close {', '.join(response['would_reset']) or 'no breaker: all are closed'}."
    if response["reset"]:
        return f"Closed {fmt.count(response['reset'], 'breaker')}."
    return f"No breaker of {response['plugin']} is open."


@renders(
    "breaker",
    "show the circuit breakers of a plugin, and their history",
    "system.breaker",
    arguments=(PLUGIN,),
)
def breaker(response: Document, console: Console) -> str:
    if not response["breakers"]:
        return f"{response['plugin']} has no breaker yet: the scheduler has not run it."
    rows = []
    for name, row in response["breakers"].items():
        opened, failed = (
            fmt.relative_time(row["opened_at"], console),
            fmt.relative_time(row["last_failure_at"], console),
        )
        rows.append((name, row["state"], str(row["failures"]), opened, failed))
    parts = [console.table(("COMMAND", "STATE", "FAILURES", "OPENED", "LAST FAILURE"), rows)]
    if response["history"]:
        changes = [
            (
                fmt.local_time(row["at"], console),
                row["command"],
                f"{row['from'] or '-'} → {row['to']}",
                row["reason"],
            )
            for row in response["history"]
        ]
        parts.append(console.table(("AT", "COMMAND", "CHANGE", "REASON"), changes))
    return "\n\n".join(parts)


#: The health of a plugin, by the status of its latest health check.
_HEALTH = {"succeeded": "healthy", "failed": "unhealthy"}


def _daemon_text(daemon: Document, console: Console) -> str:
    if not daemon["running"]:
        run = f", process {pid} runs a job without one" if (pid := daemon.get("run_pid")) else ""
        return f"daemon: {console.style('yellow', 'not running')}{run}"
    word = console.style("yellow", "stopping") if daemon["stopping"] else console.style("green", "running")
    uptime = fmt.duration(daemon["uptime_seconds"] * 1000)
    return f"daemon: {word}, process {daemon['pid']}, up {uptime}, version {daemon['version']}"


def _nodes_text(nodes: list[Document], console: Console) -> str:
    """Return the table of nodes, the leader first. A configuration other than the leader's is marked."""
    leading = nodes[0]["config"]
    rows = [
        (
            node["name"],
            ("leader" if node["leader"] else "alive") if node["alive"] else "silent",
            node["host"],
            f"{node['busy']}/{node['workers']}",
            fmt.relative_time(node["started_at"], console),
            node["version"],
            node["config"].removeprefix("blake3:")[:8] + ("" if node["config"] == leading else " differs"),
        )
        for node in nodes
    ]
    return console.table(("NODE", "STATUS", "HOST", "BUSY", "SINCE", "VERSION", "CONFIG"), rows)


def _without_node_text(group: Document, console: Console) -> str:
    jobs = "1 job waits" if group["jobs"] == 1 else f"{group['jobs']} jobs wait"
    since = fmt.relative_time(group["held_since"], console)
    if group["node"] is None:
        text = f"{jobs} since {since}: no live node runs {escape_controls(group['plugin'])}"
    else:
        text = f"{jobs} since {since} for the node {escape_controls(group['node'])}, which is not running"
    return console.style("yellow", text)


def _running_text(running: list[Document], console: Console) -> str:
    """Return the table of running jobs, the longest first."""
    rows = []
    for job in running[:_MAX_RUNNING]:
        step = f" ({job['pipeline']}/{job['step']})" if job["step"] else ""
        name, attempt = f"{job['plugin']} {job['command']}{step}", f"{job['attempt']}/{job['max_attempts']}"
        time = fmt.ORPHANED_TEXT if job["orphaned"] else fmt.duration(job["running_ms"])
        rows.append(
            (
                fmt.short_id(job["job_id"], console),
                name,
                fmt.relative_time(job["started_at"], console),
                time,
                attempt,
            )
        )
    table = console.table(("RUNNING", "WHAT", "SINCE", "FOR", "ATTEMPT"), rows)
    more = len(running) - _MAX_RUNNING
    return table if more <= 0 else f"{table}\n{console.hint(f'and {more} more: `ductile queue list`')}"


def _plugins_text(response: Document, console: Console) -> str:
    """Return the table of plugins, without columns that are empty for all of them."""
    plugins, daemon_runs = response["plugins"], response["daemon"]["running"]
    if not plugins:
        return console.hint("No plugin is configured. `ductile plugin list` shows those that could be.")
    rows = []
    for plugin in plugins:
        status = "refused" if plugin["refused"] else "active"
        if not plugin["enabled"] or plugin["draining"]:
            status = "draining" if plugin["enabled"] else "disabled"
        last_run = plugin["last_run"]
        # Only the daemon starts scheduled runs.
        next_run = (
            fmt.relative_time(plugin["next_run"], console) if daemon_runs and plugin["next_run"] else ""
        )
        breakers = plugin["breakers"]
        not_closed = [f"{name} {row['state']}" for name, row in breakers.items() if row["state"] != "closed"]
        last_run_text = (
            f"{last_run['status']} {fmt.relative_time(last_run['completed_at'], console)}"
            if last_run
            else "never"
        )
        cells = {
            "PLUGIN": plugin["name"],
            "STATUS": status,
            "LAST RUN": last_run_text,
            "NEXT RUN": "paused" if plugin["paused"] else next_run,
            "HEALTH": "unhealthy"
            if plugin["unhealthy"]
            else _HEALTH.get(plugin["health"], plugin["health"] or ""),
            "BREAKER": ", ".join(not_closed) or ("closed" if breakers else ""),
        }
        rows.append(cells)
    headers = [name for name in rows[0] if any(cells[name] for cells in rows)]
    optional = [name for name in ("HEALTH",) if name in headers]
    table_rows = [[cells[name] or "-" for name in headers] for cells in rows]
    return console.table(headers, table_rows, optional=optional)


def _effect_lines(response: Document, console: Console) -> list[str]:
    """Return a line for each changed schedule with its next run, pipeline, route, webhook and token."""
    lines = []
    for row in response["schedules"]:
        name = f"{escape_controls(row['plugin'])}/{escape_controls(row['id'])}"
        before, after = row["next_run_before"], row["next_run"]
        next_run = f"next run {fmt.relative_time(after, console)}" if after else "no next run"
        if row["change"] == "changed" and before != after:
            next_run = f"{next_run} instead of {fmt.relative_time(before, console) if before else 'none'}"
        lines.append(
            f"  schedule {name} {row['change']}{'' if row['change'] == 'removed' else f': {next_run}'}"
        )
    for noun in ("pipeline", "route", "webhook", "token"):
        for change, names in response[f"{noun}s"].items():
            lines += [f"  {noun} {escape_controls(name)} {change}" for name in names]
    return lines


def reload_text(response: Document, console: Console, *, drain: str = "ductile reload --drain") -> str:
    """Return the changes of plugins and settings, then the other changes, the ended jobs and the warnings."""
    dry_run = response.get("dry_run")
    title = "Would reload" if dry_run else "Reloaded"
    words = ("added", "changed", "removed")
    if any(response[word] for word in words):
        lines = [f"{title}:"]
        lines += [f"  {word}: {', '.join(response[word])}" for word in (*words, "settings") if response[word]]
    elif response["settings"]:
        *others, last = response["settings"]
        lines = [f"{title}: {', '.join(others)}{' and ' if others else ''}{last} changed."]
    else:
        lines = [f"{title}; nothing changed."]
    lines += _effect_lines(response, console)
    for row in response["ends"]:  # queued jobs of removed plugins
        verb = "would end" if dry_run else "ended"
        jobs = f"{fmt.count(row['jobs'], 'queued job')} of {escape_controls(row['plugin'])} {verb}"
        runs = f"; needed by {fmt.count(row['runs'], 'pipeline run')} still to end" if row["runs"] else ""
        lines.append(f"  {console.style('yellow', f'{jobs} as dead (plugin_removed)')}{runs}")
    if response["ends"] and dry_run:
        lines.append(console.hint(f"  To run them first: `{drain}`"))
    if response["warnings"]:
        from ductile.cli.console.errors import problems_as_text
        from ductile.errors import Problem

        warnings = [Problem(**warning) for warning in response["warnings"]]
        title = console.style("yellow", f"{fmt.count(len(warnings), 'warning')}:")
        lines += [title, problems_as_text(warnings, console)]
    return "\n".join(lines)
