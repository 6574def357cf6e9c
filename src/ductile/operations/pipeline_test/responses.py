"""The responses of a case as outcomes, by the functions that read the output of real processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta

from msgspec import UNSET

from ductile.config.schema.pipeline_cases import CaseOccurrence, CaseResponse, CaseStep
from ductile.config.snapshot import Snapshot
from ductile.core.expressions.paths import MISSING
from ductile.core.jobs.model import Evidence, Failed, Job, JobReason, Outcome, OutputFormat
from ductile.core.json import JsonObject, JsonValue
from ductile.core.json_differences import compare_values
from ductile.core.runs.expectations import RunDifference
from ductile.core.runs.graph import Graph
from ductile.core.runs.simulation import SimulatedExecution
from ductile.core.scripts import Script
from ductile.engine.launches import RunnablePlugin, find_runnable
from ductile.operations.pipeline_test.cases import has_response
from ductile.protocol.manifest.model import Command
from ductile.runner.interpret import interpret
from ductile.runner.port import DeadlinePassed, Exited, ExitStatus, ProcessOutput

_SUCCESS = CaseStep()


class CaseResponder:
    """Responds as the steps of one case. Records which responses were used, and which had to be made up."""

    def __init__(self, snapshot: Snapshot, graph: Graph, steps: Mapping[str, CaseStep]) -> None:
        self._snapshot, self._graph, self._steps = snapshot, graph, steps
        self._chosen: dict[str, CaseStep | CaseOccurrence] = {}
        self._unused = {path: [*step.occurrences] for path, step in steps.items()}
        self._executions: dict[str, int] = {}
        #: Steps that succeeded with a synthetic response.
        self.synthetic: dict[str, None] = {}
        #: Steps that got another input than the one that their response was recorded for.
        self.other_input: dict[str, None] = {}
        self.differences: list[RunDifference] = []

    def respond(self, execution: SimulatedExecution) -> Outcome:
        """Return the outcome of an execution by the response of the case, or by a synthetic one."""
        job = execution.job
        runnable = find_runnable(self._snapshot, job.plugin, job.command)
        if not isinstance(runnable, RunnablePlugin):
            return runnable
        if job.id not in self._chosen:
            self._chosen[job.id] = self._choose(execution)
        chosen, number = self._chosen[job.id], self._executions.get(job.id, 0)
        self._executions[job.id] = number + 1
        response: CaseResponse = chosen
        if chosen.attempts:
            response = chosen.attempts[min(number, len(chosen.attempts) - 1)]
        if not has_response(response):
            self.synthetic[job.step_path or ""] = None
        command = runnable.installed.manifest.commands[job.command]
        step = self._graph.step(job.step_path)
        timeout = runnable.plugin.timeout_for(job.command)
        if step is not None and step.timeout is not None:
            timeout = timedelta(seconds=step.timeout)
        return outcome_of(response, job, command, runnable.installed.script, timeout)

    def _choose(self, execution: SimulatedExecution) -> CaseStep | CaseOccurrence:
        """Return the entry for this run of the step: the first unused one that is for its input.

        If all are for other inputs, the first unused one.
        """
        path = execution.job.step_path or ""
        step = self._steps.get(path, _SUCCESS)
        if not step.occurrences:
            return step
        unused = self._unused[path]
        if not unused:
            count = len(step.occurrences)
            self.differences.append(
                RunDifference(
                    path=("steps", path),
                    expected=count,
                    actual=MISSING,
                    because=f"it ran more often than the case has responses for, which is {count}",
                    hint="add an entry to its occurrences",
                )
            )
            return _SUCCESS
        payload = execution.payload
        fitting: list[CaseOccurrence] = []
        for occurrence in unused:
            part = {key: payload[key] for key in occurrence.given or {} if key in payload}
            if occurrence.given is not None and not compare_values(dict(occurrence.given), part):
                fitting.append(occurrence)
        # An entry for exactly this payload comes before one for a part of it, and that before one for any.
        fitting.sort(key=lambda occurrence: len(occurrence.given or {}) != len(payload))
        fitting += [occurrence for occurrence in unused if occurrence.given is None]
        if not fitting:
            self.other_input[path] = None
        chosen = (fitting or unused)[0]
        # By identity: equal entries are for one run each.
        self._unused[path] = [occurrence for occurrence in unused if occurrence is not chosen]
        return chosen


def outcome_of(
    response: CaseResponse, job: Job, command: Command, script: Script | None, timeout: timedelta
) -> Outcome:
    """Return the outcome of an execution that ends with the response."""
    if response.reason is not None and response.error is not None:
        stdout = json.dumps(_plugin_output(response, job, command))
        return Failed(
            reason=JobReason(response.reason),
            error=response.error,
            permanent=not response.retry,
            evidence=Evidence(stdout=stdout, exit_code=1),
        )
    is_script = script is not None and script.output is not OutputFormat.PROTOCOL
    status, stderr = response.exit, response.stderr or ""
    if response.exit is not None or response.timed_out:
        stdout = ""
    elif is_script and response.error is not None:
        stdout, stderr, status = "", response.error, 1
    elif is_script and script is not None:
        result = f"synthetic result of {job.step_path}" if response.result is UNSET else response.result
        as_text = script.output is OutputFormat.TEXT and isinstance(result, str)
        stdout = result if as_text and isinstance(result, str) else json.dumps(result)
    else:
        stdout = json.dumps(_plugin_output(response, job, command))
    output = ProcessOutput(
        status=ExitStatus(exit_code=status or 0),
        stdout=stdout.encode(errors="surrogatepass"),
        stderr=stderr.encode(errors="surrogatepass"),
    )
    if response.timed_out:
        return interpret(DeadlinePassed(output=output, timeout=timeout), script).outcome
    return interpret(Exited(output=output), script).outcome


def _plugin_output(response: CaseResponse, job: Job, command: Command) -> JsonObject:
    """Return the response that the plugin would print."""
    if response.error is not None:
        printed: JsonObject = {"status": "error", "error": response.error, "retry": response.retry}
        return printed if response.result is UNSET else {**printed, "result": response.result}
    result: JsonValue = (
        f"synthetic result of {job.step_path}" if response.result is UNSET else response.result
    )
    events: list[JsonValue] = []
    for event in response.events:
        entry: JsonObject = {"type": event.type, "payload": dict(event.payload)}
        if event.dedupe_key is not None:
            entry["dedupe_key"] = event.dedupe_key
        events.append(entry)
    declared = command.emits[0] if len(command.emits) == 1 else None
    if not has_response(response) and declared is not None and "*" not in declared.type:
        # The manifest says what it emits, so that later steps find the values in their payload.
        events.append({"type": declared.type, "payload": _synthetic_payload(declared.values)})
    return {"status": "ok", "result": result, "events": events}


def _synthetic_payload(names: Sequence[str]) -> JsonObject:
    """Return a payload with a text for each name that a manifest declares, such as `payload.item.title`."""
    payload: JsonObject = {}
    for name in names:
        *outer, last = name.removeprefix("payload.").split(".")
        parent: JsonValue = payload
        for key in outer:
            parent = parent.setdefault(key, {}) if isinstance(parent, dict) else None
        if isinstance(parent, dict):
            parent.setdefault(last, f"synthetic {last}")
    return payload
