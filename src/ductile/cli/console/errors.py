"""Errors, shown once and in one way: what was wrong, where, what was expected, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.console.console import indent_continuation, printable
from ductile.cli.console.hints import add_config_option
from ductile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject
    from ductile.errors import DuctileError, Problem


#: Facts that tell what to do.
_ADVISING = ("hint:", "fix:")


def error_as_json(error: DuctileError, config: str | None = None) -> JsonObject:
    details: JsonObject = dict(error.details)  # type: ignore[arg-type]  # values are JSON by contract
    if isinstance(error, ConfigError):
        details["problems"] = [problem_as_json(problem) for problem in error.problems]
    body: JsonObject = {
        "code": error.code,
        "message": error.message,
        "hint": None if error.hint is None else add_config_option(error.hint, config),
        "details": details,
    }
    return {"error": body, "message": error.message}


def problem_as_json(problem: Problem) -> JsonObject:
    return {
        "message": problem.message,
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "expected": problem.expected,
        "found": problem.found,
        "hint": problem.hint,
    }


def error_as_text(error: DuctileError, screen: Console) -> str:
    lines = [f"{screen.style('red', 'error:')} {indent_continuation(error.message)}"]
    if isinstance(error, ConfigError) and error.problems:
        lines += ["", problems_as_text(error.problems, screen, said=error.hint), ""]
    if error.hint:
        lines.append(f"{screen.style('bold', 'hint:')} {screen.advice(error.hint)}")
    return "\n".join(lines).rstrip()


def problems_as_text(problems: Sequence[Problem], screen: Console, *, said: str | None = None) -> str:
    """One paragraph for each, in the order of the files, so that they can be corrected top to bottom.
    A hint that is said for all of them is not repeated for each.
    """
    return "\n\n".join(_paragraph(problem, screen, said) for problem in in_file_order(problems))


def paragraph(title: str, message: str, facts: Sequence[tuple[str, str | None]], screen: Console) -> str:
    """What it is about, what is wrong with it, and one line for each fact that is known."""
    known = [(f"{name}:", text) for name, text in facts if text]
    width = max((len(name) for name, _ in known), default=0)
    lines = [f"  {title}"] if title else []
    lines += [f"    {line}" for line in printable(message).split("\n")]
    lines += [
        f"    {screen.style('dim', name.ljust(width))} "
        f"{screen.advice(text) if name in _ADVISING else indent_continuation(text, ' ' * (width + 5))}"
        for name, text in known
    ]
    return "\n".join(lines)


def in_file_order(problems: Sequence[Problem]) -> list[Problem]:
    """Files keep the order in which they first occur."""
    files = list(dict.fromkeys(problem.file for problem in problems))
    return sorted(problems, key=lambda problem: (files.index(problem.file), problem.line or 0))


def _paragraph(problem: Problem, screen: Console, said: str | None) -> str:
    place = screen.style("bold", screen.place(problem.place))
    title = "  ".join(part for part in (place, printable(problem.key or "")) if part)
    hint = None if problem.hint == said else problem.hint
    facts = (("expected", problem.expected), ("found", problem.found), ("hint", hint))
    return paragraph(title, problem.message, facts, screen)
