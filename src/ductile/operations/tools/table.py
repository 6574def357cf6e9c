"""The operations that are tools of an agent, with their names and what a client may assume about each.

One tool for each thing that an operator does, not one for each endpoint. Commands of plugins and pipelines
are tools too: see `ductile.operations.tools.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ductile.core.json import JsonValue
from ductile.operations.diagnose.findings import DoctorFinding, DoctorReport, FindingLevel
from ductile.operations.operation import Operation
from ductile.operations.pipeline_test.run import PipelineTestReport
from ductile.operations.response import Response
from ductile.operations.table import OPERATIONS
from ductile.struct import Value, field, replace

#: Characters of an answer. Four characters are about a token.
ANSWER_CHARACTERS = 16_000
#: Characters of an explanation or a digest, which an agent reads first: about 1,500 tokens.
SHORT_ANSWER_CHARACTERS = 5_000
#: Rows of a list if the call has no `limit`, and the largest `limit`.
DEFAULT_ROWS = 10
MAX_ROWS = 20


class ToolRow(Value):
    """A tool: its operation, and how calls and answers of the tool differ from those of the operation."""

    operation: str
    #: Whether the tool starts a job. A call then waits some time for the end of the job.
    starts_job: bool = False
    #: Whether the tool ends or replaces something that no other call can restore.
    destructive: bool = False
    #: Whether a second call with the same arguments changes nothing more.
    idempotent: bool = False
    #: Whether the tool changes nothing although its operation is not `read_only`.
    reads: bool = False
    #: The most characters of an answer.
    characters: int = ANSWER_CHARACTERS
    #: Names of fields that are left out of the answer, at any depth.
    omit: frozenset[str] = frozenset()
    #: Names of fields that are left out below one field only, by the name of that field.
    omit_below: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Returns a shorter response, made from the response of the operation.
    shape: Callable[[Any], Response] | None = None
    #: Values of fields that the caller does not choose.
    fixed: Mapping[str, JsonValue] = field(default_factory=dict)
    #: Fields that the tool requires although the operation does not.
    required: tuple[str, ...] = ()
    #: Replaces the summary of the operation.
    summary: str = ""


#: Fields of a job or an execution that only `job_show` needs.
_DETAILS = frozenset(
    (
        "id",
        "execution",
        "attempt",
        "max_attempts",
        "submitted_detail",
        "created_at",
        "parent_job_id",
        "artifacts",
        "exit_code",
        "job_status",
        "duration_ms",
    )
)


#: Fields of an execution that repeat those of its job.
_JOB_FIELDS = frozenset(
    (
        "id",
        "job_id",
        "plugin",
        "command",
        "job_status",
        "max_attempts",
        "submitted_by",
        "submitted_detail",
        "created_at",
        "parent_job_id",
        "run_id",
        "step",
        "token",
    )
)


def _problems_only(report: DoctorReport) -> DoctorReport:
    """Return the report without findings that are `ok`, the most serious first. Equal findings are merged."""
    levels = list(FindingLevel)
    groups: dict[tuple[object, ...], list[DoctorFinding]] = {}
    for finding in report.findings:
        if finding.level is not FindingLevel.OK:
            key = (finding.check, finding.level, finding.message, finding.fix)
            groups.setdefault(key, []).append(finding)
    findings = []
    for first, *others in groups.values():
        where = f"{first.where or first.message}, and {len(others)} more" if others else first.where
        findings.append(replace(first, where=where))
    return replace(report, findings=tuple(sorted(findings, key=lambda finding: -levels.index(finding.level))))


def _without_passed_steps(report: PipelineTestReport) -> PipelineTestReport:
    """Return the report without steps that did nothing, and without the steps of passed cases.

    If there is only one case, its steps are kept also if it has passed.
    """
    is_single = len(report.cases) == 1
    cases = []
    for case in report.cases:
        if case.passed and not is_single:
            cases.append(replace(case, steps=[], order=[], result=None))
        else:
            cases.append(replace(case, steps=[step for step in case.steps if step.jobs or step.because]))
    return replace(report, cases=cases)


def _short_tool(operation: str, *omit: str, **options: Any) -> ToolRow:
    """Return the row of a tool with a short answer."""
    return ToolRow(operation=operation, characters=SHORT_ANSWER_CHARACTERS, omit=frozenset(omit), **options)


def _reading_tool(operation: str, *omit: str, **options: Any) -> ToolRow:
    """Return the row of a tool whose answer is without these fields."""
    return ToolRow(operation=operation, omit=frozenset(omit), **options)


TOOLS: Mapping[str, ToolRow] = {
    "last_night": _short_tool("system.digest"),
    "what_changed": _short_tool("config.changes", "restorable", "event", "config"),
    "status": _reading_tool(
        "system.status", *_DETAILS, "started_at", "submitted_by", "run_id", "step", "state", "config"
    ),
    "doctor": _reading_tool(
        "system.doctor", shape=_problems_only, summary="Problems here, and how to fix them"
    ),
    "job_list": _reading_tool(
        "job.list", "execution", "attempt", "max_attempts", "started_at", "parent_job_id"
    ),
    "job_show": _reading_tool("job.show", omit_below={"executions": _JOB_FIELDS}),
    "job_wait": ToolRow(
        operation="job.wait", summary="Wait until a job has ended, and answer with its result"
    ),
    "job_explain": _short_tool("job.explain", "executions", "compared", "config", "config_loaded_at"),
    # The stdout of a plugin is its result.
    "job_logs": _reading_tool("job.logs", omit_below={"executions": _JOB_FIELDS | {"result"}}),
    "job_cancel": ToolRow(operation="job.cancel", destructive=True, idempotent=True),
    "job_cancel_many": ToolRow(operation="job.cancel_many", destructive=True, idempotent=True),
    "job_retry": ToolRow(operation="job.retry", starts_job=True),
    "job_retry_many": ToolRow(operation="job.retry_many"),
    "job_rerun": ToolRow(operation="job.rerun", starts_job=True),
    "run": ToolRow(operation="run.start", starts_job=True, summary="Run a plugin or a pipeline by its name"),
    "run_explain": _short_tool("pipeline.explain", *(_DETAILS - {"created_at"}), "graph_kept", "kind"),
    "run_retry": ToolRow(operation="job.retry_from_step", starts_job=True),
    "queue": _reading_tool("queue.figures", summary="How many jobs wait and run, plugin by plugin"),
    "tool_find": _reading_tool(
        "tool.list",
        "output_schema",
        "starts_job",
        "next_cursor",
        fixed={"operations": False, "cursor": None},
        required=("query",),
        summary="Tools whose name or description has words of the query, the best first, with their "
        "arguments: for a command or pipeline among many",
    ),
    "plugin_list": _reading_tool("plugin.list"),
    "plugin_show": _reading_tool("plugin.show", "call"),
    "plugin_stats": _reading_tool("plugin.stats"),
    "plugin_replay": ToolRow(
        operation="plugin.replay",
        fixed={"include_writes": False},
        summary="Run recorded requests of past jobs against a changed plugin: which answers differ",
    ),
    "pipeline_list": _reading_tool("pipeline.list"),
    "pipeline_show": _reading_tool("pipeline.show"),
    "pipeline_test": _reading_tool(
        "pipeline.test",
        "location",
        shape=_without_passed_steps,
        summary="What a changed pipeline would do with past runs, cases or a payload; no plugin is run. "
        "Without any of them: a dry run",
    ),
    "schedule_list": _reading_tool("schedule.list"),
    "schedule_explain": _short_tool("schedule.explain"),
    "schedule_pause": ToolRow(operation="schedule.pause", idempotent=True),
    "schedule_resume": ToolRow(operation="schedule.resume", idempotent=True),
    "schedule_run": ToolRow(operation="schedule.run", starts_job=True),
    "event_send": ToolRow(operation="event.send"),
    "event_explain": _reading_tool("event.explain"),
    "breaker_reset": ToolRow(operation="system.reset", idempotent=True),
    "webhook_list": _reading_tool("webhook.list"),
    "delivery_list": _reading_tool("webhook.deliveries"),
    "delivery_resend": ToolRow(operation="webhook.resend"),
    "delivery_resend_many": ToolRow(operation="webhook.resend_many"),
    "token_list": _reading_tool("token.list", "file", "line", "variable", "previous_valid"),
    "config_show": _reading_tool("config.value"),
    "config_diff": _reading_tool("config.diff"),
    "config_history": _reading_tool("config.history", "config", "event"),
    "config_plan": ToolRow(
        operation="config.plan_change",
        reads=True,
        omit=frozenset(("config",)),
        summary="Plan a change of the configuration and see what it would do; config_apply with the plan "
        "does it. Without arguments: the files on disk as they are",
    ),
    "config_apply": ToolRow(
        operation="config.apply",
        destructive=True,
        omit=frozenset(("config",)),
        fixed={"dry_run": False},
        required=("plan",),
        summary="Write, seal and load exactly what config_plan has shown, or refuse because something has "
        "changed. Undo it with config_plan rollback_to=previous",
    ),
}


def operation_of(row: ToolRow) -> Operation:
    """Return the operation that the tool runs."""
    return OPERATIONS[row.operation]


def is_read_only(row: ToolRow) -> bool:
    """Return whether the tool changes nothing."""
    operation = operation_of(row)
    is_read = operation.read_only or (operation.http is not None and operation.http.method == "GET")
    return is_read or row.reads
