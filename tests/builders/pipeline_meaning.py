"""The meaning of a pipeline, implemented a second time: a recursive interpreter of the settings.

It has no graph, no store, no scopes and no transactions. The response of a step is a function of its path
and its payload, so the expected jobs do not depend on the order in which jobs run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Settings = Mapping[str, Any]
Steps = Sequence[Settings]
MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The last response of a step: a failure, or a result with events."""

    stdout: str | None
    fails: bool = False
    result: str = ""
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    payload: dict[str, Any]
    type: str
    #: The value of `run` in conditions and templates of every step.
    run: dict[str, Any]
    baggage: dict[str, Any] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    #: The output of its last job, as a tuple of one; None if there was no job.
    job: tuple[str | None] | None = None
    #: The path of its last step.
    at: str = ""
    bypassed: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    line: Line
    #: Whether it is an end of the run itself, not of a branch that was joined.
    counts: bool


@dataclass(slots=True)
class ExpectedRun:
    """The expected end of a run."""

    #: Number of executions by path, payload and baggage.
    executions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    #: Number of jobs that could not be created, by path.
    unmade: Counter[str] = field(default_factory=Counter)
    bypassed: Counter[str] = field(default_factory=Counter)
    #: Number of baggage claims that failed, by path of a step without a job.
    unclaimed: Counter[str] = field(default_factory=Counter)
    joins: int = 0
    reason: str = ""
    result: str | None = None

    @property
    def jobs(self) -> int:
        return self.executions.total() + self.unmade.total()


def canonical(value: Any) -> str:
    """Return a value as text, without error messages, which are not compared."""
    return json.dumps(_without_errors(value), sort_keys=True)


def _without_errors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_errors(inner) for key, inner in value.items() if key != "error"}
    if isinstance(value, list):
        return [_without_errors(inner) for inner in value]
    return value


class UndecidedError(Exception):
    """The interpreter does not define the result of the run."""


class TooMuchError(UndecidedError):
    """The run has more jobs than the test allows."""


