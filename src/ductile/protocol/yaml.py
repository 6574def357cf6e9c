"""Reads YAML text into a located tree (`protocol.yaml_tree`).

libyaml implements YAML 1.1, where `on` is a boolean and `22:00` a number. So only its events are used, and
scalars are typed by the 1.2 core schema. Three decisions beyond the schema:

- anchors, aliases and the merge key `<<` work, within a bound on the size they expand to;
- tags are refused: quotes are enough to mark a value as text;
- `.inf` and `.nan` are refused, because every value ends up as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import yaml

from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml_tree import (
    KeyPath,
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    invalid_yaml,
    problem_at,
)
from ductile.struct import Value

#: Nodes of a document with its aliases written out: far more than any real configuration has, far fewer than
#: a "billion laughs" document.
MAX_EXPANDED_NODES = 200_000
#: A bound on nesting keeps every later recursion safe.
MAX_DEPTH = 100

_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: `key: {payload.x} and more`, or the same as an entry of a list.
_TEMPLATE_THEN_TEXT = re.compile(r"\s*(?:-\s+)*(?:[^\s:#]+:\s+)?(?P<map>\{[^{}\"']*\})\s*[^\s,}\]#]")
_CRON = re.compile(
    r"(?:[0-9A-Z*/,-]{1,20} +){4}[0-9A-Z*/,-]{1,20}"
    r"|\*(?:/[0-9]{1,2})?|@(?:hourly|daily|midnight|weekly|monthly|yearly|annually)",
    re.IGNORECASE,
)
_CLOSING = {"[": "]", "{": "}"}
_STANDARD_TAG = "tag:yaml.org,2002:"


class _Mark(Protocol):
    """The common part of the C and the Python parser's marks; they count from 0."""

    line: int
    column: int


def parse_yaml(data: bytes | str, *, file: str) -> Node | None:
    """Return the tree of one document, None for an empty one. Raises ConfigError with every problem found."""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        problem = Problem(
            message=f"byte 0x{error.object[error.start]:02x} is not valid UTF-8",
            file=file,
            line=error.object.count(b"\n", 0, error.start) + 1,
            expected="text in UTF-8",
            hint="save the file as UTF-8",
        )
        raise invalid_yaml(file, problem) from None
    if unreadable := _UNREADABLE.search(text):
        character, start = unreadable[0], unreadable.start()
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        name = "a NUL byte" if character == "\0" else f"the control character U+{ord(character):04X}"
        message, hint = f"{name} is not allowed in YAML", "remove it, or write it as an escape"
        location = SourceLocation(file=file, line=line, column=column)
        raise invalid_yaml(file, problem_at(location, (), message, hint=hint))
    builder = _TreeBuilder(text, file)
    try:
        root = builder.read_document()
    except yaml.MarkedYAMLError as error:
        raise invalid_yaml(file, _syntax_problem(text, error, file)) from error
    if builder.problems:
        raise invalid_yaml(file, *builder.problems)
    return root


def _syntax_problem(text: str, error: yaml.MarkedYAMLError, file: str) -> Problem:
    """Return the problem at its most likely cause, which can lie before the position of the error."""
    location = _location_of(error.problem_mark or error.context_mark, file)
    lines = text.splitlines()
    line = lines[location.line - 1] if location.line <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return problem_at(location, (), "a tab is used for indentation", expected="spaces", found="a tab")
    value_start = location if error.context_mark is None else _location_of(error.context_mark, file)
    if missing_quotes := _missing_quotes_problem(lines, error, value_start, location):
        return missing_quotes
    at_end_of_file = location.line >= len(lines) and location.column > len(line)
    if value_start.line < location.line or (value_start.column < location.column and at_end_of_file):
        value = lines[value_start.line - 1][value_start.column - 1 :]
        return _unfinished_problem(value, error, value_start, location)
    context = f" ({error.context})" if error.context else ""
    hint = "inside { } and [ ], quote a value that contains one of these" if "flow" in context else None
    return problem_at(location, (), f"{error.problem or 'not valid YAML'}{context}", hint=hint)


