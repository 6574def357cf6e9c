"""The way in: find the command, call it, show its answer, end with the right status.

Kept light, since it is paid for by every invocation: what a command needs is imported when it is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from ductile.cli import help as help_texts
from ductile.cli.console.hints import add_config_option, config_option
from ductile.cli.parser import ParsedCommand, parse, wants_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ductile.cli.command_table import Action
    from ductile.cli.invocation import CommandHandler, CommandResult
    from ductile.core.json import JsonObject
    from ductile.errors import DuctileError

_OK = 0
_USAGE = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
#: Parameters of operations that go by another name on the command line.
_OPTIONS_OF = {"submitted_by": ("--by",), "limit": ("--limit", "-n"), "count": ("--count", "-n")}


def main() -> int:
    """What the `ductile` script calls."""
    import os  # noqa: PLC0415 - loaded by the interpreter itself; here to keep the environment an argument

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run(sys.argv[1:], os.environ, sys.stdout, sys.stderr)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain at exit about what is unwritten.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status


def run(words: Sequence[str], environ: Mapping[str, str], out: TextIO, err: TextIO) -> int:
    """One invocation from first to last."""
    try:
        request = parse(words)
        if request.action is None or request.help:
            return _show_help(request, out, err)
        return _show_answer(_call(request.action, request, environ, out), request, environ, out, err)
    except KeyboardInterrupt as stop:
        if stop.args:  # what goes on all the same
            print(add_config_option(stop.args[0], config_option(words)), file=err)
        return _INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as fault:  # noqa: BLE001 - the last line: nobody is shown a traceback for a mistake
        return _show_error(_as_error(fault, words, err), words, environ, out, err)


def _as_error(fault: Exception, words: Sequence[str], err: TextIO) -> DuctileError:
    from ductile.errors import DuctileError  # noqa: PLC0415 - 15 ms, for when something is wrong

    if isinstance(fault, DuctileError):
        return fault
    verbose = any(flag in words for flag in ("-v", "--verbose"))
    if verbose:
        from traceback import print_exception  # noqa: PLC0415

        print_exception(fault, file=err)
    # Not the exception's own text: nobody has looked at what it may hold.
    return DuctileError(
        f"internal_error: an unexpected fault in Ductile ({type(fault).__name__})",
        hint="please report it with the traceback above" if verbose else "run with -v for the traceback",
    )


def _call(action: Action, request: ParsedCommand, environ: Mapping[str, str], out: TextIO) -> CommandResult:
    from ductile.cli.invocation import Invocation  # noqa: PLC0415 - help does without

    return _load(action)(
        Invocation(
            arguments=request.arguments,
            config=request.config,
            verbose=request.verbose,
            environ=environ,
            json=request.json,
            out=out,
        )
    )


def _load(action: Action) -> CommandHandler:
    from importlib import import_module  # noqa: PLC0415

    module, _, function = action.run.partition(":")
    command: CommandHandler = getattr(import_module(f"ductile.cli.{module}"), function)
    return command


def _show_help(request: ParsedCommand, out: TextIO, err: TextIO) -> int:
    if request.action is not None:
        text = help_texts.about_action(request.words, request.action)
    elif request.noun is not None:
        text = help_texts.about_noun(request.noun)
    else:
        text = help_texts.overview()
    if request.help:
        print(text, file=out)
        return _OK
    if request.json:
        from ductile.errors import UsageError  # noqa: PLC0415

        what = f"{request.noun.name} needs an action" if request.noun else "a command is needed"
        raise UsageError(what, hint="see `ductile --help`")
    print(text, file=err)
    return _USAGE


def _show_answer(
    answer: CommandResult, request: ParsedCommand, environ: Mapping[str, str], out: TextIO, err: TextIO
) -> int:
    if answer.data is not None and request.json:
        # Said here for all of them: who reads the answer sees whether anything was done.
        tried: JsonObject = {"dry_run": True} if request.arguments.get("dry_run") else {}
        print(_json(answer.data | tried), file=out)
    elif answer.data is not None:
        from ductile.cli.console.console import console_for  # noqa: PLC0415

        for part, stream in ((answer.text, out), (answer.aside, err)):
            if part is not None:
                _print_text(part(console_for(stream, environ, request.config)), stream)
    return answer.exit_status


def _show_error(
    error: DuctileError, words: Sequence[str], environ: Mapping[str, str], out: TextIO, err: TextIO
) -> int:
    from ductile.cli.console.console import console_for  # noqa: PLC0415
    from ductile.cli.console.errors import error_as_json, error_as_text  # noqa: PLC0415

    config = config_option(words)
    _name_option(error, words)
    if wants_json(words):
        print(_json(error_as_json(error, config)), file=out)
    else:
        _print_text(error_as_text(error, console_for(err, environ, config)), err)
    return error.exit_status


def _print_text(text: str, stream: TextIO) -> None:
    """Print text as it is for a program; for a terminal, without characters that steer it."""
    if stream.isatty():
        from ductile.core.terminal_text import escape_beyond_ascii  # noqa: PLC0415

        text = escape_beyond_ascii(text)
    print(text, file=stream)


def _name_option(error: DuctileError, words: Sequence[str]) -> None:
    """An operation names a wrong value by its parameter; on the command line that is the option typed."""
    name = str(error.details.get("field") or "")
    flags = _OPTIONS_OF.get(name, (f"--{name}",))
    typed = next((word for word in (each.partition("=")[0] for each in words) if word in flags), None)
    if name and typed is not None and error.message.startswith((f"{name}:", f"{name} ")):
        error.message = f"{typed}{error.message.removeprefix(name)}"


def _json(data: JsonObject) -> str:
    import json  # noqa: PLC0415 - 14 ms that text and help do not pay

    from ductile.core.terminal_text import escape_in_json  # noqa: PLC0415

    return escape_in_json(json.dumps(data, indent=2, ensure_ascii=False))
