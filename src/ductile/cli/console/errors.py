"""Errors as JSON and as text: the problem, its place, the expected value and a hint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ductile.cli.console.console import Console, add_daemon_options, escape_controls, indent_continuation
from ductile.errors import ConfigError, DuctileError, Problem

if TYPE_CHECKING:
    from ductile.core.json import JsonObject


#: Names of fields whose text has commands to copy.
_COMMAND_FIELDS = ("hint:", "fix:")


def error_as_json(error: DuctileError, daemon_options: str | None = None) -> JsonObject:
    details: JsonObject = dict(error.details)  # type: ignore[arg-type]  # values are JSON by contract
    if isinstance(error, ConfigError):
        details["problems"] = [asdict(problem) for problem in error.problems]
    body: JsonObject = {
        "code": error.code,
        "message": error.message,
        "hint": None if error.hint is None else add_daemon_options(error.hint, daemon_options),
        "details": details,
    }
    return {"error": body, "message": error.message}


def error_as_text(error: DuctileError, console: Console) -> str:
    lines = [f"{console.style('red', 'error:')} {indent_continuation(error.message)}"]
    if isinstance(error, ConfigError) and error.problems:
        lines += ["", problems_as_text(error.problems, console, common_hint=error.hint), ""]
    if error.hint:
        lines.append(_hint("", "hint:", console.style("bold", "hint:"), error.hint, console))
    return "\n".join(lines).rstrip()


def problems_as_text(problems: Sequence[Problem], console: Console, *, common_hint: str | None = None) -> str:
    """Return one paragraph for each problem, by file and line. A hint equal to `common_hint` is left out."""
    paragraphs = []
    files = list(dict.fromkeys(problem.file for problem in problems))
    for problem in sorted(problems, key=lambda problem: (files.index(problem.file), problem.line or 0)):
        location = console.style("bold", console.path(problem.location))
        title = "  ".join(part for part in (location, escape_controls(problem.key or "")) if part)
        hint = None if problem.hint == common_hint else problem.hint
        fields = (("expected", problem.expected), ("found", problem.found), ("hint", hint))
        paragraphs.append(paragraph(title, problem.message, fields, console))
    return "\n\n".join(paragraphs)


def paragraph(title: str, message: str, fields: Sequence[tuple[str, str | None]], console: Console) -> str:
    """Return the title, the message, and one line for each field that has a value."""
    filled = [(f"{name}:", text) for name, text in fields if text]
    width = max((len(name) for name, _ in filled), default=0)
    lines = [f"  {title}"] if title else []
    lines += [f"    {line}" for line in escape_controls(message).split("\n")]
    for name, text in filled:
        padded = name.ljust(width)
        styled = console.style("dim", padded)
        if name in _COMMAND_FIELDS:
            lines.append(_hint("    ", padded, styled, text, console))
        else:
            lines.append(f"    {styled} {indent_continuation(text, ' ' * (width + 5))}")
    return "\n".join(lines)


def _hint(indent: str, name: str, styled: str, text: str, console: Console) -> str:
    """Return a hint beside its name. On a terminal it is wrapped, unless the text has line breaks."""
    hint = console.hint(text)
    if "\n" in hint:
        return f"{indent}{styled} {hint}"
    first, *others = console.wrap_beside(f"{indent}{name} ", hint)
    return "\n".join([f"{indent}{styled}{first[len(indent) + len(name) :]}", *others])
