"""Every command prints JSON in the shape that docs/reference/json.md shows.

All commands are run in a place where a lot has happened, without a daemon and then with one, and what they
answer is put together. With UPDATE_GOLDEN=1 in the environment the page is written anew, and the difference
is then read by a person.
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
#: The page describes them in words: a screen, one that needs the HTTP API, and one that speaks MCP.
LINES = {"system watch", "ui open", "mcp serve"}
#: What only looks; `plugin test` runs a plugin outside of any queue, and `pipeline graph` draws.
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
#: Shapes with a name. The first command prints it, under the keys that follow.
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
#: They answer with what the operator wrote, or with a JSON Schema.
OPEN_ANSWERS = {"config show": "value", "config schema": "value"}
#: Commands whose answer is also given over HTTP, and what it is called there.
SAME = {
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
#: Options that make another answer of it.
FORMS = ("--plugin", "--dry-run", "--no-wait", "--verify", "--from-step", "--output", "--record")
#: Null or empty in all that is done here, and what else it may be.
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
#: Never null here, although they may be: of jobs that have not run, of schedules that have
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
class Asker:
    """Runs commands in this process, and keeps what they answered."""

    directory: Path
    shapes: dict[str, Shape] = field(default_factory=lambda: defaultdict(Shape))
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, words: str, *more: str, status: int = 0, tried: bool = False) -> dict[str, Any]:
        """The answer to `words`, a noun and an action. With `tried` it is run with --dry-run first."""
        if tried:
            assert self(words, "--dry-run", *more)["dry_run"] is True
        ended, answer = self.run(words, *more)
        assert ended == status, (words, more, answer)
        assert words.endswith("check") or "error" not in answer or "status" in answer, answer
        form = next((option for option in FORMS if option in more), None)
        title = f"{words} {form}" if form else words
        self.shapes[title].add(_without_luck(words, answer), OPEN_ANSWERS.get(words, ""))
        self.answers[title].append(answer)
        return answer

    def run(self, words: str, *more: str) -> tuple[int, dict[str, Any]]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home"), "EDITOR": "true"}
        out, err = io.StringIO(), io.StringIO()
        line = [*words.split(), "--config", str(self.directory / "demo"), "--json", *more]
        ended = run(line, environ, out, err)
        assert err.getvalue() == "", line
        answer = json.loads(out.getvalue())
        assert isinstance(answer, dict), line
        return ended, answer


def _without_luck(words: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Empty the lists that depend on how far the scheduler is: the page has them from `KNOWN`."""
    if words == "system reload":
        return {**answer, "schedules": []}
    if words == "config rollback":
        return {**answer, "reload": {**answer["reload"], "ends": [], "schedules": []}}
    return answer


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


def ask_about_tokens(ask: Asker) -> None:
    """A token that was rotated has an old secret for a time, or at once no more."""
    ask("token show", "agent")
    ask("token rotate", "agent", tried=True)
    ask("token rotate", "agent", "--keep-old", "0s")
    ask("token rotate", "agent")
    ask("token rotate", "agent")
    ask("token show", "agent")
    ask("token list")


def ask_about_an_added_plugin(ask: Asker, source: Path) -> None:
    ask("plugin test", str(source))
    ask("plugin add", str(source), tried=True)
    ask("plugin show", source.name)
    ask("plugin update", source.name, tried=True)
    ask("plugin remove", source.name, tried=True)


def ask_about_cases(ask: Asker, file: Path) -> None:
    """Of past runs, of a payload, and of a case that is not as it says."""
    ask("pipeline test", "order", "--payload", '{"total": 5}')
    ask("pipeline test", "order", "--record", "last")
    ask("pipeline test", "order", "--last", "200")
    expected = {"status": "failed", "error": "paper", "steps": {"mak": {}, "big": {"outcome": "succeeded"}}}
    case = {"name": "one", "steps": {"make": {"result": 1}}, "expect": expected}
    file.write_text(json.dumps({"pipeline": "order", "cases": [case]}))
    ask("pipeline test", "order", "--case", str(file), status=1)


