"""Entry point of the `ductile` command: parse, run the command, print its result, return the exit status.

Every invocation pays for this module, so it imports little; a command's module is imported when it is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from ductile.cli import help as help_texts
from ductile.cli.parser import ParsedCommand, find_daemon_options, parse, wants_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ductile.cli.invocation import CommandResult, Invocation
    from ductile.cli.remote import RemoteDaemon
    from ductile.cli.spec import Action
    from ductile.errors import DuctileError

_OK = 0
_USAGE = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
#: Commands that read no configuration.
_WITHOUT_CONFIG = ("version", "init", "config init", "config schema", "plugin new", "system completion")


def main() -> int:
    """Run the command line of this process. Called by the `ductile` script."""
    import os

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run(sys.argv[1:], os.environ, sys.stdout, sys.stderr)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it. Python would complain at exit about unwritten output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status


def run(words: Sequence[str], environ: Mapping[str, str], out: TextIO, err: TextIO) -> int:
    """Run one command line and return its exit status. Prints errors; raises BrokenPipeError only."""
    parsed = ParsedCommand()
    try:
        parsed = parse(words)
        if parsed.action is None or parsed.help:
            return _show_help(parsed, out, err)
        from ductile.cli.invocation import Invocation

        invocation = Invocation(
            action=parsed.action,
            arguments=parsed.arguments,
            config=parsed.config,
            verbose=parsed.verbose,
            environ=environ,
            json=parsed.json,
            out=out,
            remote=_remote(parsed, environ),
            daemon_options=find_daemon_options(words),
        )
        if (
            parsed.verbose
            and not parsed.json
            and (line := _used_config(parsed.config, environ, verbose=True))
        ):
            print(line, file=err)
        return _show_result(parsed.action.run(invocation), invocation, err)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:  # a hint that the job continues
            from ductile.cli.console.console import add_daemon_options

            print(add_daemon_options(interrupt.args[0], find_daemon_options(words)), file=err)
        return _INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as exception:  # noqa: BLE001 - a mistake must not end in a traceback
        status = _show_error(exception, parsed.action, words, environ, out, err)
        # Another configuration than the user expects can be the cause: name the one that was used.
        if (
            parsed.action is not None
            and parsed.command not in _WITHOUT_CONFIG
            and status != _USAGE
            and not (parsed.json or parsed.verbose or parsed.config)
            and not (parsed.url or environ.get("DUCTILE_URL"))
            and (line := _used_config(None, environ))
        ):
            print(line, file=err)
        return status


def _used_config(config: str | None, environ: Mapping[str, str], *, verbose: bool = False) -> str | None:
    """Return which configuration is used; with `verbose`, also which ones were not. None without one."""
    import os

    from ductile.config.find_config import locate_config
    from ductile.core.terminal_text import escape_controls
    from ductile.errors import ConfigError

    try:
        located = locate_config(config, environ)
    except ConfigError:
        return None
    path = os.path.relpath(located.path) if located.origin.startswith("found") else str(located.path)
    lines = [f"configuration: {path} ({located.origin})"]
    lines += [f"  {reason}" for reason in located.skipped_reasons if verbose]
    return "\n".join(escape_controls(line).replace("\n", " ") for line in lines)


def _remote(parsed: ParsedCommand, environ: Mapping[str, str]) -> RemoteDaemon | None:
    """Return the daemon of --url or DUCTILE_URL; None if the command is for the daemon of this machine.

    --url and --config count more than DUCTILE_URL. Raises UsageError if the command does not work with --url.
    """
    action = parsed.action
    url = parsed.url if parsed.config or parsed.url is not None else environ.get("DUCTILE_URL")
    if not url:
        if parsed.token_env or parsed.ca:
            from ductile.errors import UsageError

            raise UsageError("--token-env and --ca go with --url", hint="such as --url https://HOST")
        return None
    from ductile.cli.spec import NO_DAEMON
    from ductile.errors import UsageError

    if parsed.config and parsed.url:
        hint = "--config is for the daemon of this machine, --url for one elsewhere"
        raise UsageError("--config and --url cannot be used together", hint=hint)
    if action is not None and action.local_reason:
        if action.local_reason == NO_DAEMON and not parsed.url:
            return None
        origin = "--url" if parsed.url else "DUCTILE_URL"
        raise UsageError(
            f"ductile {parsed.command} does not work with {origin}: {action.local_reason}",
            hint="Run it there, without --url; for a daemon of this machine: --config PATH."
            if parsed.url
            else "For the daemon of this machine: --config PATH, or unset DUCTILE_URL.",
        )
    from ductile.cli.remote import find_remote

    return find_remote(url, parsed.token_env, parsed.ca, environ)


def _name_option(error: DuctileError, action: Action | None, words: Sequence[str]) -> None:
    """Replace the field name in an error of an operation by the option that was typed for it."""
    name = str(error.details.get("field") or "")
    if action is None or not error.message.startswith((f"{name}:", f"{name} ")):
        return
    options = [option for option in action.options if name in (option.field, option.destination)]
    flags = [flag for option in options for flag in option.flags]
    flag = next((word for word in (argument.partition("=")[0] for argument in words) if word in flags), None)
    if flag is not None:
        error.message = f"{flag}{error.message.removeprefix(name)}"


def _show_help(parsed: ParsedCommand, out: TextIO, err: TextIO) -> int:
    if parsed.action is not None:
        text = help_texts.action_help(parsed.command, parsed.action)
    elif parsed.noun is not None:
        text = help_texts.noun_help(parsed.noun)
    else:
        text = help_texts.overview()
    if parsed.help:
        print(text, file=out)
        return _OK
    if parsed.json:
        from ductile.errors import UsageError

        message = f"{parsed.noun.name} needs an action" if parsed.noun else "a command is needed"
        raise UsageError(message, hint="see `ductile --help`")
    print(text, file=err)
    return _USAGE


def _indent(out: TextIO) -> int | None:
    """Return how far JSON is indented on a terminal; None elsewhere: a program gets one line."""
    return 2 if out.isatty() else None


def _show_result(result: CommandResult, invocation: Invocation, err: TextIO) -> int:
    if result.data is not None and invocation.json:
        # Every command says whether it was a dry run, so that a program sees whether anything was changed.
        dry_run = {"dry_run": True} if invocation.switch("dry_run") else {}
        from ductile.cli.console.format import to_json

        print(to_json(result.data | dry_run, indent=_indent(invocation.out)), file=invocation.out)
    elif result.data is not None:
        from ductile.cli.console.console import console_for

        for part, stream in ((result.text, invocation.out), (result.note, err)):
            if isinstance(part, str):
                _print_text(part, stream)
            elif part is not None:
                verbose = invocation.verbose
                console = console_for(stream, invocation.environ, invocation.daemon_options, verbose=verbose)
                _print_text(part(console), stream)
    return int(result.exit_status)


def _show_error(
    exception: Exception,
    action: Action | None,
    words: Sequence[str],
    environ: Mapping[str, str],
    out: TextIO,
    err: TextIO,
) -> int:
    """Print an exception as an error and return its exit status. Unexpected ones have a traceback with -v."""
    from ductile.errors import DuctileError

    if isinstance(exception, DuctileError):
        error = exception
    else:
        verbose = any(flag in words for flag in ("-v", "--verbose"))
        if verbose:
            from traceback import print_exception

            print_exception(exception, file=err)
        # The exception's own text is left out: it may contain secrets.
        error = DuctileError(
            f"internal_error: an unexpected error in Ductile ({type(exception).__name__})",
            hint="please report it with the traceback above" if verbose else "run with -v for the traceback",
        )
    _name_option(error, action, words)
    from ductile.cli.console.console import console_for
    from ductile.cli.console.errors import error_as_json, error_as_text
    from ductile.cli.console.format import to_json

    daemon_options = find_daemon_options(words)
    if wants_json(words):
        print(to_json(error_as_json(error, daemon_options), indent=_indent(out)), file=out)
    else:
        _print_text(error_as_text(error, console_for(err, environ, daemon_options)), err)
    return error.exit_status


def _print_text(text: str, stream: TextIO) -> None:
    """Print text unchanged for a program; for a terminal, with control characters escaped."""
    if stream.isatty():
        from ductile.core.terminal_text import escape_beyond_ascii

        text = escape_beyond_ascii(text)
    print(text, file=stream)
