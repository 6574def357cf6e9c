"""`ductile pipeline`: list, show, run, check, draw and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request_daemon
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import (
    CONFIG_FILES,
    DRY_RUN,
    FOLLOW_OUTPUT,
    TIMEOUT,
    Argument,
    Example,
    Option,
    action,
    renders,
)

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot
    from ductile.core.json import JsonObject

_NO_PIPELINES = "There are no pipelines. They are configured under `pipelines`."
_NAME = Argument("NAME", "name of the pipeline", field="pipeline")


@renders("list", "list the pipelines, each with its latest run", "pipeline.list")
def list_pipelines(response: Document, console: Console) -> str:
    rows = []
    for row in response["pipelines"]:
        run = row["last_run"]
        job = fmt.short_id(None if run is None else run["job_id"], console)
        last = "-" if run is None else f"{run['status']} {fmt.relative_time(run['created_at'], console)}"
        rows.append((row["name"], row["trigger"] or "-", row["execution_mode"], str(row["steps"]), last, job))
    if not rows:
        return _NO_PIPELINES
    return console.table(("NAME", "STARTS", "MODE", "STEPS", "LAST RUN", "JOB"), rows)


@action(
    "show",
    "show a pipeline: what starts it, and its steps",
    "pipeline.show",
    arguments=(_NAME,),
    about="Read from the configuration on disk; with --url from the one in force. With --json, the compiled "
    "graph as well.",
)
def show(invocation: Invocation) -> CommandResult:
    from ductile.operations.runs.pipelines import describe_pipeline
    from ductile.struct import to_builtins

    pipeline: Document
    if invocation.remote is not None:
        pipeline = request_daemon(invocation)
    else:
        pipeline = to_builtins(describe_pipeline(_snapshot(invocation), invocation.text("NAME")))

    def text(console: Console) -> str:
        synchronous = pipeline["execution_mode"] == "synchronous"
        fields = fmt.fields(
            [
                ("starts", pipeline["trigger"] or "by name, or called by another pipeline"),
                ("if", pipeline["if"]),
                ("mode", pipeline["execution_mode"]),
                ("timeout", pipeline["timeout"] if synchronous else None),
                ("on timeout", pipeline["on_timeout"] if synchronous else None),
                ("hooks", "notified when a run ends" if pipeline["notify_on_complete"] else None),
            ],
            console,
        )
        title = console.style("bold", escape_controls(pipeline["name"]))
        return "\n".join([title, *fields, "", *_tree_lines(pipeline["tree"], console)])

    return CommandResult(pipeline, text)


@action(
    "run",
    "run a pipeline and show its result",
    "pipeline.run",
    arguments=(_NAME,),
    options=(
        TIMEOUT,
        FOLLOW_OUTPUT,
        Option("--no-wait", "print the id of the run and do not wait for it; needs the daemon"),
        DRY_RUN,
    ),
    about="Works with and without a daemon: without one its steps are run here, one after the other, "
    "and retries are left to the daemon. On a terminal each step is shown as it "
    "ends. Exit status 0 if the run succeeded, 1 if it did not, 75 if it has not ended in time.",
    examples=(
        Example('ductile pipeline run hello --payload \'{"name": "Ada"}\'', "and wait for its result"),
    ),
)
def run(invocation: Invocation) -> CommandResult:
    from ductile.cli import run_job

    def find_pipeline(snapshot: Snapshot) -> object:
        from ductile.operations.runs.start import known_pipeline

        return known_pipeline(snapshot, invocation.text("NAME"))

    with run_job.hint_reload(invocation, find_pipeline):
        result = run_job.result_without_waiting(invocation)
        return result or run_job.run_and_show(invocation, invocation.text("NAME"))


@action(
    "check",
    "check the pipelines; with a payload, show what it would start",
    local_reason=CONFIG_FILES,
    arguments=(Argument("NAME", "only this pipeline", required=False),),
    options=(Option("--payload JSON", "try this: a JSON object, @FILE, or - for standard input"),),
    about="Reads the configuration on disk and runs nothing. With --payload, which needs NAME, the "
    "first steps are shown, and why they would run or not; later ones depend on the answers of those. "
    "Exit status 78 if something has to be corrected.",
    examples=(
        Example("ductile pipeline check", "all of them, before a reload"),
        Example(
            'ductile pipeline check hello --payload \'{"name": "Ada"}\'',
            "what would run with this payload, and why",
        ),
    ),
)
def check(invocation: Invocation) -> CommandResult:
    from datetime import UTC, datetime
    from random import SystemRandom

    from ductile.admin.config import check_configuration
    from ductile.admin.pipeline_check import check_pipelines, dry_run_payload
    from ductile.errors import Exit, UsageError

    name, payload = invocation.optional("NAME"), invocation.json_object("payload")
    if payload is not None and name is None:
        raise UsageError("--payload is tried on one pipeline", hint="name it: ductile pipeline check NAME")
    configuration = check_configuration(invocation.config, invocation.environ)
    snapshot = configuration.snapshot
    results = check_pipelines(snapshot, name)
    faulty = any(pipeline.faults for pipeline in results)
    # The daemon would not start with files whose seal is broken, but their pipelines can be checked.
    seal_problems = configuration.seal_error.problems if configuration.seal_error else ()
    unsealed = [problem.message.partition("\n")[0].rstrip(":") for problem in seal_problems]
    data: JsonObject = {
        "valid": not faulty,
        "unsealed": [*unsealed],
        "pipelines": [
            {
                "name": pipeline.name,
                "steps": pipeline.steps,
                "faults": [{"step": step, "error": error} for step, error in pipeline.faults],
            }
            for pipeline in results
        ],
    }
    trial: Document | None = None
    if payload is not None and name is not None:
        trial = dry_run_payload(snapshot, name, payload, now=datetime.now(UTC), rng=SystemRandom())
        data["trial"] = trial

    def text(console: Console) -> str:
        if not results:
            return _NO_PIPELINES
        lines = []
        for pipeline in results:
            word = console.style("red", "error:") if pipeline.faults else console.style("green", "ok:")
            lines.append(f"{word} {escape_controls(pipeline.name)}, {fmt.count(pipeline.steps, 'step')}")
            lines += [
                f"  {escape_controls(step)}: {escape_controls(error)}" for step, error in pipeline.faults
            ]
        if trial is None:
            return "\n".join(lines)
        if not trial["starts"]:
            reason = escape_controls(str(trial["because"]))
            return "\n".join([*lines, "", f"{console.style('yellow', 'does not start:')} {reason}"])
        rows = []
        for step in trial["steps"]:
            outcome = "cannot be made" if step["outcome"] == "not_made" else step["outcome"]
            rows.append((step["step"], outcome, step["because"] or ""))
        table = console.table(("STEP", "WITH THIS PAYLOAD", "BECAUSE"), rows, wrap_last=True)
        return "\n".join([*lines, "", table])

    def note(console: Console) -> str:
        warning = console.style("yellow", "warning:")
        reasons = escape_controls("; ".join(unsealed))
        return f"{warning} {reasons}. The daemon does not load it: `ductile config check`"

    status = Exit.CONFIG if faulty else Exit.OK
    return CommandResult(data, text, exit_status=status, note=note if unsealed else None)


@action(
    "graph",
    "draw a pipeline",
    "pipeline.graph",
    arguments=(_NAME,),
    options=(
        Option("--format FORMAT", "mermaid (default) or svg", "format"),
        Option("-o, --output FILE", "write it to this file instead of standard output"),
    ),
    about="Drawn here, from the configuration on disk: neither a browser nor the network is needed. With "
    "--url, the pipeline of the configuration in force.",
)
def graph(invocation: Invocation) -> CommandResult:
    from pathlib import Path

    from ductile.errors import UsageError, file_error
    from ductile.operations.runs.pipelines import Drawing, draw_pipeline

    drawing_format = invocation.optional("format") or Drawing.MERMAID
    if drawing_format not in tuple(Drawing):
        raise UsageError(f"there is no format {drawing_format!r}", hint=f"one of {', '.join(Drawing)}")
    name, output = invocation.text("NAME"), invocation.optional("output")
    if invocation.remote is not None:
        drawing = str(request_daemon(invocation)["drawing"])
    else:
        drawing = draw_pipeline(_snapshot(invocation), name, Drawing(drawing_format))
    data: JsonObject = {"pipeline": name, "format": drawing_format, "output": output}
    if output is None:
        return CommandResult(data | {"drawing": drawing}, drawing.rstrip("\n"))
    try:
        Path(output).write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise file_error(f"{output} cannot be written", error) from None
    return CommandResult(data, f"Wrote {output}.")


@renders(
    "explain",
    "show the outcome of every step of a run, and why",
    "pipeline.explain",
    arguments=(
        Argument("RUN", "id of the run, or of one of its steps; its beginning is enough", field="job_id"),
    ),
)
def explain(response: Document, console: Console) -> str:
    run = response["run"]
    status = f"{fmt.status(run['status'], console)} ({run['reason']})"
    lines = [f"{escape_controls(response['pipeline'])}: {status}  {run['job_id']}"]
    if error := fmt.informative_error(run):
        lines.append(escape_controls(error))
    if not response["graph_kept"]:
        lines.append("The graph of this run is no longer kept: only steps that ran are shown.")
    return "\n".join([*lines, "", fmt.steps_table(response["steps"], console)])


def _snapshot(invocation: Invocation) -> Snapshot:
    """Return the configuration on disk, sealed or not: it is only shown."""
    from ductile.admin.config import open_configuration
    from ductile.config.load import SealMode

    return open_configuration(invocation.config, invocation.environ, seal=SealMode.IGNORE).snapshot


def _tree_lines(steps: list[Document], console: Console, before: str = "") -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, start=1):
        branch, below = ("└─", "   ") if number == len(steps) else ("├─", "│  ")
        line = escape_controls(step["does"] if step["id"].isdigit() else f"{step['id']}: {step['does']}")
        if step["if"] is not None:
            line += f"  {console.style('yellow', escape_controls('if ' + step['if']))}"
        lines.append(f"{before}{branch} {line}")
        if all(part["kind"] == "event" for part in step["inside"]):
            # The steps for an event follow a line with its type.
            for part in step["inside"]:
                lines.append(before + below + console.style("dim", escape_controls(f"on {part['name']}:")))
                lines += _tree_lines(part["steps"], console, before + below)
        else:  # the branches of a split are steps themselves
            inside = [inner for part in step["inside"] for inner in part["steps"]]
            lines += _tree_lines(inside, console, before + below)
    return lines
