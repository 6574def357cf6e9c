"""The meaning of a pipeline, implemented a second time: a recursive reading of the settings.

It knows no graph, no store, no scopes and no transactions. A step's answer is a function of its path and
its payload alone, so what has to run does not depend on the order in which things happen to run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Written = Mapping[str, Any]
Steps = Sequence[Written]
MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How a step answers in the end: with these events, or not at all if it fails."""

    stdout: str | None
    fails: bool = False
    result: str = ""
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    payload: dict[str, Any]
    type: str
    #: What `run` is in every step.
    run: dict[str, Any]
    baggage: dict[str, Any] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    #: What the last job on it printed, as a tuple of one; None if there was no job.
    job: tuple[str | None] | None = None
    #: Where it is, or where it ended.
    at: str = ""
    bypassed: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    line: Line
    #: Whether it is an end of the run itself, not one that a join took up.
    counts: bool


@dataclass(slots=True)
class ExpectedRun:
    """The expected end of a run."""

    #: By path, payload and baggage: how often it has to run.
    ran: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    #: By path: how often it could not be made.
    unmade: Counter[str] = field(default_factory=Counter)
    bypassed: Counter[str] = field(default_factory=Counter)
    #: By path of a step without a job: how often its baggage could not be claimed.
    unclaimed: Counter[str] = field(default_factory=Counter)
    joins: int = 0
    reason: str = ""
    result: str | None = None

    @property
    def jobs(self) -> int:
        return self.ran.total() + self.unmade.total()


def canonical(value: Any) -> str:
    """As text, without the words of errors: those are not what a run is judged by."""
    return json.dumps(_without_errors(value), sort_keys=True)


def _without_errors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_errors(inner) for key, inner in value.items() if key != "error"}
    if isinstance(value, list):
        return [_without_errors(inner) for inner in value]
    return value


class UndecidedError(Exception):
    """This reading does not define the result of the run."""


class TooMuchError(UndecidedError):
    """The run would have more jobs than the test has patience for."""


class Interpreter:
    def __init__(
        self,
        pipelines: Mapping[str, Written],
        behave: Callable[[str, str, str], Behaviour],
        *,
        most_jobs: int = 10_000,
    ) -> None:
        """`behave` is asked for a plugin, a path and a payload."""
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
        answered = [end.line.job for end in ends if end.counts and end.line.job is not None]
        self.expected.result = answered[-1][0] if answered else None
        return self.expected

    # -- where a step stands among all of them

    def _number(self, steps: Steps, prefix: str) -> None:
        for path, step in _paths(steps, prefix):
            self._positions[path] = len(self._positions)
            for event_type, handlers in step.get("on_events", {}).items():
                self._number(handlers, f"{path}/{event_type}/")
            inner = self._inner(step) or step.get("split") or ()
            self._number(inner, f"{path}/")

    def _inner(self, step: Written) -> Steps | None:
        called: Steps | None = self._pipelines[step["call"]]["steps"] if "call" in step else None
        return called or step.get("steps")

    # -- what it does

    def _sequence(self, steps: Steps, prefix: str, first: Line) -> list[Line]:
        lines = [first]
        for path, step in _paths(steps, prefix):
            lines = [
                out for line in lines for out in ([line] if line.failed else self._step(step, path, line))
            ]
        return lines

    def _step(self, step: Written, path: str, line: Line) -> list[Line]:
        wanted = [step.get("if")]
        if "call" in step:
            wanted.append(self._pipelines[step["call"]].get("if"))
        if not all(condition is None or _holds(condition, line) for condition in wanted):
            self.expected.bypassed[path] += 1
            return [replace(line, at=path, bypassed=path)]
        if "uses" in step:
            return self._use(step, path, line)
        made = _make(step, line)
        if made is None:
            self.expected.unclaimed[path] += 1
            return [replace(line, at=path, failed=True)]
        line = replace(line, baggage=made[1])
        if "split" in step:
            return [self._split(step, path, line)]
        inner = self._inner(step)
        assert inner is not None
        return self._sequence(inner, f"{path}/", line)

    def _use(self, step: Written, path: str, line: Line) -> list[Line]:
        made = _make(step, line)
        if made is None:
            self.expected.unmade[path] += 1
            return [replace(line, at=path, job=(None,), failed=True)]
        payload, baggage = made
        self.expected.ran[path, canonical(payload), canonical(baggage)] += 1
        if self.expected.jobs > self._most_jobs:
            raise TooMuchError
        answer = self._behave(step["uses"], path, canonical(payload))
        after = replace(line, at=path, job=(answer.stdout,), baggage=baggage)
        if answer.fails:
            return [replace(after, failed=True)]
        events = [(kind, {"result": answer.result} | given) for kind, given in answer.events]
        outs: list[Line] = []
        for index, (kind, given) in enumerate(
            events or [("ductile.step.succeeded", {"result": answer.result})]
        ):
            on = replace(after, payload=given, type=kind, order=(*line.order, index))
            handlers = step.get("on_events", {}).get(kind, ())
            outs += self._sequence(handlers, f"{path}/{kind}/", on)
        return outs

    def _split(self, step: Written, path: str, line: Line) -> Line:
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


def _paths(steps: Steps, prefix: str) -> list[tuple[str, Written]]:
    return [(f"{prefix}{step.get('id') or number}", step) for number, step in enumerate(steps, start=1)]


def _make(step: Written, line: Line) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The payload and the baggage of a step; None if one of them cannot be had."""
    payload = {}
    for key, template in step.get("with", {}).items():
        if (found := _find(template.strip("{}"), line)) is MISSING:
            return None
        payload[key] = found
    baggage = dict(line.baggage)
    for name, source in step.get("baggage", {}).items():
        found = _find(source, line)
        if name in line.baggage and _has_errors(found):
            # Whether the claim repeats the value depends on the words of the errors in both.
            raise UndecidedError
        if found is MISSING or (name in line.baggage and line.baggage[name] != found):
            return None
        baggage[name] = found
    return (payload if "with" in step else line.payload), baggage


def _has_errors(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("status") == "failed" or any(map(_has_errors, value.values()))
    return isinstance(value, list) and any(map(_has_errors, value))


def _find(path: str, line: Line) -> Any:
    root, *keys = path.split(".")
    found: Any = {
        "payload": line.payload,
        "context": line.baggage,
        "event": {"type": line.type},
        "run": line.run,
    }[root]
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return MISSING
        found = found[key]
    return found


def _holds(condition: Written, line: Line) -> bool:
    """Of the operators only those that the tests use."""
    if "all" in condition:
        return all(_holds(part, line) for part in condition["all"])
    if "not" in condition:
        return not _holds(condition["not"], line)
    found = _find(condition["path"], line)
    match condition["op"]:
        case "exists":
            return found is not MISSING
        case "lt":
            return isinstance(found, int) and found < condition["value"]
        case "eq":
            return bool(found == condition["value"])
        case other:
            raise AssertionError(f"{other} is not known here")
