"""`ductile token …`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ductile.admin.tokens import CreatedToken, RevokedToken, create_token, list_tokens, revoke_token
from ductile.cli.console.console import printable
from ductile.cli.console.errors import problem_as_json
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from ductile.admin.tokens import TokenRow
    from ductile.cli.console.console import Console


def create(call: Invocation) -> CommandResult:
    scopes = tuple(part.strip() for part in (call.optional("scopes") or "").split(",") if part.strip())
    made = create_token(
        call.config,
        call.environ,
        call.text("NAME"),
        scopes,
        value=sys.stdin.read() if call.switch("stdin") else None,
        dry_run=call.switch("dry_run"),
    )
    # A value that the caller brought along is no news to them, and need not be shown.
    shown = None if call.switch("stdin") else made.value
    return CommandResult(
        data={
            "name": made.name,
            "kind": "token" if made.scopes else "secret",
            "scopes": list(made.scopes),
            "token": shown,
            "variable": made.variable,
            "files": list(made.files),
            "written": made.written,
            "warnings": [problem_as_json(warning) for warning in made.warnings],
        },
        text=None if shown is None else lambda _: shown,
        aside=lambda screen: screen.advice(_created_text(made, screen, shown=shown is not None)),
    )


def list_all(call: Invocation) -> CommandResult:
    rows = list_tokens(call.config, call.environ)
    return CommandResult(
        data={
            "tokens": [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "scopes": list(row.scopes),
                    "variable": row.variable,
                    "file": row.file,
                    "line": row.line,
                }
                for row in rows
            ]
        },
        text=lambda screen: _list_text(rows, screen),
    )


def revoke(call: Invocation) -> CommandResult:
    done = revoke_token(call.config, call.environ, call.text("NAME"), dry_run=call.switch("dry_run"))
    return CommandResult(
        data={"name": done.name, "files": list(done.files), "written": done.written},
        text=lambda screen: screen.advice(_revoked_text(done)),
    )


def _created_text(made: CreatedToken, screen: Console, *, shown: bool) -> str:
    doubts = "".join(
        f"{screen.style('yellow', 'warning:')} {printable(warning.message)}"
        f"{f'; {printable(warning.hint)}' if warning.hint else ''}\n"
        for warning in made.warnings
    )
    what = "token" if made.scopes else "secret"
    if not made.written:
        return f"{doubts}Would create the {what} {made.name} and write {', '.join(made.files)}."
    about = " Its value is shown only once." if shown else ""
    line = f"Created the {what} {made.name} and wrote {', '.join(made.files)}.{about}"
    return f"{doubts}{line}\nA running daemon accepts it after `ductile reload`."


def _revoked_text(done: RevokedToken) -> str:
    files = ", ".join(done.files)
    if not done.written:
        return f"Would revoke {done.name}: remove it from {files}."
    return f"Revoked {done.name} in {files}.\nA running daemon still accepts it until `ductile reload`."


def _list_text(rows: tuple[TokenRow, ...], screen: Console) -> str:
    if not rows:
        return "There are no tokens. Create one with `ductile token create`."
    table = [
        (row.name or "-", row.kind, " ".join(row.scopes) or "-", screen.place(f"{row.file}:{row.line}"))
        for row in rows
    ]
    return screen.table(("NAME", "KIND", "SCOPES", "WHERE"), table)
