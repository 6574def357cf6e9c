"""Every command prints JSON in the shape that docs/reference/json.md shows.

All commands run in a workspace with many jobs, first without a daemon and then with one, and the shapes of
their responses are merged. With UPDATE_GOLDEN=1 in the environment the page is written anew, for a person to
review the difference.
"""

from __future__ import annotations

import io
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, PATIENCE, SLOW, Daemon, Workspace, a_daemon, a_workspace, answering
from builders.described import assert_matches
from builders.plugins import a_manifest, a_plugin
from builders.receivers import a_receiver
from builders.shapes import Shape, ShapeWriter, types_by_key
from ductile.api.openapi_schemas import schema_ref, schemas
from ductile.cli.command_table import NOUNS
from ductile.cli.main import run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
BEGIN, END = "<!-- generated: shapes -->\n", "<!-- end of generated -->\n"
ACTIONS = {f"{noun.name} {action.name}": action for noun in NOUNS for action in noun.actions}
#: Commands that the page describes in words: a screen, one that needs the HTTP API, and one that speaks MCP.
WITHOUT_SHAPES = {"system watch", "ui open", "mcp serve"}
#: Commands that change nothing. `plugin test` runs a plugin outside of any queue; `pipeline graph` draws.
READING = {
    *("system status", "system breaker", "system logs", "system doctor", "system selfcheck", "system watch"),
    *("system unit", "system completion", "ui open", "mcp serve"),
    *("config check", "config show", "config get", "config schema", "config diff", "config history"),
    *("plugin list", "plugin show", "plugin check", "plugin test", "plugin state", "plugin facts"),
    "plugin replay",
    *("pipeline list", "pipeline show", "pipeline check", "pipeline graph", "pipeline explain"),
    "pipeline test",
    *("job list", "job show", "job explain", "job export", "job tree", "job logs", "job wait"),
    *("queue status", "queue list", "plugin stats", "system digest"),
    *("schedule list", "schedule next", "schedule history", "schedule explain"),
    *("event tail", "event explain", "webhook list", "webhook deliveries", "token list", "token show"),
}
#: Named shapes: the command that prints each, and the keys that lead to it.
NAMED = {
    "Job": ("job list", "jobs"),
    "WholeJob": ("job wait",),
    "RunJob": ("plugin run",),
    "JobNode": ("job tree", "tree"),
    "LogRow": ("system logs", "logs"),
    "Execution": ("job logs", "executions"),
    "Step": ("pipeline explain", "steps"),
    "Event": ("event tail", "events"),
    "Plugin": ("plugin list", "plugins"),
    "PluginStats": ("plugin stats", "plugins"),
    "Schedule": ("schedule list", "schedules"),
    "StepNode": ("pipeline show", "tree"),
    "SealEntry": ("config lock", "sealed"),
    "Problem": ("config check", "problems"),
}
#: Keys of responses whose value is text of the operator or a JSON Schema.
OPEN_KEYS = {"config show": "value", "config schema": "value"}
#: Commands whose response is also sent over HTTP, with the name of its schema there.
API_SCHEMAS = {
    "job list": "JobPage",
    "job show": "FullJob",
    "job tree": "JobTree",
    "job logs": "JobLog",
    "job explain": "JobExplanation",
    "job export": "JobExport",
    "job cancel": "CancelledJob",
    "job retry": "RetriedJob",
    "event send": "Published",
    "event explain": "ExplainedEvent",
    "pipeline test": "PipelineTestReport",
    "schedule list": "ScheduleList",
    "schedule pause": "ScheduleSwitched",
    "schedule resume": "ScheduleSwitched",
    "schedule run": "ScheduleStarted",
    "system doctor": "DoctorReport",
    "system selfcheck": "InvariantReport",
    "system reload": "ConfigReloaded",
    "config history": "ConfigHistory",
    "system reset": "BreakersReset",
    "system sweep": "StoreSwept",
}
#: Options that change the shape of a response.
FORMS = ("--plugin", "--dry-run", "--no-wait", "--verify", "--from-step", "--output", "--record")
#: Keys that are null or empty in all responses here, and the type that they have otherwise.
KNOWN = {
    **dict.fromkeys(("event_context_id", "probe_job_id", "compared_with", "duplicate_of"), "id"),
    **dict.fromkeys(("cancel_requested_at", "held_since", "opened_at", "next_attempt_at"), "instant"),
    **dict.fromkeys(("column", "late_ms", "cost"), "number"),
    **dict.fromkeys(("keys", "kept", "unsealed", "problem", "server", "node"), "text"),
    "nodes": "{name: text, host: text, alive: true or false, leader: true or false, started_at: instant, "
    "heartbeat_seconds: number, version: text, config: text, workers: number, busy: number, plugins: [text]}",
    "without_node": "{plugin: text, node: text or null, jobs: number, held_since: instant}",
    "broken_invariants": "{invariant: text, ids: [id]}",
    "schedules": "{plugin: text, id: text, change: text, next_run_before: instant or null, "
    "next_run: instant or null}",
    **dict.fromkeys(("idempotent", "retry_safe"), "true or false"),
    **dict.fromkeys(
        ("commit", "optional_config", "missing_config", "interface", "discarded", "kept", "ended_schedules"),
        "text",
    ),
    **dict.fromkeys(("reloaded", "pending"), "any JSON"),
    **dict.fromkeys(("input_schema", "output_schema", "context"), "any JSON"),
    **dict.fromkeys(("build", "on_hook", "from_plugin", "because", "skip", "about", "preset"), "text"),
    **dict.fromkeys(
        ("delivery_header", "event", "warning", "errors", "offenders", "damage", "removed"), "text"
    ),
    **dict.fromkeys(("changed", "settings", "would_reset", "required_config", "instances", "added"), "text"),
    "skipped": "{plugin: text, schedule: text, reason: text or null, count: number, first: text, last: text}",
    "deliveries": "{receiver: text, dropped: number, gone: number, example: id, error: text or null}",
    "refusals": "{id: id, code: text, message: text, hint: text or null}",
    "on_disk": "{added: [text], changed: [text], removed: [text], error: text or null}",
    **dict.fromkeys(("compared", "not_compared"), "text"),
    "first_change": "{step: text, job_id: id, plugin: text, command: text, "
    "changes: [{field: text, change: text, good: text or null, now: text or null}]..., "
    "needed_by: [{step: text, place: text, reference: text}]...}",
    "waits_for": "{job_id: id, plugin: text, command: text, status: text, since: instant, "
    "attempt: number, max_attempts: number}",
    "outside": "{from: text, to: text}",
    "faults": "{step: text, error: text}",
    "differences": "{what: text, good: text or null, now: text or null}",
    "not_replayed": "{job_id: id, command: text, reason: text}",
    **dict.fromkeys(("other_input", "dropped_events", "would_start"), "text"),
    "left_out": "{job_id: id, reason: text}",
    "gaps": "{from: instant, to: instant, expected: number, found: number}",
    "dropped": "{target: text, reason: text}",
    "unhealthy": "{job_id: id or null, error: text or null, at: instant}",
    "artifacts": "any JSON",
    "ends": "{plugin: text, jobs: number, runs: number}",
    "waiting_since": "instant",
    "skipped_until": "instant",
}
#: Keys that are never null here, although they may be: of jobs that have not run, of schedules that have
#: not fired, of processes that were killed.
NULLABLE = frozenset(
    {
        "listen",
        *(
            "started_at",
            "exit_code",
            "stdout",
            "stderr",
            "trace_id",
            "last_fired_at",
            "last_job_id",
            "next_at",
        ),
        *("nominal_at", "opened_at", "last_failure_at", "file", "hint", "refused", "health"),
        *("duration_ms", "rule", "timezone", "next_local", "local"),
    }
)
KEEPING = (
    "#!/bin/sh\ncat >/dev/null\n"
    'echo \'{"status": "ok", "result": "made", "state_updates": {"seen": 1}, '
    '"events": [{"type": "made", "payload": {"total": 5}}]}\'\n'
)
FACTS = (
    "config_keys: {optional: [api_key]}\n"
    "fact_outputs:\n  - {when: {command: handle}, from: state_updates, fact_type: seen}\n"
)
ACCOUNT = (
    '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": {"url": "https://example.org/agree"}}\'\n'
)
OAUTH = "oauth_start, oauth_callback"
MORE = """\
  account: {}
  maker: {config: {api_key: told-in-the-open}}
  broken:
    retry: {max_attempts: 1}
    circuit_breaker: {threshold: 1}
    schedules: [{id: hourly, every: 1h, timezone: Europe/Berlin}]
  patient: {retry: {backoff_base: 1h}}
  slow: {}
  gone: {}
pipelines:
  - name: order
    on: order.placed
    steps:
      - {id: make, uses: maker}
      - {id: big, uses: echo, if: {path: payload.total, op: gt, value: 10}}
      - id: both
        split: [{id: left, uses: echo}, {id: right, uses: broken}]
      - {id: after, uses: echo}
state_webhooks: {allow: [127.0.0.1]}
"""
HOOK = (
    'webhooks: {listen: "127.0.0.1:0", endpoints: [{name: gh, path: /gh, plugin: echo, secret_ref: hook}]}\n'
)