class Interpreter:
    def __init__(
        self,
        pipelines: Mapping[str, Settings],
        behave: Callable[[str, str, str], Behaviour],
        *,
        most_jobs: int = 10_000,
    ) -> None:
        """`behave` returns the behaviour for a plugin, a path and a payload."""
        self._pipelines, self._behave, self._most_jobs = pipelines, behave, most_jobs
        self._positions: dict[str, int] = {}
        self._ends: list[End] = []
        self.expected = ExpectedRun()

    def run(self, name: str, event_type: str, payload: dict[str, Any]) -> ExpectedRun:
        steps = self._pipelines[name]["steps"]
        self._number(steps, "")
        first = Line(payload=payload, type=event_type, run={"payload": payload, "pipeline": name})
        for line in self._sequence(steps, "", first):
            self._ends.append(End(line=line, counts=True))
        ends = sorted(self._ends, key=lambda end: (self._positions[end.line.at], end.line.order))
        failed = any(end.line.failed for end in ends)
        others = any(end.counts and not end.line.failed for end in ends)
        self.expected.reason = "completed" if not failed else "partial_success" if others else "step_failed"
        outputs = [end.line.job for end in ends if end.counts and end.line.job is not None]
        self.expected.result = outputs[-1][0] if outputs else None
        return self.expected

    # -- positions of steps

    def _number(self, steps: Steps, prefix: str) -> None:
        for path, step in _paths(steps, prefix):
            self._positions[path] = len(self._positions)
            for event_type, handlers in step.get("on_events", {}).items():
                self._number(handlers, f"{path}/{event_type}/")
            inner = self._inner(step) or step.get("split") or ()
            self._number(inner, f"{path}/")

    def _inner(self, step: Settings) -> Steps | None:
        called: Steps | None = self._pipelines[step["call"]]["steps"] if "call" in step else None
        return called or step.get("steps")

    # -- execution

    def _sequence(self, steps: Steps, prefix: str, first: Line) -> list[Line]:
        lines = [first]
        for path, step in _paths(steps, prefix):
            lines = [
                out for line in lines for out in ([line] if line.failed else self._step(step, path, line))
            ]
        return lines

    def _step(self, step: Settings, path: str, line: Line) -> list[Line]:
        conditions = [step.get("if")]
        if "call" in step:
            conditions.append(self._pipelines[step["call"]].get("if"))
        if not all(condition is None or _holds(condition, line) for condition in conditions):
            self.expected.bypassed[path] += 1
            return [replace(line, at=path, bypassed=path)]
        if "uses" in step:
            return self._use(step, path, line)
        inputs = _make(step, line)
        if inputs is None:
            self.expected.unclaimed[path] += 1
            return [replace(line, at=path, failed=True)]
        line = replace(line, baggage=inputs[1])
        if "split" in step:
            return [self._split(step, path, line)]
        inner = self._inner(step)
        assert inner is not None
        return self._sequence(inner, f"{path}/", line)

    def _use(self, step: Settings, path: str, line: Line) -> list[Line]:
        inputs = _make(step, line)
        if inputs is None:
            self.expected.unmade[path] += 1
            return [replace(line, at=path, job=(None,), failed=True)]
        payload, baggage = inputs
        self.expected.executions[path, canonical(payload), canonical(baggage)] += 1
        if self.expected.jobs > self._most_jobs:
            raise TooMuchError
        behaviour = self._behave(step["uses"], path, canonical(payload))
        after = replace(line, at=path, job=(behaviour.stdout,), baggage=baggage)
        if behaviour.fails:
            return [replace(after, failed=True)]
        events = [
            (event_type, {"result": behaviour.result} | event_payload)
            for event_type, event_payload in behaviour.events
        ]
        outs: list[Line] = []
        for index, (event_type, event_payload) in enumerate(
            events or [("ductile.step.succeeded", {"result": behaviour.result})]
        ):
            on = replace(after, payload=event_payload, type=event_type, order=(*line.order, index))
            handlers = step.get("on_events", {}).get(event_type, ())
            outs += self._sequence(handlers, f"{path}/{event_type}/", on)
        return outs

    def _split(self, step: Settings, path: str, line: Line) -> Line:
        branches: list[dict[str, Any]] = []
        ends: list[Line] = []
        for inner, branch in _paths(step["split"], f"{path}/"):
            outs = self._step(branch, inner, line)
            ends += outs
            status = "skipped" if outs[0].bypassed == inner else "succeeded"
            payloads = [out.payload for out in outs if not out.failed]
            branches.append(
                {
                    "id": inner.rpartition("/")[2],
                    "status": "failed" if len(payloads) < len(outs) else status,
                    "payload": payloads[-1] if payloads else None,
                    "payloads": payloads,
                }
            )
        jobs = [end.job for end in ends if end.job is not None]
        after = replace(line, at=path, job=jobs[-1] if jobs else None, bypassed=None)
        broken = any(end.failed for end in ends) and step.get("join") != "always"
        self._ends += [End(line=end, counts=broken) for end in ends if broken or end.failed]
        if broken:
            return replace(after, failed=True)
        self.expected.joins += 1
        return replace(after, payload={"branches": branches}, type="ductile.split.joined")


def _paths(steps: Steps, prefix: str) -> list[tuple[str, Settings]]:
    return [(f"{prefix}{step.get('id') or number}", step) for number, step in enumerate(steps, start=1)]


def _make(step: Settings, line: Line) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the payload and the baggage of a step; None if one of them cannot be made."""
    payload = {}
    for key, template in step.get("with", {}).items():
        if (value := _find(template.strip("{}"), line)) is MISSING:
            return None
        payload[key] = value
    baggage = dict(line.baggage)
    for name, source in step.get("baggage", {}).items():
        value = _find(source, line)
        if name in line.baggage and _has_errors(value):
            # Whether the claim repeats the value depends on the error messages in both.
            raise UndecidedError
        if value is MISSING or (name in line.baggage and line.baggage[name] != value):
            return None
        baggage[name] = value
    return (payload if "with" in step else line.payload), baggage


def _has_errors(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("status") == "failed" or any(map(_has_errors, value.values()))
    return isinstance(value, list) and any(map(_has_errors, value))


def _find(path: str, line: Line) -> Any:
    root, *keys = path.split(".")
    value: Any = {
        "payload": line.payload,
        "context": line.baggage,
        "event": {"type": line.type},
        "run": line.run,
    }[root]
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _holds(condition: Settings, line: Line) -> bool:
    """Evaluate a condition. Only the operators that the tests use are supported."""
    if "all" in condition:
        return all(_holds(part, line) for part in condition["all"])
    if "not" in condition:
        return not _holds(condition["not"], line)
    value = _find(condition["path"], line)
    match condition["op"]:
        case "exists":
            return value is not MISSING
        case "lt":
            return isinstance(value, int) and value < condition["value"]
        case "eq":
            return bool(value == condition["value"])
        case other:
            raise AssertionError(f"{other} is not known here")
