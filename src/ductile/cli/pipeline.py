"""`ductile pipeline …`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ductile.cli.client import (
    DAEMON_TIMEOUT,
    RUN_IT_HERE,
    Document,
    connect_to_daemon,
    drop_unset,
    request,
    request_daemon,
)
from ductile.cli.console.console import console_for, printable
from ductile.cli.console.format import (
    format_count,
    format_fields,
    format_time,
    informative_error,
    styled_status,
)
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.json_argument import json_object
from ductile.cli.reload_hint import find_pipeline, hint_reload
from ductile.cli.run import chosen_states, hint_on_interrupt, outcome, reject_zero_timeout, run_here, wait_for
from ductile.cli.run_steps import steps_table
from ductile.control.client import exchange
from ductile.errors import Exit, UsageError, file_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from ductile.admin.pipeline_check import PipelineCheck
    from ductile.cli.console.console import Console
    from ductile.config.snapshot import Snapshot
    from ductile.core.json import JsonObject

#: Asked again and again, so that a daemon that died is noticed; what is new is answered at once.
_FOLLOW_FOR = "60s"
_MARKS = {"runs": "runs", "bypassed": "bypassed", "not_made": "cannot be made", "later": "later"}


def list_all(call: Invocation) -> CommandResult:
    found = request(call, "pipeline.list", {})
    return CommandResult(data=found, text=lambda screen: _list_text(found, screen))


def show(call: Invocation) -> CommandResult:
    from ductile.operations.runs.pipelines import describe_pipeline  # noqa: PLC0415 - not where a daemon answers

    shown = describe_pipeline(_snapshot(call), call.text("NAME"))
    return CommandResult(data=shown, text=lambda screen: _show_text(shown, screen))


def graph(call: Invocation) -> CommandResult:
    from ductile.operations.runs.pipelines import Drawing, draw_pipeline  # noqa: PLC0415 - as above

    chosen = call.optional("format") or Drawing.MERMAID
    if chosen not in tuple(Drawing):
        raise UsageError(f"there is no format {chosen!r}", hint=f"one of {', '.join(Drawing)}")
    name, output = call.text("NAME"), call.optional("output")
    drawn = draw_pipeline(_snapshot(call), name, Drawing(chosen))
    data: JsonObject = {"pipeline": name, "format": chosen, "output": output}
    if output is None:
        return CommandResult(data=data | {"drawing": drawn}, text=lambda _: drawn.rstrip("\n"))
    try:
        Path(output).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise file_error(f"{output} cannot be written", error) from None
    return CommandResult(data=data, text=lambda _: f"Wrote {output}.")


def run(call: Invocation) -> CommandResult:
    given: JsonObject = {
        "pipeline": call.text("NAME"),
        "payload": json_object(call.optional("payload"), "payload"),
        "dedupe_key": call.optional("dedupe_key"),
        "state_webhook_url": call.optional("state_webhook_url"),
        "state_webhook_events": chosen_states(call),
    }
    with hint_reload(call, lambda disk: find_pipeline(disk, call.text("NAME"))):
        return _run(call, given)


def _run(call: Invocation, given: JsonObject) -> CommandResult:
    if call.switch("dry_run"):
        tried = request(call, "pipeline.run", given | {"dry_run": True})
        return CommandResult(data=tried, text=lambda _: f"Would run the pipeline {tried['pipeline']}.")
    reject_zero_timeout(call)
    if call.switch("no_wait"):
        submitted = request_daemon(call, "pipeline.run", given, advice=RUN_IT_HERE)
        return CommandResult(data=submitted, text=lambda _: submitted["job_id"])
    connection = connect_to_daemon(call)
    if connection is None:
        return outcome(run_here(call, "pipeline.run", given, _teller(call)))
    submitted = exchange(connection, "pipeline.run", drop_unset(given), timeout=DAEMON_TIMEOUT)
    # Whoever limits the waiting is not kept by the steps: they are told while there is no limit.
    if _is_watched(call) and call.optional("timeout") is None:
        run_id = str(submitted["job_id"])
        with hint_on_interrupt(run_id):
            _tell_steps(call, run_id)
    return outcome(wait_for(call, submitted))


def check(call: Invocation) -> CommandResult:
    from ductile.admin.pipeline_check import check_pipelines  # noqa: PLC0415 - as above

    name, payload = call.optional("NAME"), json_object(call.optional("payload"), "payload")
    if payload is not None and name is None:
        raise UsageError("--payload is tried on one pipeline", hint="name it: ductile pipeline check NAME")
    snapshot = _snapshot(call)
    checked = check_pipelines(snapshot, name)
    trial = None if payload is None or name is None else _try(snapshot, name, payload)
    faulty = any(each.faults for each in checked)
    data: JsonObject = {"valid": not faulty, "pipelines": [_checked_as_json(each) for each in checked]}
    if trial is not None:
        data["trial"] = trial
    return CommandResult(
        data=data,
        text=lambda screen: _check_text(checked, trial, screen),
        exit_status=Exit.CONFIG if faulty else Exit.OK,
    )


def explain(call: Invocation) -> CommandResult:
    found = request(call, "pipeline.explain", {"job_id": call.text("RUN")})
    return CommandResult(data=found, text=lambda screen: _explain_text(found, screen))


def _snapshot(call: Invocation) -> Snapshot:
    from ductile.admin.config import open_configuration  # noqa: PLC0415 - as above

    return open_configuration(call.config, call.environ).snapshot


def _try(snapshot: Snapshot, name: str, payload: JsonObject) -> Document:
    from datetime import UTC, datetime  # noqa: PLC0415 - as above
    from random import SystemRandom  # noqa: PLC0415

    from ductile.admin.pipeline_check import dry_run_payload  # noqa: PLC0415

    return dry_run_payload(snapshot, name, payload, now=datetime.now(UTC), rng=SystemRandom())


# -------------------------------------------------------------------------------- steps as they end


def _is_watched(call: Invocation) -> bool:
    return not call.json and call.out.isatty()


def _teller(call: Invocation) -> Callable[[JsonObject], None]:
    """What is told of steps that are run in this process."""
    watched = _is_watched(call)

    def tell(job: Document) -> None:
        if watched and job["step"] is not None:
            _tell_step(call, job)

    return tell


def _tell_steps(call: Invocation, run_id: str) -> None:
    """Each step of the run on a line of its own, until the run is over or the daemon stops."""
    known: list[str] = []
    while True:
        given: JsonObject = {"job_id": run_id, "known": len(known), "timeout": _FOLLOW_FOR}
        news = request_daemon(call, "pipeline.follow", given, timeout=None)
        for job in news["ended"]:
            if job["job_id"] not in known:
                known.append(job["job_id"])
                _tell_step(call, job)
        if news["over"] or news["stopping"]:
            return


def _tell_step(call: Invocation, job: Document) -> None:
    screen = console_for(call.out, call.environ)
    what = f"{job['step'] or '-'}  {job['plugin']} {job['command']}"
    line = f"{screen.style('dim', '·')} {printable(what)}  {styled_status(job['status'], screen)}"
    if error := informative_error(job):
        line += f"  {printable(error)}".replace("\n", " ")
    print(line, file=call.out, flush=True)


# ---------------------------------------------------------------------------------------------- text


def _list_text(found: Document, screen: Console) -> str:
    if not found["pipelines"]:
        return "There are no pipelines. They are configured under `pipelines`."
    rows = [
        (
            row["name"],
            row["trigger"] or "-",
            row["execution_mode"],
            str(row["steps"]),
            _last_run(row["last_run"]),
        )
        for row in found["pipelines"]
    ]
    return screen.table(("NAME", "STARTS", "MODE", "STEPS", "LAST RUN"), rows)


def _last_run(run: Document | None) -> str:
    return "-" if run is None else f"{format_time(run['created_at'])} {run['status']} {run['job_id']}"


def _show_text(shown: Document, screen: Console) -> str:
    waits = shown["execution_mode"] == "synchronous"
    about = format_fields(
        [
            ("starts", shown["trigger"] or "by name, or called by another pipeline"),
            ("if", shown["if"]),
            ("mode", shown["execution_mode"]),
            ("timeout", shown["timeout"] if waits else None),
            ("on timeout", shown["on_timeout"] if waits else None),
            ("hooks", "notified when a run ends" if shown["notify_on_complete"] else None),
        ]
    )
    title = screen.style("bold", printable(shown["name"]))
    return "\n".join([title, *about, "", *_tree_lines(shown["tree"], screen)])


def _tree_lines(steps: list[Document], screen: Console, before: str = "") -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, start=1):
        last = number == len(steps)
        lines.append(f"{before}{'└─' if last else '├─'} {_step_line(step, screen)}")
        below = before + ("   " if last else "│  ")
        lines += _lines_inside(step["inside"], screen, below)
    return lines


def _lines_inside(parts: list[Document], screen: Console, before: str) -> list[str]:
    """Branches are steps themselves; the steps for an event are told with its type."""
    if any(part["kind"] != "event" for part in parts):
        return _tree_lines([step for part in parts for step in part["steps"]], screen, before)
    lines: list[str] = []
    for part in parts:
        lines.append(before + screen.style("dim", printable(f"on {part['name']}:")))
        lines += _tree_lines(part["steps"], screen, before)
    return lines


def _step_line(step: Document, screen: Console) -> str:
    numbered = step["id"].isdigit()
    line = printable(step["does"] if numbered else f"{step['id']}: {step['does']}")
    condition = step["if"]
    return line if condition is None else f"{line}  {screen.style('yellow', printable(f'if {condition}'))}"


def _checked_as_json(checked: PipelineCheck) -> JsonObject:
    return {
        "name": checked.name,
        "steps": checked.steps,
        "faults": [{"step": step, "error": error} for step, error in checked.faults],
    }


def _check_text(checked: tuple[PipelineCheck, ...], trial: Document | None, screen: Console) -> str:
    if not checked:
        return "There are no pipelines. They are configured under `pipelines`."
    lines = []
    for each in checked:
        word = screen.style("red", "error:") if each.faults else screen.style("green", "ok:")
        lines.append(f"{word} {printable(each.name)}, {format_count(each.steps, 'step')}")
        lines += [f"  {printable(step)}: {printable(error)}" for step, error in each.faults]
    return "\n".join(lines if trial is None else [*lines, "", *_trial_lines(trial, screen)])


def _trial_lines(trial: Document, screen: Console) -> list[str]:
    if not trial["starts"]:
        return [f"{screen.style('yellow', 'does not start:')} {printable(str(trial['because']))}"]
    rows = [(step["step"], _MARKS[step["outcome"]], step["because"] or "") for step in trial["steps"]]
    return [screen.table(("STEP", "WITH THIS PAYLOAD", "BECAUSE"), rows, prose=True)]


def _explain_text(found: Document, screen: Console) -> str:
    run = found["run"]
    word = styled_status(run["status"], screen)
    title = f"{printable(found['pipeline'])}: {word} ({run['reason']})  {run['job_id']}"
    lines = [title]
    if error := informative_error(run):
        lines.append(printable(error))
    if not found["graph_kept"]:
        lines.append("The graph of this run is no longer kept: only steps that ran are shown.")
    return "\n".join([*lines, "", steps_table(found["steps"], screen)])
