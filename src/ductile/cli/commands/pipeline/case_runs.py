"""`ductile pipeline test`: run test cases, past runs or a payload through a pipeline without its plugins."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ductile.cli.client import Document, request, request_ignoring_seal
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Argument, Example, Option, action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.core.json import JsonObject, JsonValue
    from ductile.operations.pipeline_test.cases import LoadedCase

#: A warning in the file of recorded cases.
_VERBATIM = (
    "Inputs and responses are written as they were, without masks: look for secrets before sharing it."
)
#: Characters of an input or result that are shown.
_MAX_INPUT = 200
#: Characters that YAML does not allow outside of an escape.
_NOT_IN_YAML = "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"


@action(
    "test",
    "test a pipeline with recorded or written responses, without running a plugin",
    "pipeline.test",
    arguments=(
        Argument(
            "NAME", "name of the pipeline; only all cases of a configuration need none", False, "pipeline"
        ),
    ),
    options=(
        Option(
            "--case FILE",
            "file of cases, or a directory of them; may be repeated (default: tests beside config.yaml)",
            repeatable=True,
        ),
        Option("--candidate PATH", "test the pipeline of this configuration: a file, or a directory"),
        Option("--record RUN", "write a past run as a case: its id, or last; with --last, the latest ones"),
        Option("-o, --output FILE", "with --record: write it to this file instead of standard output"),
    ),
    usage={"cases": None},
    about="A run is carried out in memory by the rules of the daemon: conditions, templates, baggage, "
    "splits, joins, retries and hop limits. Each step gets its response from the case instead of a process; "
    "without one it succeeds with a synthetic response. Reads the configuration on disk, sealed or not; runs "
    "and stores nothing. With --payload, the path of such a run and the input of each step; with --run or "
    "--last, what would now go differently from past runs. Exit status 0 if everything goes as expected, 1 "
    "if not.",
    examples=(
        Example(
            'ductile pipeline test hello --payload \'{"name": "Ada"}\'',
            "the path of the run, with the input of each step",
        ),
        Example("ductile pipeline test hello --record last -o hello.yaml", "its latest run as a case"),
        Example("ductile pipeline test hello --last 20", "after a change: what would go differently"),
        Example("ductile pipeline test", "all cases in tests/ beside config.yaml, as in a build"),
    ),
)
def test(invocation: Invocation) -> CommandResult:
    from ductile.errors import UsageError

    _refuse_combinations(invocation)
    if invocation.optional("record") is not None:
        return _record(invocation)
    if invocation.optional("output") is not None:
        raise UsageError("--output has a meaning only with --record", hint="add --record RUN")
    with show_waiting(invocation, "the test"):
        if invocation.remote is None and invocation.optional("plan") is None:
            report = _test_here(invocation)
        else:
            report = _test_in_daemon(invocation)

    def text(console: Console) -> str:
        cases = report["cases"]
        lines: list[str] = []
        for case in cases:
            lines += _case_lines(case, console, with_steps=invocation.verbose or len(cases) == 1)
        for run in report["left_out"]:
            lines.append(f"left out {fmt.short_id(run['job_id'], console)}: {escape_controls(run['reason'])}")
        if len(cases) != 1:
            passed, failed = report["counts"]["passed"], report["counts"]["failed"]
            word = console.style("green", "ok:") if report["passed"] else console.style("red", "failed:")
            lines.append(f"{word} {fmt.count(passed + failed, 'case')}, {passed} as expected, {failed} not")
        return "\n".join(lines)

    return CommandResult(report, text, exit_status=int(not report["passed"]))


def _refuse_combinations(invocation: Invocation) -> None:
    """Raise UsageError for options that exclude each other, or that lack the name of a pipeline."""
    from ductile.errors import UsageError

    options = [name for name in ("case", "payload", "run", "last") if invocation.arguments.get(name)]
    if invocation.optional("record") is not None:
        options = [name for name in options if name != "last"] + ["record"]
    if len(options) > 1:
        raise UsageError(f"--{options[0]} and --{options[1]} exclude each other", hint="choose one of them")
    if invocation.optional("candidate") and (invocation.remote or invocation.optional("plan")):
        raise UsageError(
            "--candidate names files of this machine", hint="leave out --url and --plan, or the candidate"
        )
    if options and options != ["case"] and invocation.optional("NAME") is None:
        raise UsageError(f"--{options[0]} needs the name of a pipeline", hint="see `ductile pipeline list`")


# -- the test in this process


def _test_here(invocation: Invocation) -> Document:
    """Test with the configuration on disk and return the report."""
    from ductile.admin.config import open_configuration
    from ductile.config.load import SealMode
    from ductile.operations.pipeline_test.run import report_results
    from ductile.operations.pipeline_test.simulate import refuse_unknown_pipelines, run_cases
    from ductile.operations.runs.start import known_pipeline
    from ductile.struct import to_builtins

    config = invocation.optional("candidate") or invocation.config
    snapshot = open_configuration(config, invocation.environ, seal=SealMode.IGNORE).snapshot
    if (name := invocation.optional("NAME")) is not None:
        known_pipeline(snapshot, name)
    cases, left_out = _load_cases(invocation, snapshot.directory)
    refuse_unknown_pipelines(snapshot, cases)
    report: Document = to_builtins(report_results(snapshot, run_cases(snapshot, cases), left_out))
    return report


def _load_cases(invocation: Invocation, directory: Path) -> tuple[Sequence[LoadedCase], Sequence[Any]]:
    """Return the cases that the options select, and the past runs that cannot be a case."""
    from ductile.operations.pipeline_test.cases import CASES_DIRECTORY, find_case_files, read_case_file
    from ductile.operations.pipeline_test.record import RunLeftOut
    from ductile.operations.pipeline_test.run import payload_case, read_recorded

    if (payload := invocation.json_object("payload")) is not None:
        return [payload_case(invocation.text("NAME"), payload)], []
    if invocation.optional("run") is None and invocation.optional("last") is None:
        name = invocation.optional("NAME")
        paths = [Path(path) for path in invocation.words("case")]
        if not paths and (default := directory / CASES_DIRECTORY).is_dir():
            paths = [default]
        if not paths:
            raise _no_cases(name)
        in_files = [case for file in find_case_files(paths) for case in read_case_file(file)]
        cases = [case for case in in_files if name in (None, case.pipeline)]
        if not cases:
            raise _no_cases(name)
        return cases, []
    recorded = _recordings(invocation)
    runs = list(zip(recorded["runs"], recorded["cases"], strict=True))
    return read_recorded(recorded["pipeline"], runs), [RunLeftOut(**run) for run in recorded["left_out"]]


def _no_cases(name: str | None) -> Exception:
    from ductile.errors import NotFoundError

    if name is None:
        return NotFoundError(
            "there are no cases", hint="Name files with --case, or put them into tests beside config.yaml."
        )
    return NotFoundError(
        f"there is no case for {name}",
        hint=f"Record its latest run: `ductile pipeline test {name} --record last`. "
        f"Or see the path of a run: `ductile pipeline test {name} --payload '{{}}'`.",
    )


def _recordings(invocation: Invocation, *, record: bool = False) -> Document:
    """Return past runs as cases, from the daemon or the store."""
    last = invocation.optional("last")
    fields: JsonObject = {"pipeline": invocation.text("NAME")}
    if last is not None:
        if not (last.isascii() and last.isdigit()):
            from ductile.errors import UsageError

            raise UsageError(f"--last needs a whole number, not {last!r}")
        fields["last"] = int(last)
    else:
        fields["run"] = invocation.text("record" if record else "run")
    if invocation.remote is not None:
        return request(invocation, "pipeline.record", fields)
    return request_ignoring_seal(invocation, "pipeline.record", fields)


# -- the test in a daemon


def _test_in_daemon(invocation: Invocation) -> Document:
    """Test with the configuration or a plan of the daemon and return the report."""
    from ductile.errors import UsageError
    from ductile.operations.pipeline_test.cases import case_values, find_case_files, read_case_file

    fields = invocation.request_fields()
    if any(name in fields for name in ("payload", "run", "last")):
        return request(invocation, fields=fields, timeout=None)
    by_pipeline: dict[str, list[JsonValue]] = {}
    for path in find_case_files([Path(path) for path in invocation.words("case")]):
        read_case_file(path)  # an error names the line, which the daemon does not know
        pipeline, cases = case_values(path)
        by_pipeline.setdefault(pipeline, []).extend(cases)
    name = invocation.optional("NAME") or (next(iter(by_pipeline)) if len(by_pipeline) == 1 else None)
    if name is None:
        raise UsageError("name the pipeline", hint="With --url or --plan, one pipeline is tested at a time.")
    if name not in by_pipeline:
        raise _no_cases(name)
    fields |= {"pipeline": name, "cases": by_pipeline[name]}
    return request(invocation, fields=fields, timeout=None)


# -- record


def _record(invocation: Invocation) -> CommandResult:
    from ductile.errors import GoneError

    recorded = _recordings(invocation, record=True)
    if not recorded["cases"]:
        reasons = "; ".join(dict.fromkeys(run["reason"] for run in recorded["left_out"]))
        raise GoneError(f"no run of {recorded['pipeline']} can be recorded: {reasons}")
    document: JsonObject = {name: recorded[name] for name in ("pipeline", "description", "cases")}
    yaml_text = _checked_yaml(document)
    output = invocation.optional("output")
    data: JsonObject = {"document": document, "left_out": recorded["left_out"], "output": output}

    def note(console: Console) -> str:
        lines = [f"{console.style('yellow', 'warning:')} {_VERBATIM}"]
        lines += [f"left out: {escape_controls(run['reason'])}" for run in recorded["left_out"]]
        return "\n".join(lines)

    if output is None:
        return CommandResult(data, yaml_text.rstrip("\n"), note=note)
    _write_new(Path(output), yaml_text)
    count = fmt.count(len(recorded["cases"]), "case")
    return CommandResult(data, f"Wrote {count} to {output}.", note=note)


def _checked_yaml(document: JsonObject) -> str:
    """Return the text of a file of cases. Raises RefusedError if reading it would not give the same cases."""
    from ductile.errors import ConfigError, RefusedError
    from ductile.operations.pipeline_test.cases import read_case_text, read_case_values
    from ductile.struct import replace

    # These characters are only in quoted text, where YAML reads the escape.
    escaped = re.sub(_NOT_IN_YAML, lambda match: f"\\u{ord(match[0]):04x}", fmt.to_yaml(document))
    text = f"# {_VERBATIM}\n{escaped}\n"
    name, cases = document["pipeline"], document["cases"]
    expected = read_case_values(str(name), cases if isinstance(cases, list) else [])
    try:
        read = read_case_text(text, "the recorded case")
        if tuple(replace(case, location=None) for case in read) == expected:
            return text
    except ConfigError:
        pass
    raise RefusedError("the run cannot be written as YAML", hint="Use --run to test it without a file.")


def _write_new(path: Path, text: str) -> None:
    """Write a new file that only its owner may read.

    Raises ConflictError if it exists, NotFoundError without its directory.
    """
    from ductile.errors import ConflictError, NotFoundError, file_error

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConflictError(f"{path} exists already", hint="Choose another name, or remove it.") from None
    except FileNotFoundError:
        from shlex import quote

        raise NotFoundError(
            f"there is no directory {path.parent}",
            hint=f"Make it first: `mkdir -p {quote(str(path.parent))}`",
        ) from None
    except OSError as error:
        raise file_error(f"{path} cannot be written", error) from None


# -- as text


def _case_lines(case: Document, console: Console, *, with_steps: bool) -> list[str]:
    word = console.style("green", "ok:") if case["passed"] else console.style("red", "failed:")
    location = f"  {console.path(case['location'])}" if case["location"] else ""
    lines = [f"{word} {escape_controls(case['name'])}{location}"]
    for difference in case["differences"]:
        lines += [f"  {line}" for line in _difference_lines(difference)]
    if case["other_input"]:
        steps = ", ".join(map(escape_controls, case["other_input"]))
        lines.append(f"  responses of another input were used: {steps}")
    if not with_steps:
        return lines
    if case["status"] is not None:
        error = "" if case["error"] is None else f": {escape_controls(case['error'])}"
        lines.append(f"  the run: {case['status']}{error}")
    if case["steps"]:
        lines += [
            "",
            console.table(("STEP", "RUNS", "OUTCOME", "INPUT"), _step_rows(case), wrap_last=True),
            "",
        ]
    lines += [f"  would start {escape_controls(target)}" for target in case["would_start"]]
    lines += [f"  dropped: {escape_controls(event)}" for event in case["dropped_events"]]
    if case["synthetic"]:
        lines.append(f"  synthetic responses: {', '.join(map(escape_controls, case['synthetic']))}")
    if case["status"] not in (None, "not_started"):
        lines.append(f"  result: {_short(case['result'])}")
    return lines


def _step_rows(case: Document) -> list[tuple[str, ...]]:
    """Return a row for each job, and one for a step without jobs, with the reason in place of the input."""
    rows: list[tuple[str, ...]] = []
    for step in case["steps"]:
        target = step["does"] or "-"
        if not step["jobs"]:
            rows.append((step["step"], target, step["outcome"], step["because"] or ""))
        for job in step["jobs"]:
            job_input = _short(job["payload"])
            if job["context"]:
                job_input += f" with {_short(job['context'])}"
            if job["error"]:
                job_input += f" → {job['error']}"
            attempts = f" ({job['attempts']} attempts)" if job["attempts"] > 1 else ""
            rows.append((step["step"], target, job["outcome"] + attempts, job_input))
    return rows


def _short(value: object) -> str:
    text = fmt.to_json(value)
    return escape_controls(text if len(text) <= _MAX_INPUT else f"{text[: _MAX_INPUT - 1]}…")


def _difference_lines(difference: Document) -> list[str]:
    path, because = escape_controls(difference["path"]), difference["because"]
    expected, actual = difference["expected"], difference["actual"]
    if expected is None and actual is None:
        lines = [f"{path}: {escape_controls(because or 'it differs')}"]
        because = None
    elif expected is None:
        lines = [f"{path}: not expected, but is {escape_controls(actual)}"]
    elif actual is None:
        lines = [f"{path}: expected {escape_controls(expected)}, there is none"]
    else:
        lines = [f"{path}: expected {escape_controls(expected)}, is {escape_controls(actual)}"]
    lines += [f"  {escape_controls(text)}" for text in (because, difference["hint"]) if text]
    return lines