@dataclass(slots=True)
class CommandRecorder:
    """Runs commands in this process, and keeps their responses and the shapes of these."""

    directory: Path
    shapes: dict[str, Shape] = field(default_factory=lambda: defaultdict(Shape))
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, words: str, *more: str, status: int = 0, dry_run: bool = False) -> dict[str, Any]:
        """Return the response of `words`, a noun and an action. With `dry_run` a run with --dry-run comes
        first.
        """
        if dry_run:
            assert self(words, "--dry-run", *more)["dry_run"] is True
        exit_status, response = self.run(words, *more)
        assert exit_status == status, (words, more, response)
        assert words.endswith("check") or "error" not in response or "status" in response, response
        form = next((option for option in FORMS if option in more), None)
        title = f"{words} {form}" if form else words
        self.shapes[title].add(_without_varying_lists(words, response), OPEN_KEYS.get(words, ""))
        self.answers[title].append(response)
        return response

    def run(self, words: str, *more: str) -> tuple[int, dict[str, Any]]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home"), "EDITOR": "true"}
        out, err = io.StringIO(), io.StringIO()
        line = [*words.split(), "--config", str(self.directory / "demo"), "--json", *more]
        exit_status = run(line, environ, out, err)
        assert err.getvalue() == "", line
        response = json.loads(out.getvalue())
        assert isinstance(response, dict), line
        return exit_status, response


