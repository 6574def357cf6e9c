"""`ductile event …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request, request_daemon
from ductile.cli.console import format as fmt
from ductile.cli.console.console import console_for, printable
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.cli.console.console import Console

#: One request of --follow. A new request after this time notices a daemon that died.
_FOLLOW_TIMEOUT = "60s"
_JOB_ID_WIDTH = 36


@action(
    "send",
    "publish an event: start the routes and pipelines that wait for it",
    "event.send",
    arguments=(Argument("TYPE", "type of the event, such as order.placed", field="type"),),
    options=(DRY_RUN,),
    about="Its source is `cli`. Everything that it starts is put on the queue together, or nothing; "
    "without a daemon it waits there for one.",
    examples=(
        Example(
            'ductile event send echo.said --payload \'{"message": "hello"}\'',
            "to every route and pipeline that waits for it",
        ),
        Example("ductile event send echo.said --dry-run", "which ones are these?"),
    ),
)
def send(call: Invocation) -> CommandResult:
    if not call.text("TYPE").strip():
        from ductile.errors import UsageError

        raise UsageError("an event needs a type", hint="such as order.placed")
    done = request(call)

    def text(_: Console) -> str:
        if done.get("dry_run"):
            lines = [f"Would start {target}." for target in done["would_start"]]
        else:
            lines = []
            for one in done["started"]:  # an older daemon does not say the status
                error = f": {one['error']}" if one.get("error") else ""
                status = one.get("status", "queued").capitalize()
                lines.append(f"{status} {one['target']}: {one['job_id']}{error}")
            lines += [f"Already accepted {one['target']}: {one['job_id']}" for one in done["deduplicated"]]
            lines += [f"Not started {one['target']}: {one['reason']}" for one in done["dropped"]]
        return printable("\n".join(lines) or f"No route or pipeline matches {done['type']} from `cli`.")

    return CommandResult(done, text)


@action(
    "tail",
    "show the latest entries of the ledger",
    "ledger.tail",
    options=(Option("-f, --follow", "keep showing new ones, until Ctrl-C"),),
    usage={"after": None},
    about="With --follow and --json together, each line is a JSON object.",
    examples=(Example("ductile event tail --follow", "everything that happens from now on"),),
)
def tail(call: Invocation) -> CommandResult:
    found = request(call)
    if not call.switch("follow"):

        def text(console: Console) -> str:
            rows = found["events"]
            width = 0 if console.width is None else max((len(row["kind"]) for row in rows), default=0)
            return "\n".join(_line(row, console, width) for row in rows) or "Nothing has happened yet."

        return CommandResult(found, text)
    _follow(call, found)
    return CommandResult(None)


def _follow(call: Invocation, found: Document) -> None:
    """Print new events until the daemon stops."""
    _print(call, found["events"])
    after = max((row["seq"] for row in found["events"]), default=found["highest"])
    while True:
        fields = {"after": after, "timeout": _FOLLOW_TIMEOUT}
        news = request_daemon(call, "ledger.follow", fields, timeout=None)
        if gap := news.get("gap"):  # absent in answers of an older daemon
            missing = f"Some are missing here: {gap['message']}."
            styled = console_for(call.out, call.environ).style("yellow", missing)
            print(fmt.to_json({"kind": "gap", **gap}) if call.json else styled, file=call.out, flush=True)
        _print(call, news["events"])
        after = max((row["seq"] for row in news["events"]), default=after)
        if news["stopping"]:
            return


def _print(call: Invocation, rows: list[Document]) -> None:
    console = console_for(call.out, call.environ)
    for row in rows:
        print(fmt.to_json(row) if call.json else _line(row, console), file=call.out, flush=True)


def _line(row: Document, console: Console, kind_width: int = 0) -> str:
    """One event. Aligned in columns on a terminal, if the width of the widest kind is known."""
    data = "  ".join(
        f"{name}={fmt.inline(value)}"
        for name, value in row["data"].items()
        if name != "verdict" and value is not None
    )
    job = (row["job_id"] or "-").ljust(_JOB_ID_WIDTH if kind_width else 0)
    kind = console.style("bold", row["kind"]) + " " * max(0, kind_width - len(row["kind"]))
    return f"{fmt.time(row['at'])}  {kind}  {job}  {data}".rstrip()