def ask_to_connect_an_account(ask: Asker) -> None:
    assert ask("plugin authorize", "account", "--dry-run")["dry_run"] is True
    ask("plugin authorize", "account", "--code", "http://127.0.0.1/?code=1&state=2")


def ask_without_a_daemon(ask: Asker, workspace: Workspace) -> None:
    """Commands on files, and commands on the store alone."""
    directory = workspace.directory
    ask("config init", str(directory / "new"), tried=True)
    ask("config schema")
    ask("config check", status=78)
    good = workspace.config.read_text()
    workspace.append("servise: {}\n")
    ask("config check", status=78)
    workspace.config.write_text(good)
    ask("config lock", tried=True)
    ask("token create", "hook", tried=True)
    workspace.append(HOOK)
    ask("config lock")
    ask("token create", "agent", "--scopes", "jobs:ro,nobody:ro", tried=True)
    ask_about_tokens(ask)
    ask("token revoke", "agent", tried=True)
    ask("config check", status=78)
    ask("config show", "service")
    for key in ("service.log_level", "service.tick_interval"):
        ask("config get", key)
    ask("config set", "service.max_hops", "10", "--lock", tried=True)
    ask("config unset", "service.max_hops", "--lock", tried=True)
    ask("config edit", tried=True)
    ask("plugin list")
    ask("plugin show", "maker")
    ask("plugin show", "broken")
    ask("plugin show", "gone")
    ask("plugin check", status=78)
    ask("plugin check", "echo")
    ask("plugin new", "fresh", "--lang", "sh", "--dir", str(directory), tried=True)
    ask("plugin lock", "echo", tried=True)
    ask("plugin disable", "echo", tried=True)
    ask("plugin enable", "echo", tried=True)
    ask_about_an_added_plugin(ask, directory / "fresh")
    ask("pipeline show", "order")
    ask("pipeline check")
    ask("pipeline check", "order", "--payload", '{"total": 5}')
    ask("pipeline graph", "order")
    ask("pipeline graph", "order", "--output", str(directory / "order.mmd"))
    ask("system completion", "bash")
    ask("system unit")
    ask("system start", "--dry-run")
    ask("system doctor", status=1)
    ask("system selfcheck")
    ask("system status")
    ask("plugin run", "maker", "handle", tried=True)
    ask_about_copies(ask, directory)
    ask("skill export", str(directory / "skill"), tried=True)
    ask("event send", "order.nobody", tried=True)


def ask_about_copies(ask: Asker, directory: Path) -> None:
    saved = str(directory / "saved.tar.gz")
    ask("system backup", saved, tried=True)
    ask("system backup", saved, "--verify")
    ask("system restore", saved, "--to", str(directory / "back"), tried=True)
    ask("system move-store", "--to", str(directory / "moved.db"), tried=True)