def _without_varying_lists(words: str, response: dict[str, Any]) -> dict[str, Any]:
    """Empty the lists that depend on the progress of the scheduler: the page has them from `KNOWN`."""
    if words == "system reload":
        return {**response, "schedules": []}
    if words == "config rollback":
        return {**response, "reload": {**response["reload"], "ends": [], "schedules": []}}
    return response


def a_busy_workspace(directory: Path) -> Workspace:
    workspace = a_workspace(directory, MORE)
    root = directory / "demo" / "plugins"
    a_plugin(root, "maker", script=KEEPING, manifest=a_manifest("maker", extra=FACTS))
    a_plugin(root, "account", script=ACCOUNT, manifest=a_manifest("account").replace("health", OAUTH))
    for name, script in (("broken", BROKEN), ("patient", BROKEN), ("slow", SLOW)):
        workspace.plugin(name, script)
    (root / "half-done").mkdir()
    (root / "half-done" / "run.py").write_text("")
    (directory / "demo" / "tokens.yaml").write_text("tokens: []\n")
    (directory / "demo" / ".env").write_text("")
    workspace.config.write_text(
        "include: [tokens.yaml]\nenvironment_vars: {include: [.env]}\n" + workspace.config.read_text()
    )
    return workspace


def record_tokens(record: CommandRecorder) -> None:
    """Record tokens: after a rotation the old secret is valid for a time, or not at all."""
    record("token show", "agent")
    record("token rotate", "agent", dry_run=True)
    record("token rotate", "agent", "--keep-old", "0s")
    record("token rotate", "agent")
    record("token rotate", "agent")
    record("token show", "agent")
    record("token list")


def record_an_added_plugin(record: CommandRecorder, source: Path) -> None:
    record("plugin test", str(source))
    record("plugin add", str(source), dry_run=True)
    record("plugin show", source.name)
    record("plugin update", source.name, dry_run=True)
    record("plugin remove", source.name, dry_run=True)