def _missing_quotes_problem(
    lines: Sequence[str], error: yaml.MarkedYAMLError, value_start: SourceLocation, location: SourceLocation
) -> Problem | None:
    """Return a problem if the value is text whose first character has another meaning in YAML."""
    line = lines[location.line - 1] if location.line <= len(lines) else ""
    value = ""
    if "scanning an alias" in (error.context or ""):
        message, problem_location = "* begins an alias in YAML", value_start
        if value_start.line <= len(lines):
            value = lines[value_start.line - 1][value_start.column - 1 :]
    elif "cannot start any token" in (error.problem or ""):
        value, problem_location = line[location.column - 1 :], location
        message = f"a value cannot begin with {value[:1]}"
    else:
        template = _TEMPLATE_THEN_TEXT.match(line)
        if template is None or not template.end("map") < location.column <= len(line):
            return None
        message = "{ begins a map in YAML"
        column = template.start("map") + 1
        problem_location = SourceLocation(file=location.file, line=location.line, column=column)
    # Only a cron expression is quoted in the hint: any other value may be a secret.
    plain = re.split(r"\s+#", value, maxsplit=1)[0].rstrip()
    hint = f'quote it: "{plain}"' if _CRON.fullmatch(plain) else "put the whole value in quotes"
    return problem_at(problem_location, (), message, hint=hint)


def _unfinished_problem(
    value: str, error: yaml.MarkedYAMLError, value_start: SourceLocation, location: SourceLocation
) -> Problem:
    """Return the problem of an unfinished value. Most are reported at its beginning, where the mistake is."""
    context, opened = error.context or "", value[:1]
    if "quoted scalar" in context and opened in ("'", '"'):
        return problem_at(
            value_start, (), f"the quote {opened} is not closed", hint=f"end the value with {opened}"
        )
    if "flow" in context and opened in _CLOSING:
        hint = f"close it with {_CLOSING[opened]}, or quote a value that contains one of [ ] {{ }} ,"
        return problem_at(value_start, (), f"the {opened} is not closed by line {location.line}", hint=hint)
    if "simple key" in context:
        name = value.strip()
        return problem_at(
            value_start, (), f'there is no ":" after {name}', hint=f"write {name}: and its value"
        )
    context = f"{context}, in the value that begins on line {value_start.line}"
    message = f"{error.problem or 'not valid YAML'} ({context})"
    hint = "look at the indentation of this line, and for an open quote above it"
    return problem_at(location, (), message, hint=hint)


class ScalarSpan(Value):
    """Characters of one line, all counted from 0."""

    line: int
    start: int
    end: int


def scalar_span(text: str, path: KeyPath) -> ScalarSpan | None:
    """Return the position of the value at a path; None unless it is a scalar on a single line."""
    node = yaml.compose(text, Loader=_loader())
    for part in path:
        match node, part:
            case yaml.MappingNode(value=entries), str():
                node = next((value for key, value in entries if key.value == part), None)
            case yaml.SequenceNode(value=items), int() if part < len(items):
                node = items[part]
            case _:
                return None
    if not isinstance(node, yaml.ScalarNode) or node.start_mark is None or node.end_mark is None:
        return None
    start, end = node.start_mark, node.end_mark
    if start.line != end.line or start.column == end.column:
        return None
    return ScalarSpan(line=start.line, start=start.column, end=end.column)


class _BuiltNode(Value):
    """A node with its size and height as if every alias in it were written out."""

    node: Node
    size: int
    height: int


