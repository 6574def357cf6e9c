"""Test cases of pipelines, read from a file or from the body of a request, and written as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from msgspec import UNSET

from ductile.config.schema.decode import decode_section
from ductile.config.schema.pipeline_cases import (
    CaseExpectation,
    CaseFile,
    CaseOccurrence,
    CaseResponse,
    CaseStart,
    CaseStep,
    ExpectedOccurrence,
    ExpectedStep,
    FailureReason,
    PipelineCase,
)
from ductile.core.expressions.paths import MISSING
from ductile.core.jobs.model import JobReason
from ductile.core.json import JsonObject, JsonValue
from ductile.core.json_differences import Path as JsonPath
from ductile.core.json_differences import parse_pattern
from ductile.core.runs.expectations import JobExpectation, RunExpectation, StepExpectation
from ductile.errors import ConfigError, NotFoundError, Problem, UsageError, file_error
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import (
    KeyPath,
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    location_of,
    problem_at,
    to_plain,
)
from ductile.struct import Value, replace

#: The endings of files in a directory of cases.
SUFFIXES = (".yaml", ".yml", ".json")
#: Beside `config.yaml`: where cases are looked for.
CASES_DIRECTORY = "tests"
_MAX_FILE_BYTES = 16 * 1024 * 1024
FAILURE_REASONS = frozenset(JobReason(name) for name in get_args(FailureReason))
_COMPARED = ("payload", "context", "result")


class LoadedCase(Value):
    """A case that is in order."""

    pipeline: str
    name: str
    start: CaseStart
    steps: Mapping[str, CaseStep]
    expect: RunExpectation
    ignore: tuple[JsonPath, ...] = ()
    #: `FILE:LINE`; None for a case of a request.
    location: str | None = None
    #: The run that it was recorded from, if it was not read from a file.
    job_id: str | None = None


# ------------------------------------------------------------------------------------------------- files


def find_case_files(given: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files, and those in the directories. Raises `NotFoundError` for a directory without one."""
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file())
        if not inside:
            raise NotFoundError(
                f"there is no case in {path}", hint=f"Cases are files that end in {' or '.join(SUFFIXES)}."
            )
        found += inside
    return tuple(found)


