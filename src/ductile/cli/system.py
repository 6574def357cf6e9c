"""`ductile system …`"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import PATIENCE, Said, ask, ask_daemon
from ductile.cli.failures import problems_as_text
from ductile.cli.process_end import wait_for_end
from ductile.cli.progress import waiting_for
from ductile.cli.queue import depth_text
from ductile.cli.screen import printable
from ductile.cli.wording import NOBODY_RUNS, count, illness_of, indented, moment, span
from ductile.cli.yaml_text import to_yaml
from ductile.errors import Problem

if TYPE_CHECKING:
    from ductile.cli.screen import Screen

#: Jobs that `status` lists as running; `queue list` has them all.
_MOST_RUNNING = 20
_NOTHING_TO_STOP = "There is nothing to stop. Another configuration's daemon: name it with --config."
_READ_AT_START = "The configuration is read when it starts: `ductile system start`."


def start(call: Call) -> Answer:
    if call.switch("dry_run"):
        return _try_start(call)
    import asyncio  # noqa: PLC0415 - the other actions do without

    from ductile.app import serve  # noqa: PLC0415

    asyncio.run(serve(call.config, call.environ))
    return Answer(data=None)


def _try_start(call: Call) -> Answer:
    from ductile.engine.lock import refuse_held  # noqa: PLC0415 - as above
    from ductile.operations.configuration import open_configuration, state_file  # noqa: PLC0415
    from ductile.operations.doctor_machine import refuse_taken_addresses  # noqa: PLC0415

    snapshot = open_configuration(call.config, call.environ).snapshot
    store = state_file(snapshot)
    refuse_held(store)
    refuse_taken_addresses(snapshot)
    names = [name for name, plugin in snapshot.plugins.items() if plugin.runnable]
    refused = [plugin.name for plugin in snapshot.refused]
    return Answer(
        data={"store": str(store), "plugins": [*names], "cannot_run": [*refused], "dry_run": True},
        text=lambda screen: _try_start_text(screen.place(str(store)), names, refused, screen),
    )


def _try_start_text(store: str, names: list[str], refused: list[str], screen: Screen) -> str:
    text = f"Would start with {store} and {count(len(names), 'plugin')}."
    if not refused:
        return text
    told = f"Without {', '.join(refused)}, which cannot run: `ductile plugin check`"
    return f"{text}\n{screen.advice(told)}"


def stop(call: Call) -> Answer:
    said = ask_daemon(call, "system.stop", {"dry_run": call.switch("dry_run")}, advice=_NOTHING_TO_STOP)
    pid = said["pid"]
    if call.switch("dry_run"):
        return Answer(data=said, text=lambda _: f"Would stop process {pid}.")
    if call.switch("no_wait"):
        return Answer(data=said, text=lambda _: f"Process {pid} is stopping.")
    with waiting_for(call, f"process {pid} and the jobs it runs"):
        wait_for_end(pid)
    return Answer(data=said | {"stopped": True}, text=lambda _: f"Process {pid} has stopped.")


def status(call: Call) -> Answer:
    if call.switch("health"):
        with waiting_for(call, "the health of the plugins"):
            ask_daemon(call, "system.health", {}, timeout=None)
    found = ask(call, "system.status", {"reveal": call.switch("reveal")})
    return Answer(data=found, text=lambda screen: _status_text(found, screen))


def reload(call: Call) -> Answer:
    given = {
        "dry_run": call.switch("dry_run"),
        "drain": call.switch("drain"),
        "drain_timeout": call.optional("timeout"),
    }
    waits = call.switch("drain") and not call.switch("dry_run")
    with waiting_for(call, "the queue to run dry") if waits else nullcontext():
        done = ask_daemon(
            call, "system.reload", given, timeout=None if waits else PATIENCE, advice=_READ_AT_START
        )
    return Answer(data=done, text=lambda screen: reload_text(done, screen))


def reset(call: Call) -> Answer:
    given = {"plugin": call.text("PLUGIN"), "command": call.optional("command")}
    done = ask(call, "system.reset", given | {"dry_run": call.switch("dry_run")})
    if done.get("dry_run"):
        names = ", ".join(done["would_reset"]) or "no breaker: all are closed"
        return Answer(data=done, text=lambda _: f"Would close {names}.")
    if not done["reset"]:
        return Answer(data=done, text=lambda _: f"No breaker of {done['plugin']} is open.")
    return Answer(data=done, text=lambda _: f"Closed {count(done['reset'], 'breaker')}.")


def breaker(call: Call) -> Answer:
    found = ask(call, "system.breaker", {"plugin": call.text("PLUGIN")})
    return Answer(data=found, text=lambda screen: _breaker_text(found, screen))


def _status_text(found: Said, screen: Screen) -> str:
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
        f"{screen.style('bold', plugin['name'] + ' keeps')}\n{indented(to_yaml(plugin['state']))}"
        for plugin in states
    ]
    return "\n\n".join(parts)


def _running_text(running: list[Said], screen: Screen) -> str:
    """What runs now, the longest first."""
    rows = [
        (
            job["job_id"],
            _running_name(job),
            moment(job["started_at"]),
            NOBODY_RUNS if job["orphaned"] else span(job["running_ms"]),
            f"{job['attempt']}/{job['max_attempts']}",
        )
        for job in running[:_MOST_RUNNING]
    ]
    table = screen.table(("RUNNING", "WHAT", "SINCE", "FOR", "ATTEMPT"), rows)
    more = len(running) - _MOST_RUNNING
    return table if more <= 0 else f"{table}\n{screen.advice(f'and {more} more: `ductile queue list`')}"


def _running_name(job: Said) -> str:
    step = f" ({job['pipeline']}/{job['step']})" if job["step"] else ""
    return f"{job['plugin']} {job['command']}{step}"


def _plugins_text(found: Said, screen: Screen) -> str:
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


def _health(plugin: Said) -> str:
    return "unhealthy" if plugin["unhealthy"] else plugin["health"] or ""


def _daemon_text(daemon: Said, screen: Screen) -> str:
    if not daemon["running"]:
        run = f", process {pid} runs a job without one" if (pid := daemon.get("run_pid")) else ""
        return f"daemon: {screen.style('yellow', 'not running')}{run}"
    word = screen.style("yellow", "stopping") if daemon["stopping"] else screen.style("green", "running")
    up = span(daemon["uptime_seconds"] * 1000)
    return f"daemon: {word}, process {daemon['pid']}, up {up}, version {daemon['version']}"


def _standing(plugin: Said) -> str:
    if not plugin["enabled"]:
        return "disabled"
    if plugin["draining"]:
        return "draining"
    return "refused" if plugin["refused"] else "active"


def _refusal(plugin: Said, screen: Screen) -> str:
    """Below the table, where there is room for it; `plugin check` tells the whole reason."""
    name = screen.style("red", f"{printable(plugin['name'])} is refused:")
    return f"{name} {printable(plugin['refused'].partition(chr(10))[0])}"


def _illness(plugin: Said, screen: Screen) -> str:
    name = screen.style("red", f"{printable(plugin['name'])} is unhealthy:")
    return f"{name} its init failed: {screen.advice(illness_of(plugin['unhealthy']))}"


def _failed_health(plugin: Said, screen: Screen) -> str:
    name = screen.style("red", f"{printable(plugin['name'])} is not healthy:")
    return f"{name} {printable(plugin['health_error'].partition(chr(10))[0])}"


def _last_run(run: Said | None) -> str:
    return f"{moment(run['completed_at'])} {run['command']} {run['status']}" if run else "never"


def _next_run(plugin: Said, daemon: Said) -> str:
    """Where nobody looks after schedules, none of them runs at its time."""
    if plugin["paused"]:
        return "paused"
    return moment(plugin["next_run"]) if daemon["running"] and plugin["next_run"] else ""


def _breakers(breakers: Said) -> str:
    """Only those that are not closed: the others have nothing to tell."""
    return ", ".join(
        f"{name} {row['state']}" for name, row in breakers.items() if row["state"] != "closed"
    ) or ("closed" if breakers else "")


def reload_text(done: Said, screen: Screen) -> str:
    lines = [*_reload_lines(done), *_ends_lines(done, screen)]
    if done["warnings"]:
        found = [Problem(**warning) for warning in done["warnings"]]
        lines += [screen.style("yellow", f"{count(len(found), 'warning')}:"), problems_as_text(found, screen)]
    return "\n".join(lines)


def _reload_lines(done: Said) -> list[str]:
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


def _ends_lines(done: Said, screen: Screen) -> list[str]:
    """What became of the queue of plugins that are gone."""
    dry_run = done.get("dry_run")
    verb = "would end" if dry_run else "ended"
    lines = []
    for row in done["ends"]:
        whose = f"{count(row['jobs'], 'queued job')} of {printable(row['plugin'])}"
        jobs = f"{whose} {verb} as dead (plugin_removed)"
        runs = f"; needed by {count(row['runs'], 'pipeline run')} still to end" if row["runs"] else ""
        lines.append(f"  {screen.style('yellow', jobs)}{runs}")
    if lines and dry_run:
        lines.append(screen.advice("  To run them first: `ductile reload --drain`"))
    return lines


def _breaker_text(found: Said, screen: Screen) -> str:
    if not found["breakers"]:
        return f"{found['plugin']} has no breaker yet: the scheduler has not run it."
    rows = [
        (name, row["state"], str(row["failures"]), moment(row["opened_at"]), moment(row["last_failure_at"]))
        for name, row in found["breakers"].items()
    ]
    parts = [screen.table(("COMMAND", "STATE", "FAILURES", "OPENED", "LAST FAILURE"), rows)]
    if found["history"]:
        changes = [
            (moment(row["at"]), row["command"], f"{row['from'] or '-'} → {row['to']}", row["reason"])
            for row in found["history"]
        ]
        parts.append(screen.table(("AT", "COMMAND", "CHANGE", "REASON"), changes))
    return "\n\n".join(parts)
