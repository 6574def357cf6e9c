"""`ductile config history` and `config diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request_daemon, request_if_available
from ductile.cli.commands.config.apply import is_daemon_running
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.core.json import JsonValue

_TITLES = {
    ("in force", "disk"): "Not in force: what the files on disk change",
    ("sealed", "disk"): "Not sealed: what the files on disk change",
}
#: The text without any difference, by what the files on disk are compared with.
_TEXTS_WITHOUT_DIFFERENCE = {
    ("in force", "sealed"): "The files on disk are sealed and in force.",
    ("sealed",): "The files on disk are as sealed.",
}
_COLOURS = {"+": "green", "-": "red", "~": "yellow", "@": "dim"}


@action(
    "history",
    "list the configurations that were loaded or sealed",
    "config.history",
    usage={"limit": "-n, --limit NUMBER"},
    options=(Option("--diff", "show what each changed, in full"),),
    about="With the time, the command, who gave it and what changed in short. The id names the files: "
    "`config diff ID ID` compares two of them, `config rollback ID` restores one. The last 100 sealed "
    "configurations are kept beside `config.yaml`. Works without a daemon as well.",
    examples=(Example("ductile config history -n 5", "the last five"),),
)
def history(invocation: Invocation) -> CommandResult:
    if invocation.remote is not None:
        response: Document | None = request_daemon(invocation)
    else:
        response = request_if_available(invocation, "config.history", invocation.request_fields())
    if response is None:  # without a readable store, the sealed configurations are still in files
        from ductile.admin.apply import list_sealed
        from ductile.struct import to_builtins

        limit = invocation.request_fields().get("limit")
        sealed = list_sealed(invocation.config, invocation.environ, limit if isinstance(limit, int) else None)
        response = {"history": [to_builtins(entry) for entry in sealed], "complete": True}
    if invocation.switch("diff"):
        entries = response["history"]
        for entry, before in zip(entries, [*entries[1:], None], strict=True):  # the latest is the first
            entry["differences"] = []
            if before is None or entry["id"] == before["id"] or None in (entry["id"], before["id"]):
                continue
            for comparison in _compare(invocation, before["id"], entry["id"])["comparisons"]:
                for file in comparison["files"]:
                    entry["differences"] += [f"{file['name']}: {line}" for line in file["differences"]]
                entry["differences"] += comparison["keys"]
    return CommandResult(response, lambda console: _history_text(response, console))


def _history_text(response: Document, console: Console) -> str:
    if not response["history"]:
        return "Nothing was sealed or loaded yet."
    rows = []
    for entry in response["history"]:
        command = entry["command"] or entry["origin"] or entry["event"]
        if entry["event"] == "replaced":
            command = "never sealed"
        elif entry["event"] == "sealed":
            command = f"{command} (not loaded)" if entry["command"] else "sealed (not loaded)"
        mark = "in force" if entry["in_force"] else "" if entry["restorable"] else "not kept"
        rows.append(
            (
                fmt.relative_time(entry["at"], console),
                entry["id"] or "-",
                mark,
                command,
                entry["author"] or "-",
                entry["changes"] or "-",
            )
        )
    table = console.table(("WHEN", "ID", "", "COMMAND", "BY", "CHANGED"), rows)
    parts = [table]
    for entry in response["history"]:
        if entry.get("differences"):
            lines = [_coloured(line, console) for line in entry["differences"]]
            parts.append("\n".join([console.style("bold", entry["id"]), *(f"  {line}" for line in lines)]))
    if not response["complete"]:
        parts.append(console.hint("The daemon may not read the sealed configurations beside config.yaml."))
    return "\n\n".join(parts)


@action(
    "diff",
    "show what the files on disk change, or compare two configurations",
    "config.diff",
    arguments=(
        Argument("BEFORE", required=False, field="before"),
        Argument("AFTER", required=False, field="after"),
    ),
    usage={"hashes": None},
    about="Without ids: the files on disk against what is in force in the daemon, and against what was "
    "sealed. Line by line, with secrets masked; of an environment file, no line is shown. With one id, that "
    "configuration against the files on disk.",
    examples=(
        Example("ductile config diff", "what would `ductile apply` change?"),
        Example("ductile config diff 59bfba07 4f32d64a", "two of `ductile config history`"),
    ),
)
def diff(invocation: Invocation) -> CommandResult:
    response = _compare(invocation, invocation.optional("BEFORE"), invocation.optional("AFTER"))

    def text(console: Console) -> str:
        parts = []
        different = [comparison for comparison in response["comparisons"] if not comparison["same"]]
        if len(different) == 2 and different[0]["files"] == different[1]["files"]:  # noqa: PLR2004 - in force, and sealed
            parts.append(console.style("bold", "Neither in force nor sealed: what the files on disk change"))
            parts.append(_comparison_text(different[0], console))
            different = []
        for comparison in different:
            title = _TITLES.get(
                (comparison["before"], comparison["after"]), f"{comparison['before']} → {comparison['after']}"
            )
            parts += [console.style("bold", title), _comparison_text(comparison, console)]
        if not parts:
            names = tuple(comparison["before"] for comparison in response["comparisons"])
            parts.append(_TEXTS_WITHOUT_DIFFERENCE.get(names, "There is no difference."))
        if response["problem"]:
            warning = console.style("yellow", "The files on disk cannot be loaded:")
            advice = console.hint("See `ductile config check`.")
            parts.append(f"{warning} {escape_controls(response['problem'])}\n{advice}")
        elif response["comparisons"] and response["comparisons"][0]["after"] == "disk" and len(parts) > 1:
            parts.append(console.hint("To put them in force: `ductile apply`"))
        return "\n\n".join(parts)

    return CommandResult(response, text)


def _compare(invocation: Invocation, before: str | None, after: str | None) -> Document:
    fields: dict[str, JsonValue] = {"before": before, "after": after}
    if invocation.remote is not None:
        return request_daemon(invocation, "config.diff", fields)
    from ductile.admin.apply import add_changed_lines, compare_offline

    if is_daemon_running(invocation):
        response = request_daemon(invocation, "config.diff", {**fields, "hashes": True})
    else:
        response = compare_offline(invocation.config, invocation.environ, before, after)
    add_changed_lines(invocation.config, invocation.environ, response)
    return response


def _comparison_text(comparison: Document, console: Console) -> str:
    blocks = []
    for file in comparison["files"]:
        lines = file["text"].splitlines() if file.get("text") else []
        # The first two lines of a unified diff repeat the name of the file.
        lines = [line for line in lines if not line.startswith(("--- ", "+++ "))] or file["differences"]
        head = f"{console.style('bold', escape_controls(file['name']))} ({file['change']})"
        blocks.append("\n".join([head, *(f"  {_coloured(line, console)}" for line in lines)]))
    if comparison["keys"]:
        blocks.append("\n".join(_coloured(line, console) for line in comparison["keys"]))
    return "\n\n".join(blocks)


def _coloured(line: str, console: Console) -> str:
    style = _COLOURS.get(line[:1])
    return console.style(style, escape_controls(line)) if style else escape_controls(line)
