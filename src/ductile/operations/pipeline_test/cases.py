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
    FailureReason,
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
from ductile.struct import Value, asdict, replace

#: The endings of files in a directory of cases.
SUFFIXES = (".yaml", ".yml", ".json")
#: The directory beside `config.yaml` in which cases are looked for.
CASES_DIRECTORY = "tests"
_MAX_FILE_BYTES = 16 * 1024 * 1024
FAILURE_REASONS = frozenset(JobReason(name) for name in get_args(FailureReason))
_IGNORABLE_ROOTS = ("payload", "context", "result")


class LoadedCase(Value):
    """A case that was read without a fault."""

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


def find_case_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files, and those in the directories. Raises `NotFoundError` for a directory without one."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        case_files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not case_files:
            raise NotFoundError(
                f"there is no case in {path}", hint=f"Cases are files that end in {' or '.join(SUFFIXES)}."
            )
        files += case_files
    return tuple(files)


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
        raise _unusable_error(f"the cases in {file}", [problem])
    cases, problems = _read_root(root)
    if problems:
        raise _unusable_error(f"the cases in {file}", problems)
    return cases


def read_case_values(pipeline: str, values: Sequence[JsonValue]) -> tuple[LoadedCase, ...]:
    """Return the cases of a request. Raises `ConfigError`, whose problems name keys: `cases[0].start`."""
    location = SourceLocation(file="cases", line=0, column=0)
    root = _to_node({"pipeline": pipeline, "cases": [*values]}, location)
    assert isinstance(root, MapNode)  # noqa: S101 - made of an object
    cases, problems = _read_root(root)
    if problems:
        raise _unusable_error(
            "the cases",
            [dataclasses.replace(problem, file=None, line=None, column=None) for problem in problems],
        )
    return tuple(replace(case, location=None) for case in cases)


def _to_node(value: JsonValue, location: SourceLocation) -> Node:
    """Return the nodes of a YAML document with this value, all at one location."""
    match value:
        case dict():
            entries = tuple(
                (ScalarNode(text=key, plain=False, location=location), _to_node(inner, location))
                for key, inner in value.items()
            )
            return MapNode(entries=entries, location=location)
        case list():
            return ListNode(items=tuple(_to_node(item, location) for item in value), location=location)
        case str():
            return ScalarNode(text=value, plain=False, location=location)
        case _:
            return ScalarNode(text=json.dumps(value), plain=True, location=location)


def _unusable_error(subject: str, problems: Sequence[Problem]) -> ConfigError:
    more = f"; {len(problems)} problems" if len(problems) > 1 else ""
    return ConfigError(f"{subject} cannot be used{more}", problems=tuple(problems))


def _read_root(root: MapNode) -> tuple[tuple[LoadedCase, ...], list[Problem]]:
    """Return the cases of a document, and every problem in it."""
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
                ignore=tuple(pattern for text in case.ignore if (pattern := parse_pattern(text)) is not None),
                location=f"{where.file}:{where.line}",
            )
        )
    return tuple(cases), problems


# ---------------------------------------------------------------------------- rules beyond the key's type

_Fault = tuple[KeyPath, str, str | None]


def _faults(section: CaseFile) -> Iterator[_Fault]:
    """Yield the faults in the cases that the types of the keys allow: path, message, expected value."""
    names: set[str] = set()
    if not section.cases:
        yield ("cases",), "there is no case", "at least one"
    for number, case in enumerate(section.cases):
        path: KeyPath = ("cases", number)
        if case.name in names:
            yield (*path, "name"), f'the name "{case.name}" occurs twice', "another name"
        names.add(case.name)
        for position, text in enumerate(case.ignore):
            pattern = parse_pattern(text)
            if pattern is None or pattern[0] not in _IGNORABLE_ROOTS:
                expected = "a path under payload, context or result, such as payload.at"
                yield (*path, "ignore", position), f'"{text}" cannot be ignored', expected
        for name, step in case.steps.items():
            step_path = (*path, "steps", name)
            if not step.occurrences:
                yield from _attempt_faults(step, step_path)
            elif has_response(step) or step.attempts:
                message = "it has occurrences, and a response beside them"
                yield step_path, message, "the responses inside `occurrences`"
            for position, occurrence in enumerate(step.occurrences):
                yield from _attempt_faults(occurrence, (*step_path, "occurrences", position))


