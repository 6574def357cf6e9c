"""Reads environment files: `NAME=value` lines for variables that the real environment does not set.

The usual form only: comments, an optional `export`, quotes. Nothing is expanded, so that a value is taken as
it is. Messages name lines and variables, never values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import find_symlinks, read_overlaid
from ductile.config.find_config import is_url, resolve_path
from ductile.config.read.interpolate import has_reference
from ductile.errors import Problem
from ductile.protocol.yaml_tree import ListNode, MapNode, ScalarNode, node_at, problem_at
from ductile.struct import Value, hide_in_repr

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@hide_in_repr("data")
class EnvironmentFile(Value):
    """A file of variables as read. `names` are the variables that it sets."""

    path: Path
    data: bytes
    names: frozenset[str] = frozenset()


@hide_in_repr("variables")
class EnvironmentFiles(Value):
    """The files that the configuration names; `unreadable` are those that cannot be read."""

    files: tuple[EnvironmentFile, ...]
    variables: Mapping[str, str]
    problems: tuple[Problem, ...]
    links: tuple[Path, ...]
    unreadable: tuple[Path, ...] = ()


def load_environment_files(
    root: MapNode, directory: Path, overlay: Mapping[Path, bytes | None] = MappingProxyType({})
) -> EnvironmentFiles:
    """Read the files that `environment_vars.include` names. The later file's value wins.

    The overlay replaces the contents of files on disk.
    """
    files: list[EnvironmentFile] = []
    variables: dict[str, str] = {}
    problems: list[Problem] = []
    links: list[Path] = []
    unreadable: list[Path] = []
    includes = node_at(root, ("environment_vars", "include"))
    for index, item in enumerate(includes.items if isinstance(includes, ListNode) else ()):
        if not isinstance(item, ScalarNode):
            continue
        path = resolve_path(item.text, directory)
        message, data = None, b""
        if has_reference(item.text):
            message = "the path of an environment file cannot use variables"
        elif is_url(item.text):
            message = "an environment file has to be a local file, not a URL"
        else:
            try:
                data = read_overlaid(path, overlay)
            except OSError as error:
                message = f"the environment file {path} cannot be read: {error.strerror}"
                unreadable.append(path)
        if message is not None:
            problems.append(problem_at(item.location, ("environment_vars", "include", index), message))
            continue
        links += find_symlinks(path, directory)
        parsed, wrong_lines = parse_environment(data, file=str(path))
        files.append(EnvironmentFile(path=path, data=data, names=frozenset(parsed)))
        variables |= parsed
        problems += wrong_lines
    return EnvironmentFiles(
        files=tuple(files),
        variables=variables,
        problems=tuple(problems),
        links=tuple(links),
        unreadable=tuple(unreadable),
    )


def parse_environment(data: bytes, *, file: str) -> tuple[dict[str, str], tuple[Problem, ...]]:
    """Return the variables, and a problem for each line that cannot be read."""
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
        match = _LINE.fullmatch(line)
        value = _unquote(match["value"]) if match else None
        if match is None or value is None or "\0" in value:
            message = "this line of the environment file cannot be read"
            expected = "NAME=value, with any quotes closed on the same line"
            problems.append(Problem(message=message, file=file, line=number, expected=expected))
        else:
            variables[match["name"]] = value
    return variables, tuple(problems)


def _unquote(text: str) -> str | None:
    """Return the value behind the equals sign, None if its quotes do not close."""
    if text.startswith('"'):
        quoted = _DOUBLE_QUOTED.fullmatch(text)
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted[1]) if quoted else None
    if text.startswith("'"):
        quoted = _SINGLE_QUOTED.fullmatch(text)
        return quoted[1] if quoted else None
    return re.split(r"\s+#", text, maxsplit=1)[0].strip()
