"""`ductile token …`"""

from __future__ import annotations

from ductile.cli.console.console import Console, printable
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, Argument, Example, Option, action


@action(
    "create",
    "create a token, and show its value only once",
    arguments=(Argument("NAME", "its name in logs and in `secret_ref`"),),
    options=(
        Option(
            "--scopes LIST",
            "its permissions, such as jobs:ro,plugin:rw; without scopes it is a secret for "
            "signatures and opens nothing",
        ),
        Option("--stdin", "read the value from standard input instead of generating one"),
        DRY_RUN,
    ),
    about="The value goes to the env file, a reference to it and the scopes to tokens.yaml and "
    "scopes/NAME.json, and the seal of these files is renewed; they have to be as they were sealed. "
    "The daemon accepts it from the next `ductile reload`.",
    examples=(
        Example(
            "ductile token create ci --scopes jobs:ro,plugin:rw",
            "for a program that runs plugins and looks at jobs",
        ),
        Example(
            "ductile token create github-secret --stdin",
            "the secret that another service signs its webhooks with",
        ),
    ),
)
def create(invocation: Invocation) -> CommandResult:
    import sys
    from dataclasses import asdict

    from ductile.admin.tokens import create_token

    scopes = tuple(part.strip() for part in (invocation.optional("scopes") or "").split(",") if part.strip())
    given = sys.stdin.read() if invocation.switch("stdin") else None
    created = create_token(
        invocation.config,
        invocation.environ,
        invocation.text("NAME"),
        scopes,
        value=given,
        dry_run=invocation.switch("dry_run"),
    )
    # A value that was read from standard input is not shown again.
    shown = created.value if given is None else None

    def note(console: Console) -> str:
        warnings = "".join(
            f"{console.style('yellow', 'warning:')} {printable(warning.message)}"
            f"{f'; {printable(warning.hint)}' if warning.hint else ''}\n"
            for warning in created.warnings
        )
        kind, files = "token" if created.scopes else "secret", ", ".join(created.files)
        if not created.written:
            return f"{warnings}Would create the {kind} {created.name} and write {files}."
        once = " Its value is shown only once." if shown is not None else ""
        line = f"Created the {kind} {created.name} and wrote {files}.{once}"
        hint = console.hint("A running daemon accepts it after `ductile reload`.")
        return f"{warnings}{line}\n{hint}"

    return CommandResult(
        {
            "name": created.name,
            "kind": "token" if created.scopes else "secret",
            "scopes": list(created.scopes),
            "token": shown,
            "variable": created.variable,
            "files": list(created.files),
            "written": created.written,
            "warnings": [asdict(warning) for warning in created.warnings],
        },
        text=shown,
        note=note,
    )


@action("list", "list tokens and secrets, without their values")
def list_tokens(invocation: Invocation) -> CommandResult:
    from ductile.admin import tokens

    rows = tokens.list_tokens(invocation.config, invocation.environ)
    names = ("name", "kind", "scopes", "variable", "file", "line")

    def text(console: Console) -> str:
        if not rows:
            return "There are no tokens. Create one with `ductile token create`."
        table = [
            (row.name or "-", row.kind, " ".join(row.scopes) or "-", console.path(f"{row.file}:{row.line}"))
            for row in rows
        ]
        return console.table(("NAME", "KIND", "SCOPES", "WHERE"), table)

    return CommandResult({"tokens": [{name: getattr(row, name) for name in names} for row in rows]}, text)


@action(
    "revoke",
    "revoke a token: remove its entry, its value and its scopes",
    arguments=(Argument("NAME", "name of the token"),),
    options=(DRY_RUN,),
    about="Refused while a webhook needs it, or if no token could use the API any more. "
    "A running daemon accepts it until `ductile reload`.",
)
def revoke(invocation: Invocation) -> CommandResult:
    from ductile.admin.tokens import revoke_token
    from ductile.struct import to_builtins

    done = revoke_token(
        invocation.config, invocation.environ, invocation.text("NAME"), dry_run=invocation.switch("dry_run")
    )
    files = ", ".join(done.files)
    text = f"Would revoke {done.name}: remove it from {files}."
    if done.written:
        text = f"Revoked {done.name} in {files}.\nA running daemon still accepts it until `ductile reload`."
    return CommandResult(to_builtins(done), lambda console: console.hint(text))