def _attempt_faults(step: CaseStep | CaseOccurrence, path: KeyPath) -> Iterator[_Fault]:
    if not step.attempts:
        yield from _response_faults(step, path)
        return
    if has_response(step):
        yield path, "it has attempts, and a response beside them", "the responses inside `attempts`"
    for number, attempt in enumerate(step.attempts):
        yield from _response_faults(attempt, (*path, "attempts", number))


def has_response(response: CaseResponse) -> bool:
    """Return whether a response defines how the execution ends. One that does not is a synthetic success."""
    has_value = response.result is not UNSET or response.error is not None or response.exit is not None
    return has_value or bool(response.events) or response.timed_out


def _response_faults(response: CaseResponse, path: KeyPath) -> Iterator[_Fault]:
    ends = {
        "events": bool(response.events),
        "error": response.error is not None,
        "exit": response.exit is not None,
        "timed_out": response.timed_out,
    }
    present = [name for name, is_present in ends.items() if is_present]
    if response.result is not UNSET and (response.exit is not None or response.timed_out):
        present.append("result")
    if len(present) > 1:
        message = f"{' and '.join(present)} exclude each other"
        yield path, message, "one end of the execution"
    for name, needed in (("reason", "error"), ("stderr", "exit")):
        if getattr(response, name) is not None and getattr(response, needed) is None:
            yield (*path, name), f"{name} has a meaning only beside {needed}", None
    if not response.retry and response.error is None:
        yield (*path, "retry"), "retry has a meaning only beside error", None
    if response.error is not None and not response.error.strip():
        yield (*path, "error"), "the error is blank", "a text that says what went wrong"


# ------------------------------------------------------------------------------------------ expectations


def _expectation(expect: CaseExpectation) -> RunExpectation:
    steps: dict[str, StepExpectation] = {}
    for path, step in expect.steps.items():
        occurrences = None
        if step.occurrences is not None:
            occurrences = tuple(_job_expectation(occurrence) for occurrence in step.occurrences)
        every_run = asdict(_job_expectation(step))
        steps[path] = StepExpectation(**every_run, times=step.times, occurrences=occurrences)
    return RunExpectation(
        status=expect.status,
        result=MISSING if expect.result is UNSET else expect.result,
        error=expect.error,
        steps=steps,
        order=expect.order,
        starts=expect.starts,
    )


def _job_expectation(expected: ExpectedOccurrence) -> JobExpectation:
    return JobExpectation(
        outcome=expected.outcome,
        payload=None if expected.payload is None else dict(expected.payload),
        context=None if expected.context is None else dict(expected.context),
        attempts=expected.attempts,
        error=expected.error,
    )


def expectation_to_json(expected: RunExpectation) -> JsonObject:
    """Return the expectation as a file writes it."""
    document: JsonObject = {}
    if expected.status is not None:
        document["status"] = expected.status.value
    if expected.result is not MISSING:
        document["result"] = expected.result
    steps: JsonObject = {}
    for path, step in expected.steps.items():
        steps[path] = entry = _job_to_json(step)
        if step.occurrences is not None:
            entry["occurrences"] = [_job_to_json(occurrence) for occurrence in step.occurrences]
    document["steps"] = steps
    return document


def _job_to_json(job: JobExpectation) -> JsonObject:
    document: JsonObject = {}
    if job.outcome is not None:
        document["outcome"] = job.outcome.value
    if job.payload is not None:
        document["payload"] = job.payload
    if job.context is not None:
        document["context"] = job.context
    return document