def record_test_cases(record: CommandRecorder, file: Path) -> None:
    """Record test cases of past runs, of a payload, and one whose expectations are not met."""
    record("pipeline test", "order", "--payload", '{"total": 5}')
    record("pipeline test", "order", "--record", "last")
    record("pipeline test", "order", "--last", "200")
    expected = {"status": "failed", "error": "paper", "steps": {"mak": {}, "big": {"outcome": "succeeded"}}}
    case = {"name": "one", "steps": {"make": {"result": 1}}, "expect": expected}
    file.write_text(json.dumps({"pipeline": "order", "cases": [case]}))
    record("pipeline test", "order", "--case", str(file), status=1)


def record_an_authorisation(record: CommandRecorder) -> None:
    assert record("plugin authorize", "account", "--dry-run")["dry_run"] is True
    record("plugin authorize", "account", "--code", "http://127.0.0.1/?code=1&state=2")


def record_without_a_daemon(record: CommandRecorder, workspace: Workspace) -> None:
    """Record commands on files, and commands on the store alone."""
    directory = workspace.directory
    record("config init", str(directory / "new"), dry_run=True)
    record("config schema")
    record("config check", status=78)
    valid_text = workspace.config.read_text()
    workspace.append("servise: {}\n")
    record("config check", status=78)
    workspace.config.write_text(valid_text)
    record("config lock", dry_run=True)
    record("token create", "hook", dry_run=True)
    workspace.append(HOOK)
    record("config lock")
    record("token create", "agent", "--scopes", "jobs:ro,nobody:ro", dry_run=True)
    record_tokens(record)
    record("token revoke", "agent", dry_run=True)
    record("config check", status=78)
    record("config show", "service")
    for key in ("service.log_level", "service.tick_interval"):
        record("config get", key)
    record("config set", "service.max_hops", "10", "--lock", dry_run=True)
    record("config unset", "service.max_hops", "--lock", dry_run=True)
    record("config edit", dry_run=True)
    record("plugin list")
    record("plugin show", "maker")
    record("plugin show", "broken")
    record("plugin show", "gone")
    record("plugin check", status=78)
    record("plugin check", "echo")
    record("plugin new", "fresh", "--lang", "sh", "--dir", str(directory), dry_run=True)
    record("plugin lock", "echo", dry_run=True)
    record("plugin disable", "echo", dry_run=True)
    record("plugin enable", "echo", dry_run=True)
    record_an_added_plugin(record, directory / "fresh")
    record("pipeline show", "order")
    record("pipeline check")
    record("pipeline check", "order", "--payload", '{"total": 5}')
    record("pipeline graph", "order")
    record("pipeline graph", "order", "--output", str(directory / "order.mmd"))
    record("system completion", "bash")
    record("system unit")
    record("system start", "--dry-run")
    record("system doctor", status=1)
    record("system selfcheck")
    record("system status")
    record("plugin run", "maker", "handle", dry_run=True)
    record_copies(record, directory)
    record("skill export", str(directory / "skill"), dry_run=True)
    record("event send", "order.nobody", dry_run=True)


def record_copies(record: CommandRecorder, directory: Path) -> None:
    saved = str(directory / "saved.tar.gz")
    record("system backup", saved, dry_run=True)
    record("system backup", saved, "--verify")
    record("system restore", saved, "--to", str(directory / "back"), dry_run=True)
    record("system move-store", "--to", str(directory / "moved.db"), dry_run=True)