def read_case_file(path: Path) -> tuple[LoadedCase, ...]:
    """Return the cases in a file. Raises `ConfigError` with every problem in it."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}", hint=f"It is looked for in {Path.cwd()}.") from None
    except OSError as error:
        raise file_error(f"{path} cannot be read", error) from None
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB", hint="Split it.")
    return read_case_text(data, str(path))


def case_values(path: Path) -> tuple[str, list[JsonValue]]:
    """Return the pipeline of a file, and its cases as a request has them. The file has been read before."""
    document = to_plain(parse_yaml(path.read_bytes(), file=str(path)))
    assert isinstance(document, dict)  # noqa: S101 - `read_case_file` accepted it
    cases = document["cases"]
    return str(document["pipeline"]), cases if isinstance(cases, list) else []


def read_case_text(data: bytes | str, file: str) -> tuple[LoadedCase, ...]:
    """Return the cases of a document. Raises `ConfigError` with every problem in it."""
    root = parse_yaml(data, file=file)
    if not isinstance(root, MapNode):
        expected = "a map with the keys pipeline and cases"
        where = None if root is None else root.location
        problem = problem_at(where, (), "this is not a file of cases", expected=expected)
        raise _unusable(f"the cases in {file}", [problem])
    found, problems = _read_root(root)
    if problems:
        raise _unusable(f"the cases in {file}", problems)
    return found


def read_case_values(pipeline: str, cases: Sequence[JsonValue]) -> tuple[LoadedCase, ...]:
    """Return the cases of a request. Raises `ConfigError`, whose problems name keys: `cases[0].start`."""
    location = SourceLocation(file="cases", line=0, column=0)
    root = _node_of({"pipeline": pipeline, "cases": [*cases]}, location)
    assert isinstance(root, MapNode)  # noqa: S101 - made of an object
    found, problems = _read_root(root)
    if problems:
        raise _unusable(
            "the cases", [dataclasses.replace(each, file=None, line=None, column=None) for each in problems]
        )
    return tuple(_without_location(case) for case in found)


def _without_location(case: LoadedCase) -> LoadedCase:
    return replace(case, location=None)


def _node_of(value: JsonValue, location: SourceLocation) -> Node:
    match value:
        case dict():
            entries = tuple(
                (ScalarNode(text=key, plain=False, location=location), _node_of(inner, location))
                for key, inner in value.items()
            )
            return MapNode(entries=entries, location=location)
        case list():
            return ListNode(items=tuple(_node_of(item, location) for item in value), location=location)
        case str():
            return ScalarNode(text=value, plain=False, location=location)
        case _:
            return ScalarNode(text=json.dumps(value), plain=True, location=location)


def _unusable(cases: str, problems: Sequence[Problem]) -> ConfigError:
    more = f"; {len(problems)} problems" if len(problems) > 1 else ""
    return ConfigError(f"{cases} cannot be used{more}", problems=tuple(problems))


def _read_root(root: MapNode) -> tuple[tuple[LoadedCase, ...], list[Problem]]:
    section, decoding = decode_section(root, CaseFile)
    problems = [*decoding]
    if section is None or problems:
        return (), problems
    for path, message, expected in _faults(section):
        problems.append(problem_at(location_of(root, path), path, message, expected=expected))
    cases = []
    for number, case in enumerate(section.cases):
        where = location_of(root, ("cases", number))
        cases.append(
            LoadedCase(
                pipeline=section.pipeline,
                name=case.name,
                start=case.start,
                steps=case.steps,
                expect=_expectation(case.expect),
                ignore=tuple(found for each in case.ignore if (found := parse_pattern(each)) is not None),
                location=f"{where.file}:{where.line}",
            )
        )
    return tuple(cases), problems


# ---------------------------------------------------------------------------- rules beyond the key's type

_Fault = tuple[KeyPath, str, str | None]


def _faults(section: CaseFile) -> Iterator[_Fault]:
    names: dict[str, int] = {}
    if not section.cases:
        yield ("cases",), "there is no case", "at least one"
    for number, case in enumerate(section.cases):
        path: KeyPath = ("cases", number)
        if case.name in names:
            yield (*path, "name"), f'the name "{case.name}" occurs twice', "another name"
        names[case.name] = number
        yield from _case_faults(case, path)


def _case_faults(case: PipelineCase, path: KeyPath) -> Iterator[_Fault]:
    for number, text in enumerate(case.ignore):
        pattern = parse_pattern(text)
        if pattern is None or pattern[0] not in _COMPARED:
            expected = "a path under payload, context or result, such as payload.at"
            yield (*path, "ignore", number), f'"{text}" cannot be ignored', expected
    for name, step in case.steps.items():
        yield from _step_faults(step, (*path, "steps", name))


def _step_faults(step: CaseStep, path: KeyPath) -> Iterator[_Fault]:
    if step.occurrences:
        if has_response(step) or step.attempts:
            message = "it has occurrences, and a response beside them"
            yield path, message, "the responses inside `occurrences`"
        for number, each in enumerate(step.occurrences):
            yield from _attempt_faults(each, (*path, "occurrences", number))
    else:
        yield from _attempt_faults(step, path)


def _attempt_faults(step: CaseStep | CaseOccurrence, path: KeyPath) -> Iterator[_Fault]:
    if not step.attempts:
        yield from _response_faults(step, path)
        return
    if has_response(step):
        yield path, "it has attempts, and a response beside them", "the responses inside `attempts`"
    for number, each in enumerate(step.attempts):
        yield from _response_faults(each, (*path, "attempts", number))


def has_response(response: CaseResponse) -> bool:
    """Return whether a response says how the execution ends. Without that it is a synthetic success."""
    has_value = response.result is not UNSET or response.error is not None or response.exit is not None
    return has_value or bool(response.events) or response.timed_out


def _response_faults(response: CaseResponse, path: KeyPath) -> Iterator[_Fault]:
    ends = {
        "events": bool(response.events),
        "error": response.error is not None,
        "exit": response.exit is not None,
        "timed_out": response.timed_out,
    }
    written = [name for name, is_written in ends.items() if is_written]
    if response.result is not UNSET and (response.exit is not None or response.timed_out):
        written.append("result")
    if len(written) > 1:
        message = f"{' and '.join(written)} exclude each other"
        yield path, message, "one end of the execution"
    for name, needed in (("reason", "error"), ("stderr", "exit")):
        if getattr(response, name) is not None and getattr(response, needed) is None:
            yield (*path, name), f"{name} has a meaning only beside {needed}", None
    if not response.retry and response.error is None:
        yield (*path, "retry"), "retry has a meaning only beside error", None
    if response.error is not None and not response.error.strip():
        yield (*path, "error"), "the error is blank", "a text that says what went wrong"


# ------------------------------------------------------------------------------------------ expectations


def _expectation(written: CaseExpectation) -> RunExpectation:
    return RunExpectation(
        status=written.status,
        result=MISSING if written.result is UNSET else written.result,
        error=written.error,
        steps={path: _step_expectation(step) for path, step in written.steps.items()},
        order=written.order,
        starts=written.starts,
    )


def _step_expectation(step: ExpectedStep) -> StepExpectation:
    every = _job_expectation(step)
    occurrences = None
    if step.occurrences is not None:
        occurrences = tuple(_job_expectation(each) for each in step.occurrences)
    return StepExpectation(
        outcome=every.outcome,
        payload=every.payload,
        context=every.context,
        attempts=every.attempts,
        error=every.error,
        times=step.times,
        occurrences=occurrences,
    )


def _job_expectation(written: ExpectedOccurrence) -> JobExpectation:
    return JobExpectation(
        outcome=written.outcome,
        payload=None if written.payload is None else dict(written.payload),
        context=None if written.context is None else dict(written.context),
        attempts=written.attempts,
        error=written.error,
    )


def expectation_to_json(expected: RunExpectation) -> JsonObject:
    """Return the expectation as a file writes it."""
    document: JsonObject = {}
    if expected.status is not None:
        document["status"] = expected.status.value
    if expected.result is not MISSING:
        document["result"] = expected.result
    document["steps"] = {path: _step_to_json(step) for path, step in expected.steps.items()}
    return document


def _step_to_json(step: StepExpectation) -> JsonObject:
    written = _job_to_json(step)
    if step.occurrences is not None:
        written["occurrences"] = [_job_to_json(each) for each in step.occurrences]
    return written


def _job_to_json(job: JobExpectation) -> JsonObject:
    written: JsonObject = {}
    if job.outcome is not None:
        written["outcome"] = job.outcome.value
    if job.payload is not None:
        written["payload"] = job.payload
    if job.context is not None:
        written["context"] = job.context
    return written