def ask_about_jobs(ask: Asker, daemon: Daemon, url: str) -> None:
    """Commands on jobs: succeeded, failed, waiting and running ones."""
    good = ask("plugin run", "maker", "handle", "--payload", '{"a": 1}', "--dedupe-key", "once", tried=True)
    again = ask("plugin run", "maker", "handle", "--dedupe-key", "once")
    assert again["job_id"] == good["job_id"]
    bad = ask("plugin run", "broken", status=1)
    ask("plugin exec", "--", "echo", "hello", tried=True)
    ask("plugin exec", "--no-wait", "--", "true")
    told_of = ask("plugin run", "maker", "handle", "--state-webhook-url", url)
    waiting = ask("plugin run", "patient", "--retry", "--no-wait")
    running = ask("plugin run", "slow", "--no-wait")
    daemon.wait_for("breaker.changed")
    daemon.wait_for("job.retrying", lambda line: line["job_id"] == waiting["job_id"])
    daemon.wait_until_started(running["job_id"])
    daemon.wait_for("delivery.delivered", lambda line: line["job_id"] == told_of["job_id"])
    ran = ask("pipeline run", "order", "--payload", '{"total": 1}', tried=True, status=1)
    ask("pipeline list")
    ask("pipeline explain", ran["job_id"])
    ask("job wait", good["job_id"])
    ask("job wait", waiting["job_id"], "--timeout", "10ms", status=75)
    for job in (good, bad, running, ran, waiting):
        ask("job show", job["job_id"])
        ask("job explain", job["job_id"])
        ask("job tree", job["job_id"])
        ask("job logs", job["job_id"])
    for words in ("queue list", "queue status", "job list", "system logs", "plugin list", "webhook list"):
        ask(words)
    ask("job list", "--limit", "1")
    ask("system status")
    ask("system status", "--health")
    ask("job cancel", running["job_id"], tried=True)
    ask("job wait", running["job_id"], status=1)
    ask("job logs", running["job_id"])
    ask("job cancel", ask("plugin run", "slow", "--no-wait")["job_id"])
    ask("job rerun", told_of["job_id"], tried=True)
    ask("job rerun", told_of["job_id"])
    ask("job export", told_of["job_id"])
    ask("job export", ran["job_id"], "--output", str(ask.directory / "chain.json"))
    ask("job retry", bad["job_id"], tried=True)
    # Not left under way: as long as a poll is, its schedule may not be run.
    ask("job wait", bad["job_id"], status=1)
    ask("job retry", ran["job_id"], "--from-step", "make", tried=True)
    ask("queue purge", "--all", tried=True)
    ask("queue purge", "patient")
    ask("job retry", "--plugin", "patient", tried=True)
    daemon.wait_until_started(ask("plugin run", "slow", "--no-wait")["job_id"])
    ask("job cancel", "--plugin", "slow", tried=True)
    deliveries = ask("webhook deliveries", "--job", told_of["job_id"], "--status", "delivered")
    ask("webhook resend", deliveries["deliveries"][0]["id"], tried=True)
    for more in (("--dry-run",), ()):
        ask("webhook resend", "--plugin", "maker", "--status", "delivered", *more)
    ask("webhook send", "gh", "--dry-run")


def ask_about_the_rest(ask: Asker, workspace: Workspace) -> None:
    """Schedules, events, what plugins keep, and the daemon itself, to its end."""
    ask("schedule list")
    ask("schedule next", "-n", "2")
    ask("schedule run", "broken", "--dry-run")
    ask("job wait", ask("schedule run", "broken")["job_id"], status=1)
    ask("schedule history", "broken")
    ask("schedule explain", "broken")
    ask("schedule pause", "broken", tried=True)
    ask("schedule explain", "broken")
    ask("schedule list")
    ask("schedule resume", "broken", tried=True)
    ask("event send", "order.placed", "--payload", "{}", tried=True)
    ask("event explain", "order.placed", "--payload", "{}")
    ask("event tail")
    ask("plugin show", "maker")
    ask("plugin stats")
    ask("system digest")
    ask("plugin state", "maker")
    ask("plugin facts", "maker")
    ask("system breaker", "broken")
    ask("system reset", "broken", tried=True)
    workspace.plugin("added", BROKEN)
    workspace.config.write_text(
        workspace.config.read_text().replace("  slow: {}", "  slow: {}\n  added: {schedule: {every: 1h}}")
    )
    ask("config diff")
    ask("config apply", tried=True)
    ask("config history")
    ask("config rollback", "--keep-env", tried=True)
    ask("config rollback", "--keep-env")  # back again
    ask("system reload", tried=True)
    ask("plugin disable", "added", tried=True)
    ask("plugin enable", "added", tried=True)
    ask("system doctor", status=1)
    ask("system selfcheck")
    other = a_plugin(workspace.directory, "other", script=answering({"status": "ok", "result": "other"}))
    ask("plugin replay", "echo", "--include-writes", "--candidate", str(other), status=1)
    ask_about_cases(ask, workspace.directory / "cases.yaml")
    ask("system sweep", tried=True)
    ask("system stop", tried=True)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asker:
    directory = tmp_path_factory.mktemp("busy")
    workspace = a_busy_workspace(directory)
    ask = Asker(directory)
    ask_without_a_daemon(ask, workspace)
    ask_to_connect_an_account(ask)
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        ask_about_jobs(ask, daemon, receiver.url())
        ask_about_the_rest(ask, workspace)
        daemon.process.wait(PATIENCE)
    # A schedule that the store still knows of, and the configuration no longer.
    workspace.config.write_text(workspace.config.read_text().replace("{id: hourly,", "{id: at_noon,"))
    ask("config lock")
    ask("schedule list")
    return ask