def record_jobs(record: CommandRecorder, daemon: Daemon, url: str) -> None:
    """Record commands on succeeded, failed, waiting and running jobs."""
    succeeded = record(
        "plugin run", "maker", "handle", "--payload", '{"a": 1}', "--dedupe-key", "once", dry_run=True
    )
    deduplicated = record("plugin run", "maker", "handle", "--dedupe-key", "once")
    assert deduplicated["job_id"] == succeeded["job_id"]
    failed = record("plugin run", "broken", status=1)
    record("plugin exec", "--", "echo", "hello", dry_run=True)
    record("plugin exec", "--no-wait", "--", "true")
    reported = record("plugin run", "maker", "handle", "--state-webhook-url", url)
    waiting = record("plugin run", "patient", "--retry", "--no-wait")
    running = record("plugin run", "slow", "--no-wait")
    daemon.wait_for("breaker.changed")
    daemon.wait_for("job.retrying", lambda line: line["job_id"] == waiting["job_id"])
    daemon.wait_until_started(running["job_id"])
    daemon.wait_for("delivery.delivered", lambda line: line["job_id"] == reported["job_id"])
    pipeline_run = record("pipeline run", "order", "--payload", '{"total": 1}', dry_run=True, status=1)
    record("pipeline list")
    record("pipeline explain", pipeline_run["job_id"])
    record("job wait", succeeded["job_id"])
    record("job wait", waiting["job_id"], "--timeout", "10ms", status=75)
    for job in (succeeded, failed, running, pipeline_run, waiting):
        record("job show", job["job_id"])
        record("job explain", job["job_id"])
        record("job tree", job["job_id"])
        record("job logs", job["job_id"])
    for words in ("queue list", "queue status", "job list", "system logs", "plugin list", "webhook list"):
        record(words)
    record("job list", "--limit", "1")
    record("system status")
    record("system status", "--health")
    record("job cancel", running["job_id"], dry_run=True)
    record("job wait", running["job_id"], status=1)
    record("job logs", running["job_id"])
    record("job cancel", record("plugin run", "slow", "--no-wait")["job_id"])
    record("job rerun", reported["job_id"], dry_run=True)
    record("job rerun", reported["job_id"])
    record("job export", reported["job_id"])
    record("job export", pipeline_run["job_id"], "--output", str(record.directory / "chain.json"))
    record("job retry", failed["job_id"], dry_run=True)
    # The schedule of a poll may not be run while a poll is unfinished.
    record("job wait", failed["job_id"], status=1)
    record("job retry", pipeline_run["job_id"], "--from-step", "make", dry_run=True)
    record("queue purge", "--all", dry_run=True)
    record("queue purge", "patient")
    record("job retry", "--plugin", "patient", dry_run=True)
    daemon.wait_until_started(record("plugin run", "slow", "--no-wait")["job_id"])
    record("job cancel", "--plugin", "slow", dry_run=True)
    deliveries = record("webhook deliveries", "--job", reported["job_id"], "--status", "delivered")
    record("webhook resend", deliveries["deliveries"][0]["id"], dry_run=True)
    for options in (("--dry-run",), ()):
        record("webhook resend", "--plugin", "maker", "--status", "delivered", *options)
    record("webhook send", "gh", "--dry-run")


def record_the_rest(record: CommandRecorder, workspace: Workspace) -> None:
    """Record commands on schedules, events, plugin state and the daemon, and stop the daemon."""
    record("schedule list")
    record("schedule next", "-n", "2")
    record("schedule run", "broken", "--dry-run")
    record("job wait", record("schedule run", "broken")["job_id"], status=1)
    record("schedule history", "broken")
    record("schedule explain", "broken")
    record("schedule pause", "broken", dry_run=True)
    record("schedule explain", "broken")
    record("schedule list")
    record("schedule resume", "broken", dry_run=True)
    record("event send", "order.placed", "--payload", "{}", dry_run=True)
    record("event explain", "order.placed", "--payload", "{}")
    record("event tail")
    record("plugin show", "maker")
    record("plugin stats")
    record("system digest")
    record("plugin state", "maker")
    record("plugin facts", "maker")
    record("system breaker", "broken")
    record("system reset", "broken", dry_run=True)
    workspace.plugin("added", BROKEN)
    workspace.config.write_text(
        workspace.config.read_text().replace("  slow: {}", "  slow: {}\n  added: {schedule: {every: 1h}}")
    )
    record("config diff")
    record("config apply", dry_run=True)
    record("config history")
    record("config rollback", "--keep-env", dry_run=True)
    record("config rollback", "--keep-env")  # back again
    record("system reload", dry_run=True)
    record("plugin disable", "added", dry_run=True)
    record("plugin enable", "added", dry_run=True)
    record("system doctor", status=1)
    record("system selfcheck")
    other = a_plugin(workspace.directory, "other", script=answering({"status": "ok", "result": "other"}))
    record("plugin replay", "echo", "--include-writes", "--candidate", str(other), status=1)
    record_test_cases(record, workspace.directory / "cases.yaml")
    record("system sweep", dry_run=True)
    record("system stop", dry_run=True)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> CommandRecorder:
    directory = tmp_path_factory.mktemp("busy")
    workspace = a_busy_workspace(directory)
    recorder = CommandRecorder(directory)
    record_without_a_daemon(recorder, workspace)
    record_an_authorisation(recorder)
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        record_jobs(recorder, daemon, receiver.url())
        record_the_rest(recorder, workspace)
        daemon.process.wait(PATIENCE)
    # The store still has a schedule that the configuration no longer has.
    workspace.config.write_text(workspace.config.read_text().replace("{id: hourly,", "{id: at_noon,"))
    recorder("config lock")
    recorder("schedule list")
    return recorder


