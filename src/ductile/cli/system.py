"""`ductile system …`"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from ductile.cli.client import DAEMON_TIMEOUT, Document, request, request_daemon
from ductile.cli.console.console import printable
from ductile.cli.console.errors import problems_as_text
from ductile.cli.console.format import ORPHANED, format_count, format_ms, format_time, health_error, indent
from ductile.cli.console.progress import show_waiting
from ductile.cli.console.yaml import to_yaml
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.process_end import wait_for_exit
from ductile.cli.queue import depth_text
from ductile.errors import Problem

if TYPE_CHECKING:
    from ductile.cli.console.console import Console

#: Jobs that `status` lists as running; `queue list` has them all.
_MOST_RUNNING = 20
_NOTHING_TO_STOP = "There is nothing to stop. Another configuration's daemon: name it with --config."
_READ_AT_START = "The configuration is read when it starts: `ductile system start`."


def start(call: Invocation) -> CommandResult:
    if call.switch("dry_run"):
        return _try_start(call)
    import asyncio  # noqa: PLC0415 - the other actions do without

    from ductile.daemon import serve  # noqa: PLC0415

    asyncio.run(serve(call.config, call.environ))
    return CommandResult(data=None)


def _try_start(call: Invocation) -> CommandResult:
    from ductile.admin.config import open_configuration, state_file  # noqa: PLC0415
    from ductile.engine.ownership.store_lock import refuse_held  # noqa: PLC0415 - as above
    from ductile.operations.diagnose.doctor_machine import refuse_taken_addresses  # noqa: PLC0415

    snapshot = open_configuration(call.config, call.environ).snapshot
    store = state_file(snapshot)
    refuse_held(store)
    refuse_taken_addresses(snapshot)
    names = [name for name, plugin in snapshot.plugins.items() if plugin.runnable]
    refused = [plugin.name for plugin in snapshot.refused]
    return CommandResult(
        data={"store": str(store), "plugins": [*names], "cannot_run": [*refused], "dry_run": True},
        text=lambda screen: _try_start_text(screen.place(str(store)), names, refused, screen),
    )


def _try_start_text(store: str, names: list[str], refused: list[str], screen: Console) -> str:
    text = f"Would start with {store} and {format_count(len(names), 'plugin')}."
    if not refused:
        return text
    told = f"Without {', '.join(refused)}, which cannot run: `ductile plugin check`"
    return f"{text}\n{screen.advice(told)}"


def stop(call: Invocation) -> CommandResult:
    said = request_daemon(call, "system.stop", {"dry_run": call.switch("dry_run")}, advice=_NOTHING_TO_STOP)
    pid = said["pid"]
    if call.switch("dry_run"):
        return CommandResult(data=said, text=lambda _: f"Would stop process {pid}.")
    if call.switch("no_wait"):
        return CommandResult(data=said, text=lambda _: f"Process {pid} is stopping.")
    with show_waiting(call, f"process {pid} and the jobs it runs"):
        wait_for_exit(pid)
    return CommandResult(data=said | {"stopped": True}, text=lambda _: f"Process {pid} has stopped.")


def status(call: Invocation) -> CommandResult:
    if call.switch("health"):
        with show_waiting(call, "the health of the plugins"):
            request_daemon(call, "system.health", {}, timeout=None)
    found = request(call, "system.status", {"reveal": call.switch("reveal")})
    return CommandResult(data=found, text=lambda screen: _status_text(found, screen))


def reload(call: Invocation) -> CommandResult:
    given = {
        "dry_run": call.switch("dry_run"),
        "drain": call.switch("drain"),
        "drain_timeout": call.optional("timeout"),
    }
    waits = call.switch("drain") and not call.switch("dry_run")
    with show_waiting(call, "the queue to run dry") if waits else nullcontext():
        done = request_daemon(
            call, "system.reload", given, timeout=None if waits else DAEMON_TIMEOUT, advice=_READ_AT_START
        )
    return CommandResult(data=done, text=lambda screen: reload_text(done, screen))


def reset(call: Invocation) -> CommandResult:
    given = {"plugin": call.text("PLUGIN"), "command": call.optional("command")}
    done = request(call, "system.reset", given | {"dry_run": call.switch("dry_run")})
    if done.get("dry_run"):
        names = ", ".join(done["would_reset"]) or "no breaker: all are closed"
        return CommandResult(data=done, text=lambda _: f"Would close {names}.")
    if not done["reset"]:
        return CommandResult(data=done, text=lambda _: f"No breaker of {done['plugin']} is open.")
    return CommandResult(data=done, text=lambda _: f"Closed {format_count(done['reset'], 'breaker')}.")


def breaker(call: Invocation) -> CommandResult:
    found = request(call, "system.breaker", {"plugin": call.text("PLUGIN")})
    return CommandResult(data=found, text=lambda screen: _breaker_text(found, screen))


def _status_text(found: Document, screen: Console) -> str:
    parts = [f"{_daemon_text(found['daemon'], screen)}\nqueue: {depth_text(found['queue'], screen)}"]
    if found["running"]:
        parts.append(_running_text(found["running"], screen))
    parts.append(_plugins_text(found, screen))
    if refused := [plugin for plugin in found["plugins"] if plugin["enabled"] and plugin["refused"]]:
        parts.append("\n".join(_refusal(plugin, screen) for plugin in refused))
    if ill := [plugin for plugin in found["plugins"] if plugin["unhealthy"]]:
        parts.append("\n".join(_illness(plugin, screen) for plugin in ill))
    if failing := [plugin for plugin in found["plugins"] if plugin["health_error"]]:
        parts.append("\n".join(_failed_health(plugin, screen) for plugin in failing))
    states = [plugin for plugin in found["plugins"] if plugin["state"]]
    parts += [
        f"{screen.style('bold', plugin['name'] + ' keeps')}\n{indent(to_yaml(plugin['state']))}"
        for plugin in states
    ]
    return "\n\n".join(parts)


def _running_text(running: list[Document], screen: Console) -> str:
    """What runs now, the longest first."""
    rows = [
        (
            job["job_id"],
            _running_name(job),
            format_time(job["started_at"]),
            ORPHANED if job["orphaned"] else format_ms(job["running_ms"]),
            f"{job['attempt']}/{job['max_attempts']}",
        )
        for job in running[:_MOST_RUNNING]
    ]
    table = screen.table(("RUNNING", "WHAT", "SINCE", "FOR", "ATTEMPT"), rows)
    more = len(running) - _MOST_RUNNING
    return table if more <= 0 else f"{table}\n{screen.advice(f'and {more} more: `ductile queue list`')}"


def _running_name(job: Document) -> str:
    step = f" ({job['pipeline']}/{job['step']})" if job["step"] else ""
    return f"{job['plugin']} {job['command']}{step}"


def _plugins_text(found: Document, screen: Console) -> str:
    """Columns in which no plugin has anything to tell are left out."""
    if not found["plugins"]:
        return screen.advice("No plugin is configured. `ductile plugin list` shows those that could be.")
    columns: list[tuple[str, list[str]]] = [
        ("PLUGIN", [plugin["name"] for plugin in found["plugins"]]),
        ("STATUS", [_standing(plugin) for plugin in found["plugins"]]),
        ("LAST RUN", [_last_run(plugin["last_run"]) for plugin in found["plugins"]]),
        ("NEXT RUN", [_next_run(plugin, found["daemon"]) for plugin in found["plugins"]]),
        ("HEALTH", [_health(plugin) for plugin in found["plugins"]]),
        ("BREAKER", [_breakers(plugin["breakers"]) for plugin in found["plugins"]]),
    ]
    kept = [(name, [cell or "-" for cell in cells]) for name, cells in columns if any(cells)]
    return screen.table([name for name, _ in kept], [*zip(*(cells for _, cells in kept), strict=True)])


def _health(plugin: Document) -> str:
    return "unhealthy" if plugin["unhealthy"] else plugin["health"] or ""


def _daemon_text(daemon: Document, screen: Console) -> str:
    if not daemon["running"]:
        run = f", process {pid} runs a job without one" if (pid := daemon.get("run_pid")) else ""
        return f"daemon: {screen.style('yellow', 'not running')}{run}"
    word = screen.style("yellow", "stopping") if daemon["stopping"] else screen.style("green", "running")
    up = format_ms(daemon["uptime_seconds"] * 1000)
    return f"daemon: {word}, process {daemon['pid']}, up {up}, version {daemon['version']}"


def _standing(plugin: Document) -> str:
    if not plugin["enabled"]:
        return "disabled"
    if plugin["draining"]:
        return "draining"
    return "refused" if plugin["refused"] else "active"


def _refusal(plugin: Document, screen: Console) -> str:
    """Below the table, where there is room for it; `plugin check` tells the whole reason."""
    name = screen.style("red", f"{printable(plugin['name'])} is refused:")
    return f"{name} {printable(plugin['refused'].partition(chr(10))[0])}"


def _illness(plugin: Document, screen: Console) -> str:
    name = screen.style("red", f"{printable(plugin['name'])} is unhealthy:")
    return f"{name} its init failed: {screen.advice(health_error(plugin['unhealthy']))}"


def _failed_health(plugin: Document, screen: Console) -> str:
    name = screen.style("red", f"{printable(plugin['name'])} is not healthy:")
    return f"{name} {printable(plugin['health_error'].partition(chr(10))[0])}"


def _last_run(run: Document | None) -> str:
    return f"{format_time(run['completed_at'])} {run['command']} {run['status']}" if run else "never"


def _next_run(plugin: Document, daemon: Document) -> str:
    """Where nobody looks after schedules, none of them runs at its time."""
    if plugin["paused"]:
        return "paused"
    return format_time(plugin["next_run"]) if daemon["running"] and plugin["next_run"] else ""


def _breakers(breakers: Document) -> str:
    """Only those that are not closed: the others have nothing to tell."""
    return ", ".join(
        f"{name} {row['state']}" for name, row in breakers.items() if row["state"] != "closed"
    ) or ("closed" if breakers else "")


def reload_text(done: Document, screen: Console) -> str:
    lines = [*_reload_lines(done), *_ends_lines(done, screen)]
    if done["warnings"]:
        found = [Problem(**warning) for warning in done["warnings"]]
        lines += [
            screen.style("yellow", f"{format_count(len(found), 'warning')}:"),
            problems_as_text(found, screen),
        ]
    return "\n".join(lines)


def _reload_lines(done: Document) -> list[str]:
    """One line where no plugin changed; a line for each kind of change where one did."""
    title = "Would reload" if done.get("dry_run") else "Reloaded"
    words = ("added", "changed", "removed")
    if any(done[word] for word in words):
        changes = [f"  {word}: {', '.join(done[word])}" for word in (*words, "settings") if done[word]]
        return [f"{title}:", *changes]
    if not done["settings"]:
        return [f"{title}; nothing changed."]
    *others, last = done["settings"]
    named = f"{', '.join(others)} and {last}" if others else last
    return [f"{title}: {named} changed."]


def _ends_lines(done: Document, screen: Console) -> list[str]:
    """What became of the queue of plugins that are gone."""
    dry_run = done.get("dry_run")
    verb = "would end" if dry_run else "ended"
    lines = []
    for row in done["ends"]:
        whose = f"{format_count(row['jobs'], 'queued job')} of {printable(row['plugin'])}"
        jobs = f"{whose} {verb} as dead (plugin_removed)"
        runs = f"; needed by {format_count(row['runs'], 'pipeline run')} still to end" if row["runs"] else ""
        lines.append(f"  {screen.style('yellow', jobs)}{runs}")
    if lines and dry_run:
        lines.append(screen.advice("  To run them first: `ductile reload --drain`"))
    return lines


def _breaker_text(found: Document, screen: Console) -> str:
    if not found["breakers"]:
        return f"{found['plugin']} has no breaker yet: the scheduler has not run it."
    rows = [
        (
            name,
            row["state"],
            str(row["failures"]),
            format_time(row["opened_at"]),
            format_time(row["last_failure_at"]),
        )
        for name, row in found["breakers"].items()
    ]
    parts = [screen.table(("COMMAND", "STATE", "FAILURES", "OPENED", "LAST FAILURE"), rows)]
    if found["history"]:
        changes = [
            (format_time(row["at"]), row["command"], f"{row['from'] or '-'} → {row['to']}", row["reason"])
            for row in found["history"]
        ]
        parts.append(screen.table(("AT", "COMMAND", "CHANGE", "REASON"), changes))
    return "\n\n".join(parts)
