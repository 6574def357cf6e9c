"""Scripts: read a command line, pass the payload to its process, and decide which failures are retried.

A script is a program that knows nothing of Ductile's protocol. Its payload is in its environment and on its
stdin, never in the text that a shell reads.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ductile.core.jobs.model import OutputFormat
from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value

#: The plugin of jobs that run a command which no configuration names. No plugin can be configured under it.
EXEC_PLUGIN = "exec"
SHELL = "/bin/sh"
PAYLOAD_VARIABLE = "DUCTILE_PAYLOAD"
KEY_PREFIX = "PAYLOAD_"
#: The most bytes of one variable. Linux allows 128 KiB, including the name.
MAX_VARIABLE = 100_000
#: The most bytes of all variables of one payload: a quarter of the usual limit of the system.
MAX_VARIABLES = 500_000
#: The exit status by which a program declares that a retry cannot help: EX_CONFIG of sysexits.h.
EXIT_CONFIG = 78

#: Characters that have a meaning in a shell.
_SHELL_SYNTAX = re.compile(r"[|&;<>()$`\\\"'*?\[\]#~!{}\n\r]|^\s*[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
#: Words that only a shell understands.
_BUILTINS = frozenset(
    (
        ".",
        ":",
        "cd",
        "command",
        "eval",
        "exec",
        "exit",
        "export",
        "set",
        "trap",
        "type",
        "ulimit",
        "umask",
        "wait",
    )
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.ASCII | re.DOTALL)
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9_]", re.ASCII)


class CommandLine(Value):
    """The words to execute, and the word among them that names the program.

    `program` is None if only a shell can determine it, when it runs.
    """

    argv: tuple[str, ...]
    program: str | None
    needs_shell: bool = False


def read_command(run: str | Sequence[str]) -> CommandLine:
    """Read the `run` of a script: a list is executed as it is, a text with a shell's syntax by `sh -c`.

    A text without such syntax is split at its blanks. Raises ValueError if it cannot be executed.
    """
    if any("\0" in word for word in run):
        raise ValueError("it contains a NUL character")
    if not isinstance(run, str):
        if not run or not run[0].strip():
            raise ValueError("it names no program")
        return CommandLine(argv=tuple(run), program=run[0])
    words = run.split()
    if not words:
        raise ValueError("it names no program")
    if not _SHELL_SYNTAX.search(run) and words[0] not in _BUILTINS:
        return CommandLine(argv=tuple(words), program=words[0])
    return CommandLine(argv=(SHELL, "-c", run), program=_first_program(run), needs_shell=True)


def _first_program(text: str) -> str | None:
    """Return the first word that a shell would execute, if it is written out and names a path."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    try:
        word = next((token for token in lexer if not _ASSIGNMENT.fullmatch(token)), None)
    except ValueError:  # A quote without its end: the shell reports it.
        return None
    return word if word is not None and "/" in word and not _SHELL_SYNTAX.search(word) else None


def payload_variables(payload: JsonObject) -> dict[str, str]:
    """Return `PAYLOAD_<KEY>` for each top-level scalar that fits into a variable.

    Of several keys with the same variable name, the first counts. Null, objects, lists, texts with a NUL and
    texts that are no valid Unicode have no variable.
    """
    variables: dict[str, str] = {}
    size = 0
    for key, value in payload.items():
        name, text = variable_name(key), _variable_text(value)
        if text is None or name in variables:
            continue
        size += len(name) + len(text.encode())
        if size > MAX_VARIABLES:
            break
        variables[name] = text
    return variables


def variable_name(key: str) -> str:
    return KEY_PREFIX + _NOT_IN_A_NAME.sub("_", key.upper())


def _variable_text(value: JsonValue) -> str | None:
    """Return a value as the text of a variable; None if it has none."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str() if "\0" not in value:
            try:
                return value if len(value.encode()) <= MAX_VARIABLE else None
            except UnicodeEncodeError:
                return None
        case _:
            return None


def script_environment(payload: JsonObject, encoded: bytes) -> Mapping[str, str]:
    """Return the variables of a payload. `DUCTILE_PAYLOAD` is left out if the payload is too large for it."""
    variables = payload_variables(payload)
    if len(encoded) <= MAX_VARIABLE:
        variables[PAYLOAD_VARIABLE] = encoded.decode()
    return variables


class RetryRule(Value):
    """The exit statuses after which a script is retried; `statuses` of None: all but 78."""

    statuses: frozenset[int] | None = None

    def should_retry(self, exit_code: int | None) -> bool:
        """Return whether a failure is retried. A failure without exit status, such as a timeout, has None."""
        if self.statuses is None:
            return exit_code != EXIT_CONFIG
        return exit_code in self.statuses


RETRY_ALL = RetryRule()


def done_event(plugin: str) -> str:
    """Return the type of the event that a script emits when it succeeds."""
    return f"{plugin}.done"


class ExecCommand(Value):
    """A command of `ductile exec`, as it is stored in the payload of its job."""

    argv: tuple[str, ...]
    #: The working directory of the caller.
    cwd: str
    #: Seconds after which it is ended.
    timeout: float

    def as_payload(self) -> JsonObject:
        return {"argv": [*self.argv], "cwd": self.cwd, "timeout": self.timeout}

    @classmethod
    def from_payload(cls, payload: JsonObject | None) -> ExecCommand | None:
        """Return the command; None if the payload is not one."""
        match payload:
            case {"argv": [_, *_] as argv, "cwd": str(cwd), "timeout": int() | float() as timeout} if all(
                isinstance(word, str) for word in argv
            ):
                return cls(argv=tuple(str(word) for word in argv), cwd=cwd, timeout=timeout)
            case _:
                return None


class Script(Value):
    """A program that is run as a plugin, and how its output and exit status are read."""

    argv: tuple[str, ...]
    #: Its working directory, absolute.
    directory: str
    output: OutputFormat = OutputFormat.TEXT
    retry: RetryRule = RETRY_ALL
    #: The type of the event that a success emits; None for none.
    done_event: str | None = None