def named_shapes(asked: Asker) -> dict[str, Shape]:
    """The shapes with a name: all objects with the same keys, of all answers together."""
    found = {}
    for name, (words, *way) in NAMED.items():
        shape = asked.shapes[words]
        for key in way:
            shape = shape.keys[key]
        keys = set((shape.items or shape).keys)
        found[name] = Shape()
        for each in [part for whole in asked.shapes.values() for part in whole.inside()]:
            if set(each.keys) == keys:
                found[name].merge(each)
    return found


def page_part(asked: Asker) -> str:
    named = named_shapes(asked)
    known = types_by_key([*asked.shapes.values()]) | KNOWN
    names = {frozenset(shape.keys): name for name, shape in named.items()}
    teller = ShapeWriter(names=names, known=known, nullable=NULLABLE)
    lines = ["## Shapes with a name", ""]
    for name, shape in named.items():
        lines += [f"### {name}", "", "```text", teller.text_of(shape, in_full=True), "```", ""]
    for noun in NOUNS:
        lines += [f"## {noun.name}", ""]
        for action in noun.actions:
            words = f"{noun.name} {action.name}"
            forms = {
                form: shape for form, shape in asked.shapes.items() if f"{form} ".startswith(f"{words} ")
            }
            lines += [f"### ductile {words}", ""] if forms else []
            for form, shape in sorted(forms.items()):
                lines += [] if form == words else [f"With `{form.removeprefix(words).strip()}`:", ""]
                lines += ["```text", teller.text_of(shape), "```", ""]
    return "\n".join(lines)


def test_the_page_tells_the_shapes_as_they_are(asked: Asker) -> None:
    """A stable shape. A key that goes, or changes its type, changes this page."""
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    written = f"{head}{BEGIN}\n{page_part(asked)}\n{END}{rest.partition(END)[2]}"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(written)
    assert written == PAGE.read_text(), "if it is meant so, write the page anew with UPDATE_GOLDEN=1"


@pytest.mark.parametrize(("words", "shape"), SAME.items())
def test_commands_answer_as_the_api_does(asked: Asker, words: str, shape: str) -> None:
    """One operation behind both, and one description of what it answers."""
    assert asked.answers[words]
    for answer in asked.answers[words]:
        assert_matches({"schemas": dict(schemas())}, schema_ref(shape), {**answer, "message": "for people"})


def test_every_command_was_asked(asked: Asker) -> None:
    """Every command has JSON, and none is forgotten here."""
    assert {" ".join(words.split()[:2]) for words in asked.shapes} | LINES == set(ACTIONS)


def test_every_mutation_was_tried(asked: Asker) -> None:
    """Every mutation has --dry-run, and its answer says that nothing was done."""
    tried = {words.removesuffix(" --dry-run") for words in asked.shapes if words.endswith(" --dry-run")}
    assert tried == {
        words for words, action in ACTIONS.items() if any("--dry-run" in o.flags for o in action.options)
    }
    assert tried == set(ACTIONS) - READING


def test_nothing_on_the_page_is_left_open(asked: Asker) -> None:
    """`KNOWN` has the type of every key that was null or empty every time."""
    assert [line for line in page_part(asked).splitlines() if "?" in line.partition(": ")[2]] == []
