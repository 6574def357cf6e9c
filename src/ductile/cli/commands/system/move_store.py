"""`ductile system move-store`: the whole store to another database, while no daemon runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, progress_line
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, Example, Option, action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.admin.config import OpenedConfiguration
    from ductile.config.snapshot import StateLocation

#: The variable for the URL in the next steps, unless --to names another one.
_VARIABLE = "DUCTILE_STATE_URL"


@action(
    "move-store",
    "copy the whole store to another database, such as PostgreSQL, and check the copy",
    options=(
        Option("--to STORE", "where to: postgresql://…, env:NAME, sqlite, or a path (default as for --from)"),
        Option("--from STORE", "where from, written likewise (default: the store of the configuration)"),
        DRY_RUN,
    ),
    about="Stop every daemon first: a store in use is refused, and so is a target that is not empty. All "
    "jobs, the log, the ledger, schedules, states and facts are copied; then every row is compared, and the "
    "rules of `system selfcheck` are checked. The source is not changed. If the command is killed, there is "
    "no copy: run it again. The configuration is not changed either: the answer says how to. Other users of "
    "the machine can see arguments; env:NAME is a variable that holds the URL. `sqlite` is state.path.",
    examples=(
        Example("ductile system move-store --to env:DUCTILE_STATE_URL --dry-run", "what would be copied?"),
        Example("ductile system move-store --to env:DUCTILE_STATE_URL", "from SQLite to PostgreSQL"),
        Example("ductile system move-store --to sqlite", "and back"),
    ),
    local_reason=CONFIG_FILES,
)
def move_store(invocation: Invocation) -> CommandResult:
    from datetime import UTC, datetime

    from ductile.admin.config import open_configuration
    from ductile.admin.move_store import MoveRequest, move_store
    from ductile.config.load import SealMode

    opened = open_configuration(invocation.config, invocation.environ, seal=SealMode.IGNORE)
    source, target = _stores(invocation, opened.snapshot.state)
    move_request = MoveRequest(
        source=source, target=target, now=datetime.now(UTC), dry_run=invocation.switch("dry_run")
    )
    response: Document = move_store(move_request, progress_line(json=invocation.json))
    response["next"] = list(_next_steps(invocation, opened, target))

    def text(console: Console) -> str:
        begin = "Would copy" if response["dry_run"] else "Copied"
        rows = {table["table"]: table["rows"] for table in response["tables"]}
        parts = (
            fmt.count(rows["job_queue"], "job"),
            fmt.count(rows["job_log"], "execution"),
            fmt.count(rows["ledger"], "ledger entry", "ledger entries"),
        )
        lines = [
            f"{begin} {fmt.count(response['rows'], 'row')}, among them {', '.join(parts)}:",
            f"  from {console.path(response['from'])}",
            f"  to   {console.path(response['to'])}",
        ]
        warning = console.style("yellow", "warning:")
        lines += [
            f"{warning} the store breaks a rule, and so does its copy: {table['invariant']} "
            f"({', '.join(table['ids'])})"
            for table in response["broken_invariants"]
        ]
        if not response["dry_run"]:
            checks = f"every row was compared, and {response['invariants']} rules hold"
            lines.append(f"{console.style('green', 'ok:')} {checks}. The source is as it was.")
        lines.append("Next:" if not response["dry_run"] else "After the move:")
        lines += [f"  {console.hint(step)}" for step in response["next"]]
        return "\n".join(lines)

    return CommandResult(response, text)


def _stores(invocation: Invocation, configured: StateLocation) -> tuple[StateLocation, StateLocation]:
    """Return source and target. Without its option, each is the store of the configuration."""
    from ductile.admin.move_store import parse_store
    from ductile.errors import UsageError

    def location(option: str) -> StateLocation:
        text = invocation.optional(option)
        return (
            configured if text is None else parse_store(text, f"--{option}", invocation.environ, configured)
        )

    if invocation.optional("to") is None and invocation.optional("from") is None:
        raise UsageError("where to?", hint="--to postgresql://USER@HOST/DATABASE, or --to env:NAME")
    source, target = location("from"), location("to")
    if source == target:
        raise UsageError("source and target are the same store", hint="Name another one with --to.")
    return source, target


def _next_steps(invocation: Invocation, opened: OpenedConfiguration, target: StateLocation) -> Iterator[str]:
    """Yield the steps after which the daemon uses the target. The configuration is valid after each step."""
    import shlex

    from ductile.config.compile.compiler import DEFAULT_STATE_DIRECTORY, DEFAULT_STATE_PATH
    from ductile.config.find_config import resolve_path
    from ductile.config.snapshot import PostgresLocation

    configured, section = opened.snapshot.state, opened.loaded.model.state
    directory = opened.loaded.directory
    if target == configured:
        pass
    elif isinstance(target, PostgresLocation):
        option = invocation.optional("to") or ""
        variable = option.removeprefix("env:") if option.startswith("env:") else _VARIABLE
        places = "the environment of the daemon, or into a file of environment_vars.include"
        yield f"Put {variable}=postgresql://… into {places}"
        if section.path is not None:
            yield "ductile config unset state.path --lock"
        yield f"ductile config set state.url '${{{variable}}}' --lock"
        if section.directory is None and configured.directory != resolve_path(
            DEFAULT_STATE_DIRECTORY, directory
        ):
            yield f"ductile config set state.directory {shlex.quote(str(configured.directory))} --lock"
    else:
        if section.directory is not None:
            yield "ductile config unset state.directory --lock"
        if section.url is not None:
            yield "ductile config unset state.url --lock"
        if target.path != resolve_path(DEFAULT_STATE_PATH, directory):
            yield f"ductile config set state.path {shlex.quote(str(target.path))} --lock"
    yield "ductile config check"
    yield "ductile system start"