class _TreeBuilder:
    """Turns libyaml's events into nodes. Recursion is bounded by MAX_DEPTH."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_loader())
        self._anchors: dict[str, _BuiltNode] = {}
        #: The path of the node that is being built.
        self._path: list[str | int] = []

    def read_document(self) -> Node | None:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        built = self._build(next(self._events), depth=1)
        next(self._events)  # document end
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            self._add_problem("a second document begins here", following, hint="keep one document per file")
        return built.node

    def _build(self, event: yaml.Event, depth: int) -> _BuiltNode:
        if (tag := getattr(event, "tag", None)) is not None:
            written = f"!!{tag.removeprefix(_STANDARD_TAG)}" if tag.startswith(_STANDARD_TAG) else tag
            hint = "remove the tag; quote a value to keep it text"
            self._add_problem(f"the tag {written} is not supported", event, hint=hint)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                message = f"the alias *{event.anchor} is not defined before this line"
                raise self._invalid_error(message, event, hint="quote a value that begins with *")
            built = self._anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            node = ScalarNode(text=event.value, plain=not event.style, location=self._location(event))
            built = _BuiltNode(node=node, size=1, height=1)
        else:
            self._check_bounds(event, depth)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            built = self._build_list(event, depth) if is_list else self._build_map(event, depth)
        self._check_bounds(event, depth, built.height, built.size)
        if isinstance(event, yaml.NodeEvent) and not isinstance(event, yaml.AliasEvent) and event.anchor:
            self._anchors[event.anchor] = built
        return built

    def _check_bounds(self, event: yaml.Event, depth: int, height: int = 1, size: int = 1) -> None:
        if depth + height > MAX_DEPTH + 1:
            raise self._invalid_error(f"nested deeper than {MAX_DEPTH} levels", event)
        if size > MAX_EXPANDED_NODES:
            raise self._invalid_error(f"aliases expand to more than {MAX_EXPANDED_NODES} values", event)

    def _build_list(self, event: yaml.Event, depth: int) -> _BuiltNode:
        items: list[_BuiltNode] = []
        while not isinstance(following := next(self._events), yaml.SequenceEndEvent):
            self._path.append(len(items))
            items.append(self._build(following, depth + 1))
            self._path.pop()
        node = ListNode(items=tuple(item.node for item in items), location=self._location(event))
        return _combine(node, items)

    def _build_map(self, event: yaml.Event, depth: int) -> _BuiltNode:
        parts: list[_BuiltNode] = []
        own: dict[str, tuple[ScalarNode, Node]] = {}
        merged: dict[str, tuple[ScalarNode, Node]] = {}
        while not isinstance(following := next(self._events), yaml.MappingEndEvent):
            key = self._build(following, depth + 1)
            self._path.append(getattr(key.node, "text", "?"))
            value = self._build(next(self._events), depth + 1)
            self._path.pop()
            parts += (key, value)
            name = key.node
            if not isinstance(name, ScalarNode):
                hint = "quote a value that begins with { or ["
                message = "a list or a mapping cannot be a key"
                self.problems.append(problem_at(name.location, (), message, hint=hint))
            elif name.plain and name.text == "<<":
                self._merge(value.node, merged)
            elif name.text in own:
                first = own[name.text][0].location
                message = f'the key "{name.text}" is written twice, first on line {first.line}'
                path = (*self._path, name.text)
                self.problems.append(problem_at(name.location, path, message, hint="keep one of them"))
            else:
                own[name.text] = (name, value.node)
        entries = tuple((own | {name: merged[name] for name in merged if name not in own}).values())
        return _combine(MapNode(entries=entries, location=self._location(event)), parts)

    def _merge(self, value: Node, merged: dict[str, tuple[ScalarNode, Node]]) -> None:
        """Add the entries of a merge key; of several mappings the first one to name a key wins."""
        for source in value.items if isinstance(value, ListNode) else (value,):
            if isinstance(source, MapNode):
                for key, entry_value in source.entries:
                    merged.setdefault(key.text, (key, entry_value))
            else:
                message, expected = "only mappings can be merged with <<", "a mapping, or a list of mappings"
                found = "text" if isinstance(source, ScalarNode) else "a list"
                problem = problem_at(source.location, ("<<",), message, expected=expected, found=found)
                self.problems.append(problem)

    def _add_problem(self, message: str, event: yaml.Event, *, hint: str | None = None) -> None:
        self.problems.append(problem_at(self._location(event), (), message, hint=hint))

    def _invalid_error(self, message: str, event: yaml.Event, *, hint: str | None = None) -> ConfigError:
        self._add_problem(message, event, hint=hint)
        return invalid_yaml(self.file, *self.problems)

    def _location(self, event: yaml.Event) -> SourceLocation:
        return _location_of(event.start_mark, self.file)


def _combine(node: Node, parts: list[_BuiltNode]) -> _BuiltNode:
    """Return a list or mapping with its size and height, from those of its parts."""
    size = 1 + sum(part.size for part in parts)
    return _BuiltNode(node=node, size=size, height=1 + max((part.height for part in parts), default=0))


def _location_of(mark: _Mark | None, file: str) -> SourceLocation:
    """Return the location of a mark. Parsed text always has one; only PyYAML's stubs allow for none."""
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    return SourceLocation(file=file, line=line + 1, column=column + 1)


def _loader() -> type[yaml.CSafeLoader | yaml.SafeLoader]:
    """Return libyaml's loader, which is nine times as fast, or else PyYAML's own."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
