"""`ductile config edit`: a file of the configuration in an editor, checked before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.commands.config.files import (
    APPLY,
    LOCK,
    apply_change,
    apply_hint,
    change_as_json,
    change_text,
    wants_apply,
)
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, Argument, Example, action

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.admin.config import SettingChange
    from ductile.errors import DuctileError


@action(
    "edit",
    "edit a file in your editor; it is checked before it is written",
    local_reason=CONFIG_FILES,
    arguments=(Argument("FILE", "a file of the configuration (default config.yaml)", required=False),),
    options=(DRY_RUN, APPLY, LOCK),
    about="Opens a copy with $VISUAL or $EDITOR. When the editor ends, the whole configuration is checked "
    "with the new text; only then does it replace the file, at once. On a terminal, problems are shown and "
    "you can edit again; otherwise nothing is written and the text is kept where the message says.",
    examples=(
        Example("ductile config edit --apply", "and put it in force when the editor ends"),
        Example("ductile config edit tokens.yaml --lock", "and renew the seal of that file"),
    ),
)
def edit(invocation: Invocation) -> CommandResult:
    from ductile.admin.config import EditCopy, find_file, replace_text
    from ductile.errors import DuctileError

    file = find_file(invocation.config, invocation.environ, invocation.optional("FILE"))
    command = _editor(invocation)
    copy = EditCopy.of(file)
    applies = wants_apply(invocation)
    accepted: SettingChange | None = None
    applied: CommandResult | None = None
    while accepted is None:
        _run_editor(command, copy.path)
        try:
            change = replace_text(
                invocation.config,
                invocation.environ,
                file,
                copy.read(),
                original_hash=copy.original_hash,
                lock=invocation.switch("lock"),
                dry_run=applies or invocation.switch("dry_run"),
            )
            applied = apply_change(invocation, change) if applies else None
            accepted = change
        except DuctileError as error:
            if _wants_to_edit_again(error, invocation):
                continue
            if not error.message.startswith("nothing was written"):
                error.message = f"nothing was written: {error.message}"
            location = f"your text is kept in {copy.path}"
            error.hint = location if error.hint is None else f"{error.hint}; {location}"
            raise
    copy.remove()
    if applied is not None:
        return applied
    if not accepted.diff:
        return CommandResult(change_as_json(accepted), "Nothing was changed.")
    hint = apply_hint(invocation, sealed=accepted.sealed)
    return CommandResult(change_as_json(accepted), lambda console: change_text(accepted, console, hint=hint))


def _editor(invocation: Invocation) -> list[str]:
    """Return the words of the editor's command line. Raises UsageError without an editor and a terminal."""
    import shlex
    import sys

    from ductile.errors import UsageError

    command = invocation.environ.get("VISUAL") or invocation.environ.get("EDITOR")
    if not command:
        if not sys.stdin.isatty():
            raise UsageError("no editor is set", hint="set EDITOR, or use `ductile config set`")
        command = "vi"
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise UsageError(f"the editor {command!r} is not a command", hint="set EDITOR to a program")
    return words


def _run_editor(command: list[str], path: Path) -> None:
    """Run the editor and wait for its end. Raises RefusedError if it cannot be started or fails."""
    import subprocess

    from ductile.errors import RefusedError

    try:
        status = subprocess.run([*command, str(path)], check=False).returncode
    except OSError as error:
        raise RefusedError(
            f"the editor {command[0]} cannot be started: {error.strerror}", hint="set EDITOR to a program"
        ) from None
    if status != 0:
        raise RefusedError(
            f"nothing was written: the editor {command[0]} ended with status {status}",
            hint=f"the text is kept in {path}",
        )


def _wants_to_edit_again(error: DuctileError, invocation: Invocation) -> bool:
    """Show the error on a terminal and ask the user. False without a terminal."""
    import sys

    from ductile.cli.console.console import console_for
    from ductile.cli.console.errors import error_as_text

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(
        f"{error_as_text(error, console_for(sys.stderr, invocation.environ))}\n\nEdit again? [Y/n] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")
