"""`ductile event …`: publishes and explains events, and shows the ledger."""

from __future__ import annotations

from ductile.cli.client import Document, follow, request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Argument, Example, Option, action, renders


@action(
    "send",
    "publish an event: start the routes and pipelines that wait for it",
    "event.send",
    arguments=(Argument("TYPE", "type of the event, such as order.placed", field="type"),),
    about="Its source is `cli`. Everything that it starts is put on the queue together, or nothing; "
    "without a daemon it waits there for one.",
    examples=(
        Example(
            'ductile event send echo.said --payload \'{"message": "hello"}\'',
            "to every route and pipeline that waits for it",
        ),
        Example("ductile event send echo.said --dry-run", "which ones are these, and why?"),
    ),
)
def send(invocation: Invocation) -> CommandResult:
    if not invocation.text("TYPE").strip():
        from ductile.errors import UsageError

        raise UsageError("an event needs a type", hint="such as order.placed")
    response = request(invocation)

    def text(_: Console) -> str:
        if response.get("dry_run"):
            return _explanation(response)
        lines = []
        for job in response["started"]:  # responses of an older daemon have no status
            error = f": {job['error']}" if job.get("error") else ""
            status = job.get("status", "queued").capitalize()
            lines.append(f"{status} {job['target']}: {job['job_id']}{error}")
        lines += [
            f"Already accepted {existing['target']}: {existing['job_id']}"
            for existing in response["deduplicated"]
        ]
        lines += [f"Not started {dropped['target']}: {dropped['reason']}" for dropped in response["dropped"]]
        return escape_controls(
            "\n".join(lines) or f"No route or pipeline matches {response['type']} from `cli`."
        )

    return CommandResult(response, text)


@renders(
    "explain",
    "show what an event would start and what not, and why",
    "event.explain",
    arguments=(Argument("TYPE", "type of the event, such as order.placed", field="type"),),
    about="Runs and stores nothing. Without --from it is an event that you send yourself. For a hook, "
    "TYPE is job.completed, job.failed or job.timed_out, and --from the plugin or pipeline whose job ends. "
    "Targets that take other events are only counted; --json has them all.",
    examples=(
        Example(
            "ductile event explain order.placed --payload '{\"total\": 35}'",
            "which pipelines would start, and which comparison decided",
        ),
        Example("ductile event explain echo.said --from echo", "as if the plugin echo emitted it"),
    ),
)
def explain(response: Document, _console: Console) -> str:
    return _explanation(response)


def _explanation(response: Document) -> str:
    if "targets" not in response:  # the response of an older daemon
        return escape_controls("\n".join(f"Would start {target}." for target in response["would_start"]))
    lines, other_targets = [], 0
    for target in response["targets"]:
        if target["starts"]:
            warning = f" But it would fail: {target['warning']}." if target["warning"] else ""
            lines.append(f"Would start {target['target']}: {target['reason']}.{warning}")
        elif target["outcome"] == "other_type":
            other_targets += 1
        else:
            lines.append(f"Would not start {target['target']}: {target['reason']}.")
    if not lines:
        lines.append(f"No route or pipeline matches {response['type']} from `{response['source']}`.")
    if other_targets:
        verb = "takes" if other_targets == 1 else "take"
        lines.append(f"{fmt.count(other_targets, 'other target')} {verb} other events.")
    return escape_controls("\n".join(lines))


@action(
    "tail",
    "show the latest entries of the ledger",
    "ledger.tail",
    options=(Option("-f, --follow", "keep showing new ones, until Ctrl-C"),),
    usage={"after": None},
    about="With --follow and --json together, each line is a JSON object.",
    examples=(Example("ductile event tail --follow", "everything that happens from now on"),),
)
def tail(invocation: Invocation) -> CommandResult:
    response = request(invocation)
    if not invocation.switch("follow"):

        def text(console: Console) -> str:
            rows = response["events"]
            width = 0 if console.width is None else max((len(row["kind"]) for row in rows), default=0)
            return "\n".join(_line(row, console, width) for row in rows) or "Nothing has happened yet."

        return CommandResult(response, text)
    fmt.print_rows(invocation, response["events"], _line)
    after = max((row["seq"] for row in response["events"]), default=response["highest"])
    for update in follow(invocation, "ledger.follow", {}, rows_field="events", after=after):
        gap = update.get("gap")  # absent in responses of an older daemon
        fmt.print_rows(
            invocation, [{"kind": "gap", **gap}, *update["events"]] if gap else update["events"], _line
        )
    return CommandResult(None)


def _line(row: Document, console: Console, kind_width: int = 0) -> str:
    """Return the line of an entry or a gap. Columns are aligned if the width of the longest kind is given."""
    if row["kind"] == "gap":
        return console.style("yellow", f"Some are missing here: {row['message']}.")
    data = _data_text(row, console)
    job = fmt.short_id(row["job_id"], console).ljust(fmt.SHORT_ID if kind_width else 0)
    kind = console.style("bold", row["kind"]) + " " * max(0, kind_width - len(row["kind"]))
    return f"{fmt.short_time(row['at'], console)}  {kind}  {job}  {data}".rstrip()


def _data_text(row: Document, console: Console) -> str:
    """Return subject and change of an entry, then its other values; if verbose, all with their names."""
    data = {name: value for name, value in row["data"].items() if name != "verdict" and value is not None}
    parts: list[str] = []
    if not console.verbose:
        subject = [data.pop(name) for name in ("plugin", "command", "schedule_id") if name in data]
        parts += [fmt.inline(" ".join(map(str, subject)))] if subject else []
        if "to" in data:
            before, after = data.pop("from", "new"), data.pop("to")
            parts.append(f"{fmt.inline(before)} → {fmt.status(fmt.inline(after), console)}")
        if "reason" in data:
            before = f"{parts.pop()} " if parts else ""
            parts.append(f"{before}({fmt.inline(data.pop('reason'))})")
        hidden = ["execution"] if row["kind"] == "job.transition" else []
        if fmt.local_time(data.get("nominal_at"), console) == fmt.local_time(row["at"], console):
            hidden.append("nominal_at")
        if data.get("until_at") == data.get("nominal_at"):  # one occurrence
            hidden += ["until_at", "count"]
        data = {name: value for name, value in data.items() if name not in hidden}
    for name, value in data.items():
        text = fmt.local_times(fmt.inline(value), console)
        is_hash = text.startswith("blake3:")
        parts.append(f"{name}={fmt.short_hash(text, console) if is_hash else text}")
    return "  ".join(parts)
