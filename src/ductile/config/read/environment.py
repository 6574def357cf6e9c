"""Environment files: `NAME=value` lines that stand behind the real environment.

The usual form and no more: comments, an optional `export`, quotes. Nothing is expanded, because a
value has to come out as it went in. Messages name lines and variables, never values.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.config.file_io import read_regular_file
from ductile.config.find_config import is_url, resolve_path
from ductile.config.key_paths import problem_at
from ductile.config.read.includes import find_symlinks
from ductile.config.read.interpolate import has_reference
from ductile.errors import Problem
from ductile.protocol.yaml import ListNode, MapNode, ScalarNode
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@hide_in_repr("data")
class EnvironmentFile(Value):
    path: Path
    data: bytes
    #: The names of the variables that it sets.
    names: frozenset[str] = frozenset()


@hide_in_repr("variables")
class EnvironmentFiles(Value):
    files: tuple[EnvironmentFile, ...]
    variables: Mapping[str, str]
    problems: tuple[Problem, ...]
    links: tuple[Path, ...]
    #: Files that are named and could not be read.
    unread: tuple[Path, ...] = ()


def load_environment_files(
    root: MapNode, directory: Path, overlay: Mapping[Path, bytes] = MappingProxyType({})
) -> EnvironmentFiles:
    """Read the files that `environment_vars.include` names; of two values the later file's counts.

    A file in the overlay is taken from there.
    """
    files: list[EnvironmentFile] = []
    variables: dict[str, str] = {}
    problems: list[Problem] = []
    links: list[Path] = []
    unread: list[Path] = []
    for index, item in _named_files(root):
        complaint = _complaint(item.text)
        path = resolve_path(item.text, directory)
        try:
            data = b"" if complaint else overlay[path] if path in overlay else read_regular_file(path)
        except OSError as error:
            complaint = f"the environment file {path} cannot be read: {error.strerror}"
            data = b""
            unread.append(path)
        if complaint:
            problems.append(problem_at(item.place, ("environment_vars", "include", index), complaint))
            continue
        links += find_symlinks(path, directory)
        parsed, faults = parse_environment(data, file=str(path))
        files.append(EnvironmentFile(path=path, data=data, names=frozenset(parsed)))
        variables |= parsed
        problems += faults
    return EnvironmentFiles(
        files=tuple(files),
        variables=variables,
        problems=tuple(problems),
        links=tuple(links),
        unread=tuple(unread),
    )


def parse_environment(data: bytes, *, file: str) -> tuple[dict[str, str], tuple[Problem, ...]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return {}, (Problem(message="the file is not valid UTF-8", file=file, line=1),)
    variables: dict[str, str] = {}
    problems = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        value = _value(found["value"]) if found else None
        if found is None or value is None or "\0" in value:
            problems.append(_bad_line(file, number))
        else:
            variables[found["name"]] = value
    return variables, tuple(problems)


def _value(text: str) -> str | None:
    """The value behind the equals sign, or None if its quotes do not close."""
    if text.startswith('"'):
        quoted = _DOUBLE_QUOTED.fullmatch(text)
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), quoted[1]) if quoted else None
    if text.startswith("'"):
        quoted = _SINGLE_QUOTED.fullmatch(text)
        return quoted[1] if quoted else None
    return re.split(r"\s+#", text, maxsplit=1)[0].strip()


def _bad_line(file: str, number: int) -> Problem:
    return Problem(
        message="this line of the environment file cannot be read",
        file=file,
        line=number,
        expected="NAME=value, with any quotes closed on the same line",
    )


def _complaint(text: str) -> str | None:
    if has_reference(text):
        return "the path of an environment file cannot use variables"
    if is_url(text):
        return "an environment file has to be a local file, not a URL"
    return None


def _named_files(root: MapNode) -> Iterator[tuple[int, ScalarNode]]:
    section = root.get("environment_vars")
    named = section.get("include") if isinstance(section, MapNode) else None
    if isinstance(named, ListNode):
        yield from ((index, item) for index, item in enumerate(named.items) if isinstance(item, ScalarNode))
