"""`ductile token …`: creates, shows, rotates and revokes tokens and shared secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ductile.cli.client import Connection, Document, connect_to_daemon, request_daemon, send_request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.core.json import JsonObject

_NAME = Argument("NAME", "name of the token", field="name")
_STDIN = Option("--stdin", "read the value from standard input instead of generating one")


@action(
    "create",
    "create a token, and show its value only once",
    "token.create",
    arguments=(Argument("NAME", "its name in logs and in `secret_ref`", field="name"),),
    options=(
        Option(
            "--scopes LIST",
            "its permissions, such as jobs:ro,plugin:rw; without scopes it is a secret for "
            "signatures and gives no access",
            "scopes",
            "list",
        ),
        _STDIN,
        DRY_RUN,
    ),
    usage={"value": None},
    about="The value goes to the env file, a reference to it and the scopes to tokens.yaml and "
    "scopes/NAME.json, and the seal of these files is renewed; they have to be as they were sealed. "
    "A running daemon accepts it at once; other changes of the configuration wait for `ductile apply`.",
    examples=(
        Example(
            "ductile token create ci --scopes jobs:ro,plugin:rw",
            "for a program that runs plugins and looks at jobs",
        ),
        Example(
            "ductile token create agent --scopes pipeline:nightly,own:ro",
            "for an agent that runs one pipeline and sees its own runs",
        ),
        Example(
            "ductile token create github-secret --stdin",
            "the secret that another service signs its webhooks with",
        ),
    ),
)
def create(invocation: Invocation) -> CommandResult:
    value, dry_run = _read_value(invocation), invocation.switch("dry_run")
    if invocation.remote is not None:
        created = request_daemon(invocation, fields={**_fields(invocation), "value": value})
    else:
        from ductile.config.edit.tokens import create_token
        from ductile.operations.tokens.manage import created_response
        from ductile.struct import to_builtins

        name = invocation.text("NAME")
        scopes = tuple(str(scope) for scope in _fields(invocation).get("scopes") or ())
        with _loaded_by_daemon(invocation, name):
            token = create_token(
                invocation.config, invocation.environ, name, scopes, value=value, dry_run=dry_run
            )
        created = to_builtins(created_response(token, shows_value=value is None, dry_run=dry_run))

    def note(console: Console) -> str:
        warnings = ""
        for warning in created["warnings"]:
            parts = [escape_controls(text) for text in (warning["message"], warning["hint"]) if text]
            warnings += f"{console.style('yellow', 'warning:')} {'; '.join(parts)}\n"
        kind, name, files = created["kind"], created["name"], ", ".join(created["files"])
        if not created["written"]:
            return f"{warnings}Would create the {kind} {name} and write {files}."
        once = " Its value is shown only once." if created["token"] is not None else ""
        return f"{warnings}Created the {kind} {name} and wrote {files}.{once}"

    return CommandResult(created, text=created["token"], note=note)


@action(
    "list",
    "list tokens and secrets, without their values",
    "token.list",
    about="Read from the files of this machine; with --url, those of the daemon.",
)
def list_tokens(invocation: Invocation) -> CommandResult:
    response = _list_tokens(invocation)

    def text(console: Console) -> str:
        if not response["tokens"]:
            return "There are no tokens. Create one with `ductile token create`."
        rows = [
            [
                row["name"] or "-",
                row["kind"],
                " ".join(row["scopes"]) or "-",
                _old_secret(row, console) or "-",
                console.path(f"{row['file']}:{row['line']}"),
            ]
            for row in response["tokens"]
        ]
        headers = ["NAME", "KIND", "SCOPES", "OLD SECRET", "WHERE"]
        if all(row[3] == "-" for row in rows):
            for cells in (headers, *rows):
                del cells[3]
        return console.table(headers, rows)

    return CommandResult(response, text)


@action("show", "show one token or secret, without its value", "token.show", arguments=(_NAME,))
def show(invocation: Invocation) -> CommandResult:
    if invocation.remote is not None:
        row = request_daemon(invocation)
    else:
        from ductile.config.edit.token_entries import find_token_entry
        from ductile.config.edit.token_entries import list_tokens as list_entries

        entry = find_token_entry(list_entries(invocation.config, invocation.environ), invocation.text("NAME"))
        connection = _connection(invocation)
        if connection is None:
            row = next(row for row in _list_tokens(invocation)["tokens"] if row["name"] == entry.name)
        else:  # the daemon knows how much of the limits is used
            row = send_request(invocation, connection, "token.show", {"name": entry.name})

    def text(console: Console) -> str:
        lines = fmt.fields(
            [
                ("kind", row["kind"]),
                ("scopes", " ".join(row["scopes"])),
                ("old secret", _old_secret(row, console)),
                ("variable", row["variable"]),
                ("where", console.path(f"{row['file']}:{row['line']}")),
                ("in force", None if row.get("in_force", True) else "no: `ductile apply`"),
                ("spent today", f"{row['spent_today']:g}" if row.get("spent_today") else None),
            ],
            console,
        )
        lines.insert(0, console.style("bold", escape_controls(row["name"])))
        limits = [
            (
                limit["limit"],
                limit["target"] or "all jobs",
                f"{limit['used']:g}",
                f"{limit['maximum']:g}",
                "when they end"
                if limit["resets_at"] is None
                else fmt.local_time(limit["resets_at"], console),
            )
            for limit in row.get("limits") or ()
        ]
        if limits:
            lines += ["", console.table(("LIMIT", "OF", "USED", "ALLOWED", "RESETS"), limits)]
        return "\n".join(lines)

    return CommandResult(row, text)


@action(
    "rotate",
    "give a token a new secret; the old one stays valid for a time",
    "token.rotate",
    arguments=(_NAME,),
    options=(_STDIN, DRY_RUN),
    usage={"value": None},
    about="Both secrets have the same name and scopes. When the time is over the daemon refuses the old one "
    "by itself, also after a restart. A running daemon accepts the new one at once. If the token is "
    "rotated again before that, the oldest secret is refused at once.",
    examples=(
        Example("ductile token rotate ci", "and give the new value to its user within a day"),
        Example("ductile token rotate ci --keep-old 0s", "the old value has leaked: refuse it now"),
    ),
)
def rotate(invocation: Invocation) -> CommandResult:
    value, dry_run = _read_value(invocation), invocation.switch("dry_run")
    if invocation.remote is not None:
        rotated = request_daemon(invocation, fields={**_fields(invocation), "value": value})
    else:
        from datetime import UTC, datetime

        from ductile.config.edit.tokens import rotate_token
        from ductile.operations.tokens.manage import DEFAULT_KEEP_OLD, rotated_response
        from ductile.struct import to_builtins

        name, keep_old = invocation.text("NAME"), invocation.duration("keep_old")
        with _loaded_by_daemon(invocation, name):
            token = rotate_token(
                invocation.config,
                invocation.environ,
                name,
                keep_old=DEFAULT_KEEP_OLD if keep_old is None else keep_old,
                now=datetime.now(UTC),
                value=value,
                dry_run=dry_run,
            )
        rotated = to_builtins(rotated_response(token, shows_value=value is None, dry_run=dry_run))

    def note(console: Console) -> str:
        until = rotated["previous_expires_at"]
        old = "is refused at once" if until is None else f"is accepted until {fmt.local_time(until, console)}"
        files = ", ".join(rotated["files"])
        if not rotated["written"]:
            return f"Would give {rotated['name']} a new secret and write {files}. The old one {old}."
        once = " Its value is shown only once." if rotated["token"] is not None else ""
        line = f"Gave {rotated['name']} a new secret and wrote {files}, as {rotated['variable']}.{once}"
        line += f" The old one {old}."
        if rotated["dropped_expires_at"] is not None:
            line += " The one before that is refused from now on."
        return line

    return CommandResult(rotated, text=rotated["token"], note=note)


@action(
    "revoke",
    "revoke a token: remove its entry, its value and its scopes",
    "token.revoke",
    arguments=(_NAME,),
    options=(DRY_RUN,),
    about="Refused while a webhook needs it, or if no token could use the API any more. "
    "A running daemon refuses it from that moment, and ends event streams that were opened with it.",
)
def revoke(invocation: Invocation) -> CommandResult:
    if invocation.remote is not None:
        response = request_daemon(invocation)
    else:
        from ductile.config.edit.tokens import revoke_token
        from ductile.struct import to_builtins

        name, dry_run = invocation.text("NAME"), invocation.switch("dry_run")
        with _loaded_by_daemon(invocation, name, revoked=True):
            response = to_builtins(revoke_token(invocation.config, invocation.environ, name, dry_run=dry_run))
    files = ", ".join(response["files"])
    text = f"Would revoke {response['name']}: remove it from {files}."
    return CommandResult(response, f"Revoked {response['name']} in {files}." if response["written"] else text)


@contextmanager
def _loaded_by_daemon(invocation: Invocation, name: str, *, revoked: bool = False) -> Iterator[None]:
    """Make a running daemon of this machine load the token after the block has written it.

    A dry run before the block makes sure that nothing is written that the daemon could not load.
    """
    from ductile.errors import DuctileError

    fields: JsonObject = {"name": name, "revoked": revoked}
    connection = _connection(invocation)
    if connection is None:
        yield
        return
    send_request(invocation, connection, "token.refresh", {**fields, "dry_run": True})
    yield
    if invocation.switch("dry_run"):
        return
    try:
        request_daemon(invocation, "token.refresh", fields)
    except DuctileError as error:
        error.message = f"the files were written, but the daemon has not loaded the change: {error.message}"
        error.hint = "ductile apply"
        raise


def _connection(invocation: Invocation) -> Connection | None:
    from ductile.errors import ConfigError

    try:
        return connect_to_daemon(invocation)
    except ConfigError:  # no daemon was found; reading the files reports what is wrong with them
        return None


def _fields(invocation: Invocation) -> Document:
    """Return the fields of the request. An empty text in the list of scopes is left out."""
    fields = invocation.request_fields()
    scopes = fields.get("scopes")
    if isinstance(scopes, list):
        fields["scopes"] = [scope for scope in scopes if scope]
    return fields


def _read_value(invocation: Invocation) -> str | None:
    """Return the value from standard input, which is not shown again; None if one has to be generated."""
    import sys

    return sys.stdin.read() if invocation.switch("stdin") else None


def _list_tokens(invocation: Invocation) -> Document:
    if invocation.remote is not None:
        return request_daemon(invocation, "token.list", {})
    from datetime import UTC, datetime

    from ductile.config.edit.token_entries import list_tokens as list_entries
    from ductile.operations.tokens.manage import listed_token
    from ductile.struct import to_builtins

    now = datetime.now(UTC)
    rows = list_entries(invocation.config, invocation.environ)
    return {"tokens": [to_builtins(listed_token(row, now)) for row in rows]}


def _old_secret(row: Document, console: Console) -> str | None:
    """Return until when the secret before a rotation is valid; None without one."""
    if row["previous_expires_at"] is None:
        return None
    word = "valid until" if row["previous_valid"] else "expired"
    return f"{word} {fmt.local_time(row['previous_expires_at'], console)}"