def named_shapes(recorder: CommandRecorder) -> dict[str, Shape]:
    """Return the named shapes: each merges all objects of all responses that have the same keys."""
    named = {}
    for name, (words, *path) in NAMED.items():
        shape = recorder.shapes[words]
        for key in path:
            shape = shape.keys[key]
        keys = set((shape.items or shape).keys)
        named[name] = Shape()
        for nested in [part for whole in recorder.shapes.values() for part in whole.inside()]:
            if set(nested.keys) == keys:
                named[name].merge(nested)
    return named


def generated_part(recorder: CommandRecorder) -> str:
    named = named_shapes(recorder)
    known = types_by_key([*recorder.shapes.values()]) | KNOWN
    names = {frozenset(shape.keys): name for name, shape in named.items()}
    formatter = ShapeWriter(names=names, known=known, nullable=NULLABLE)
    lines = ["## Shapes with a name", ""]
    for name, shape in named.items():
        lines += [f"### {name}", "", "```text", formatter.text_of(shape, in_full=True), "```", ""]
    for noun in NOUNS:
        lines += [f"## {noun.name}", ""]
        for action in noun.actions:
            words = f"{noun.name} {action.name}"
            forms = {
                form: shape for form, shape in recorder.shapes.items() if f"{form} ".startswith(f"{words} ")
            }
            lines += [f"### ductile {words}", ""] if forms else []
            for form, shape in sorted(forms.items()):
                lines += [] if form == words else [f"With `{form.removeprefix(words).strip()}`:", ""]
                lines += ["```text", formatter.text_of(shape), "```", ""]
    return "\n".join(lines)


def test_the_page_tells_the_shapes_as_they_are(recorder: CommandRecorder) -> None:
    """Shapes are stable. A key that goes, or changes its type, changes this page."""
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    written = f"{head}{BEGIN}\n{generated_part(recorder)}\n{END}{rest.partition(END)[2]}"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(written)
    assert written == PAGE.read_text(), "if it is meant so, write the page anew with UPDATE_GOLDEN=1"


@pytest.mark.parametrize(("words", "shape"), API_SCHEMAS.items())
def test_commands_answer_as_the_api_does(recorder: CommandRecorder, words: str, shape: str) -> None:
    """Command and endpoint share one operation, and one description of its response."""
    assert recorder.answers[words]
    for response in recorder.answers[words]:
        assert_matches({"schemas": dict(schemas())}, schema_ref(shape), {**response, "message": "for people"})


def test_every_command_is_recorded(recorder: CommandRecorder) -> None:
    """Every command prints JSON, and none is missing here."""
    assert {" ".join(words.split()[:2]) for words in recorder.shapes} | WITHOUT_SHAPES == set(ACTIONS)


def test_every_mutation_has_a_dry_run(recorder: CommandRecorder) -> None:
    """Every mutation has --dry-run, and its response says that nothing was done."""
    dry_runs = {words.removesuffix(" --dry-run") for words in recorder.shapes if words.endswith(" --dry-run")}
    assert dry_runs == {
        words for words, action in ACTIONS.items() if any("--dry-run" in o.flags for o in action.options)
    }
    assert dry_runs == set(ACTIONS) - READING


def test_nothing_on_the_page_is_left_open(recorder: CommandRecorder) -> None:
    """`KNOWN` has the type of every key that was null or empty every time."""
    assert [line for line in generated_part(recorder).splitlines() if "?" in line.partition(": ")[2]] == []
