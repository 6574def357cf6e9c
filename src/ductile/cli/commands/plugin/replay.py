"""`ductile plugin replay`: run the recorded requests of past jobs against a changed plugin."""

from __future__ import annotations

from ductile.cli.client import Document, request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import PLUGIN, Example, Option, action

_COLOURS = {
    "same": "green",
    "drifted": "yellow",
    "failed_before": "green",
    "different": "red",
    "fails_now": "red",
}
_MEANINGS = {
    "same": "answered as recorded",
    "different": "answered otherwise",
    "fails_now": "failed, and succeeded before",
    "failed_before": "succeeded, and failed before",
    "drifted": "answered otherwise, as the plugin in force does today",
}


@action(
    "replay",
    "run recorded requests of past jobs against a changed plugin, and compare the answers",
    "plugin.replay",
    arguments=(PLUGIN,),
    options=(
        Option(
            "--candidate DIR",
            "directory of the changed plugin (default: the plugin and its settings as they are on disk)",
            "candidate",
        ),
    ),
    usage={"ignore": "--ignore PATHS"},
    about="The candidate really runs, one request after the other, with the limits of the plugin, and its "
    "answers change nothing: no state, no events, no jobs, no state webhooks. Only commands of `type: read` "
    "are replayed, because what a command does outside of Ductile cannot be undone. Where an answer differs, "
    "the plugin in force is run too, so that a change of the world is not taken for one of the plugin. "
    "Exit status 0 if no answer is worse, 1 if one differs or fails now, or none could be compared.",
    examples=(
        Example("ductile plugin replay echo --candidate ./echo-new", "the last 50 jobs of echo"),
        Example(
            "ductile plugin replay echo --ignore events.*.payload.count,state_updates",
            "after an edit in place or of its settings, without what always differs",
        ),
    ),
)
def replay(invocation: Invocation) -> CommandResult:
    fields = invocation.request_fields()
    candidate = invocation.optional("candidate")
    if candidate is not None and invocation.remote is None:
        from pathlib import Path

        fields["candidate"] = str(Path(candidate).absolute())
    with show_waiting(invocation, f"the replay of {invocation.text('PLUGIN')}"):
        response = request(invocation, fields=fields, timeout=None)

    return CommandResult(
        response, lambda console: _report_text(response, console), exit_status=int(not response["passed"])
    )


def _report_text(response: Document, console: Console) -> str:
    lines: list[str] = []
    for job in response["jobs"]:
        if job["differences"]:
            verdict = console.style(_COLOURS[job["verdict"]], job["verdict"])
            lines.append(f"{fmt.short_id(job['job_id'], console)} {job['command']}: {verdict}")
        for difference in job["differences"]:
            path, before, now = (
                escape_controls(difference[name] or "") for name in ("path", "before", "now")
            )
            if difference["before"] is None:
                change = f"new, {now}"
            else:
                change = f"was {before}" if difference["now"] is None else f"{before} → {now}"
            lines.append(f"  {path}: {change}")
    if lines:
        lines.append("")
    if left_out := response["not_replayed"]:
        reasons = dict.fromkeys(job["reason"] for job in left_out)
        for reason in reasons:
            count = sum(job["reason"] == reason for job in left_out)
            lines.append(f"{fmt.count(count, 'job')} not replayed: {escape_controls(reason)}")
        lines.append("")
    verdicts = [(kind, response["counts"][kind]) for kind in _MEANINGS if kind in response["counts"]]
    word = console.style("green", "ok:") if response["passed"] else console.style("red", "failed:")
    total = fmt.count(sum(count for _, count in verdicts), "job")
    plugin, candidate = escape_controls(response["plugin"]), console.path(response["candidate"])
    summary = f"{word} {plugin}, {total} replayed with {candidate}"
    lines += [summary, *(f"  {count} {_MEANINGS[kind]}" for kind, count in verdicts)]
    if any(kind != "same" for kind, _ in verdicts):
        lines += ["", "Not as it was for the recorded jobs:"]
        lines += [f"  {line}" for line in response["not_reproduced"]]
    return "\n".join(lines)
