"""YAML as this program reads it: an immutable tree in which every node knows its file and line.

Owns the reading of YAML text and the typing of its scalars by the YAML 1.2 core schema. libyaml
speaks 1.1, where `on` is a boolean and `22:00` a number; so only its events are used and everything
that gives them meaning is here. Nothing is interpolated, merged with other files or checked against
a model in this module.

Beyond the core schema, three decisions:

- anchors, aliases and the merge key `<<` work, within a bound on what they may expand to;
- tags are refused, quotes say that a value is text and that is the only need we know;
- `.inf` and `.nan` are refused, because every value here ends up as JSON.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

import yaml

from ductile.errors import ConfigError, Problem
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ductile.core.json import JsonValue

#: How many nodes a document may have once its aliases are written out: far more than any real
#: configuration, far less than a "billion laughs" document wants.
MAX_EXPANDED_NODES = 200_000
#: Nesting beyond this is not written by people, and a bound keeps every later recursion safe.
MAX_DEPTH = 100

_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
#: `key: {payload.x} and more`, or the same as an entry of a list.
_TEMPLATE_THEN_TEXT = re.compile(r"\s*(?:-\s+)*(?:[^\s:#]+:\s+)?(?P<map>\{[^{}\"']*\})\s*[^\s,}\]#]")
#: What cron understands.
_TIME = re.compile(
    r"(?:[0-9A-Z*/,-]{1,20} +){4}[0-9A-Z*/,-]{1,20}"
    r"|\*(?:/[0-9]{1,2})?|@(?:hourly|daily|midnight|weekly|monthly|yearly|annually)",
    re.IGNORECASE,
)
_CLOSING = {"[": "]", "{": "}"}
NULL_WORDS = frozenset(("", "~", "null", "Null", "NULL"))
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(NULL_WORDS, None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class SourceLocation(Value):
    """Where something was written; line and column count from 1."""

    file: str
    line: int
    column: int


class ScalarNode(Value):
    """A single value. `plain` is true when it was written without quotes and may be typed.

    `written` is what the file says where `text` was worked out from it, as interpolation does: the
    text may then be a secret and must not be shown.
    """

    text: str
    plain: bool
    place: SourceLocation
    written: str | None = None


class ListNode(Value):
    items: tuple[Node, ...]
    place: SourceLocation


class MapNode(Value, dict=True):
    """A mapping in written order; its keys are unique, and always text."""

    entries: tuple[tuple[ScalarNode, Node], ...]
    place: SourceLocation

    def get(self, key: str) -> Node | None:
        found = self.entry(key)
        return None if found is None else found[1]

    def entry(self, key: str) -> tuple[ScalarNode, Node] | None:
        """A key as it is written, with its value."""
        return self._by_name.get(key)

    @cached_property
    def _by_name(self) -> dict[str, tuple[ScalarNode, Node]]:
        """Problems of a large map look up each of its keys, so a search from the start would be quadratic."""
        return {name.text: (name, value) for name, value in self.entries}


class _Mark(Protocol):
    """The part that the C and the Python parser's marks have in common; they count from 0."""

    line: int
    column: int


Node: TypeAlias = ScalarNode | ListNode | MapNode


def parse_yaml(data: bytes | str, *, file: str) -> Node | None:
    """Read one document; an empty one is None. Raises ConfigError with every problem found."""
    text = _decode(data, file) if isinstance(data, bytes) else data
    if unreadable := _UNREADABLE.search(text):
        raise _refusal(file, _character_problem(text, unreadable, file))
    builder = _Builder(text, file)
    try:
        root = builder.read_document()
    except yaml.MarkedYAMLError as error:
        raise _refusal(file, _syntax_problem(text, error, file)) from error
    if builder.problems:
        raise _refusal(file, *builder.problems)
    return root


def scalar_value(node: ScalarNode) -> bool | int | float | str | None:
    """The value of a scalar by the core schema; ConfigError for one that JSON cannot hold."""
    text = node.text
    if not node.plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) or _OCTAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        return _integer(node)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    if _NOT_JSON.fullmatch(text) or _FLOAT.fullmatch(text):
        raise _unusable_number(node)
    return text


def to_plain(node: Node | None) -> JsonValue:
    """The same tree as JSON values, without places."""
    match node:
        case None:
            return None
        case ScalarNode():
            return scalar_value(node)
        case ListNode(items=items):
            return [to_plain(item) for item in items]
        case MapNode(entries=entries):
            return {key.text: to_plain(value) for key, value in entries}


def _integer(node: ScalarNode) -> int:
    text = node.text
    try:
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    except ValueError as error:  # Python bounds the digits, since converting is quadratic
        raise _unusable_number(node) from error


def _unusable_number(node: ScalarNode) -> ConfigError:
    problem = _problem(
        "this number cannot be used",
        node.place,
        expected="a finite number",
        hint="quote it if text was meant",
    )
    return _refusal(node.place.file, problem)


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(
            message=f"byte 0x{data[error.start]:02x} is not valid UTF-8",
            file=file,
            line=line,
            expected="text in UTF-8",
            hint="save the file as UTF-8",
        )
        raise _refusal(file, problem) from None


def _character_problem(text: str, found: re.Match[str], file: str) -> Problem:
    start = found.start()
    place = SourceLocation(
        file=file, line=text.count("\n", 0, start) + 1, column=start - text.rfind("\n", 0, start)
    )
    name = "a NUL byte" if found[0] == "\0" else f"the control character U+{ord(found[0]):04X}"
    return _problem(f"{name} is not allowed in YAML", place, hint="remove it, or write it as an escape")


def _syntax_problem(text: str, error: yaml.MarkedYAMLError, file: str) -> Problem:
    place = _place_of(error.problem_mark or error.context_mark, file)
    lines = text.splitlines()
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return _problem("a tab is used for indentation", place, expected="spaces", found="a tab")
    begun = place if error.context_mark is None else _place_of(error.context_mark, file)
    if unquoted := _unquoted(lines, error, begun, place):
        return unquoted
    at_the_end = place.line >= len(lines) and place.column > len(line)
    if begun.line < place.line or (begun.column < place.column and at_the_end):
        return _unfinished(lines[begun.line - 1][begun.column - 1 :], error, begun, place)
    context = f" ({error.context})" if error.context else ""
    hint = "inside { } and [ ], quote a value that contains one of these" if "flow" in context else None
    return _problem(f"{error.problem or 'not valid YAML'}{context}", place, hint=hint)


def _unquoted(
    lines: Sequence[str], error: yaml.MarkedYAMLError, begun: SourceLocation, place: SourceLocation
) -> Problem | None:
    """A text that YAML takes for something else by its first character: quotes are all it lacks."""
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if "scanning an alias" in (error.context or ""):
        value = lines[begun.line - 1][begun.column - 1 :] if begun.line <= len(lines) else ""
        return _quote_it("* begins an alias in YAML", value, begun)
    if "cannot start any token" in (error.problem or ""):
        value = line[place.column - 1 :]
        return _quote_it(f"a value cannot begin with {value[:1]}", value, place)
    template = _TEMPLATE_THEN_TEXT.match(line)
    if template is not None and template.end("map") < place.column <= len(line):
        there = SourceLocation(file=place.file, line=place.line, column=template.start("map") + 1)
        return _quote_it("{ begins a map in YAML", "", there)
    return None


def _quote_it(message: str, value: str, place: SourceLocation) -> Problem:
    """A time is shown as it has to be written; any other value may be a secret."""
    plain = re.split(r"\s+#", value, maxsplit=1)[0].rstrip()
    hint = f'quote it: "{plain}"' if _TIME.fullmatch(plain) else "put the whole value in quotes"
    return _problem(message, place, hint=hint)


def _unfinished(
    rest: str, error: yaml.MarkedYAMLError, begun: SourceLocation, noticed: SourceLocation
) -> Problem:
    """The parser gave up lines after what it was reading began: the mistake is there, for most of them."""
    context, opened = error.context or "", rest[:1]
    if "quoted scalar" in context and opened in ("'", '"'):
        return _problem(f"the quote {opened} is not closed", begun, hint=f"end the value with {opened}")
    if "flow" in context and opened in _CLOSING:
        hint = f"close it with {_CLOSING[opened]}, or quote a value that contains one of [ ] {{ }} ,"
        return _problem(f"the {opened} is not closed by line {noticed.line}", begun, hint=hint)
    if "simple key" in context:
        name = rest.strip()
        return _problem(f'there is no ":" after {name}', begun, hint=f"write {name}: and its value")
    message = f"{error.problem or 'not valid YAML'} ({context}, in what begins on line {begun.line})"
    hint = "look at the indentation of this line, and for an open quote above it"
    return _problem(message, noticed, hint=hint)


def _problem(
    message: str,
    place: SourceLocation,
    *,
    key: str | None = None,
    expected: str | None = None,
    found: str | None = None,
    hint: str | None = None,
) -> Problem:
    return Problem(
        message=message,
        file=place.file,
        line=place.line,
        column=place.column,
        key=key,
        expected=expected,
        found=found,
        hint=hint,
    )


def _refusal(file: str, *problems: Problem) -> ConfigError:
    return ConfigError(f"{file} cannot be read as YAML", problems=problems)


class Span(Value):
    """Characters of one line, all counted from 0."""

    line: int
    start: int
    end: int


def scalar_span(text: str, path: Sequence[str | int]) -> Span | None:
    """Where the value at a path is written; None unless it is one that stands on a single line."""
    loader: type[yaml.CSafeLoader | yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    node = yaml.compose(text, Loader=loader)
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
    return Span(line=start.line, start=start.column, end=end.column)


class _Built(Value):
    """A node with its size and height as if every alias in it were written out."""

    node: Node
    size: int
    height: int


class _Builder:
    """Turns libyaml's events into nodes. Recursion is bounded by MAX_DEPTH."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._events = _events(text)
        self._anchors: dict[str, _Built] = {}
        #: The way to what is being built.
        self._path: list[str] = []

    def read_document(self) -> Node | None:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        built = self._build(next(self._events), depth=1)
        next(self._events)  # document end
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            self._complain("a second document begins here", following, hint="keep one document per file")
        return built.node

    def _build(self, event: yaml.Event, depth: int) -> _Built:
        if isinstance(event, yaml.AliasEvent):
            built = self._follow(event)
        elif isinstance(event, yaml.ScalarEvent):
            built = _Built(node=self._scalar(event), size=1, height=1)
        elif isinstance(event, yaml.SequenceStartEvent):
            built = self._list(event, depth)
        else:
            built = self._map(event, depth)
        self._check_bounds(event, built, depth)
        if isinstance(event, yaml.NodeEvent) and not isinstance(event, yaml.AliasEvent) and event.anchor:
            self._anchors[event.anchor] = built
        return built

    def _check_bounds(self, event: yaml.Event, built: _Built, depth: int) -> None:
        if depth + built.height > MAX_DEPTH + 1:
            raise self._stop(f"nested deeper than {MAX_DEPTH} levels", event)
        if built.size > MAX_EXPANDED_NODES:
            raise self._stop(f"aliases expand to more than {MAX_EXPANDED_NODES} values", event)

    def _scalar(self, event: yaml.ScalarEvent) -> ScalarNode:
        self._refuse_tag(event, event.tag)
        return ScalarNode(text=event.value, plain=not event.style, place=self._place(event))

    def _list(self, event: yaml.SequenceStartEvent, depth: int) -> _Built:
        self._refuse_tag(event, event.tag)
        self._check_bounds(event, _Built(node=_EMPTY, size=0, height=1), depth)
        items: list[_Built] = []
        while not isinstance(following := next(self._events), yaml.SequenceEndEvent):
            self._path.append(f"[{len(items)}]")
            items.append(self._build(following, depth + 1))
            self._path.pop()
        node = ListNode(items=tuple(item.node for item in items), place=self._place(event))
        return _around(node, items)

    def _map(self, event: yaml.Event, depth: int) -> _Built:
        self._refuse_tag(event, getattr(event, "tag", None))
        self._check_bounds(event, _Built(node=_EMPTY, size=0, height=1), depth)
        inner: list[_Built] = []
        own: dict[str, tuple[ScalarNode, Node]] = {}
        merged: dict[str, tuple[ScalarNode, Node]] = {}
        while not isinstance(following := next(self._events), yaml.MappingEndEvent):
            key = self._build(following, depth + 1)
            name = getattr(key.node, "text", "?")
            self._path.append(f".{name}" if self._path else name)
            value = self._build(next(self._events), depth + 1)
            self._path.pop()
            inner += (key, value)
            self._add_entry(own, merged, key.node, value.node)
        entries = tuple((own | {name: merged[name] for name in merged if name not in own}).values())
        return _around(MapNode(entries=entries, place=self._place(event)), inner)

    def _add_entry(
        self,
        own: dict[str, tuple[ScalarNode, Node]],
        merged: dict[str, tuple[ScalarNode, Node]],
        key: Node,
        value: Node,
    ) -> None:
        if not isinstance(key, ScalarNode):
            hint = "quote a value that begins with { or ["
            self.problems.append(_problem("a list or a mapping cannot be a key", key.place, hint=hint))
        elif key.plain and key.text == "<<":
            for name, entry in self._merge_source(value):
                merged.setdefault(name, entry)
        elif key.text in own:
            first = own[key.text][0].place
            message = f'the key "{key.text}" is written twice, first on line {first.line}'
            path = "".join([*self._path, f".{key.text}" if self._path else key.text])
            self.problems.append(_problem(message, key.place, key=path, hint="keep one of them"))
        else:
            own[key.text] = (key, value)

    def _merge_source(self, value: Node) -> Iterator[tuple[str, tuple[ScalarNode, Node]]]:
        """What a merge key brings in; of several mappings the first one to name a key wins."""
        for source in value.items if isinstance(value, ListNode) else (value,):
            if isinstance(source, MapNode):
                yield from ((key.text, (key, inner)) for key, inner in source.entries)
            else:
                found = "text" if isinstance(source, ScalarNode) else "a list"
                problem = _problem(
                    "only mappings can be merged with <<",
                    source.place,
                    key="<<",
                    expected="a mapping, or a list of mappings",
                    found=found,
                )
                self.problems.append(problem)

    def _follow(self, event: yaml.AliasEvent) -> _Built:
        if event.anchor not in self._anchors:
            message = f"the alias *{event.anchor} is not defined before this line"
            raise self._stop(message, event, hint="quote a value that begins with *")
        return self._anchors[event.anchor]

    def _refuse_tag(self, event: yaml.Event, tag: str | None) -> None:
        if tag is not None:
            hint = "remove the tag; quote a value to keep it text"
            self._complain(f"the tag {_tag_as_written(tag)} is not supported", event, hint=hint)

    def _complain(self, message: str, event: yaml.Event, *, hint: str | None = None) -> None:
        self.problems.append(_problem(message, self._place(event), hint=hint))

    def _stop(self, message: str, event: yaml.Event, *, hint: str | None = None) -> ConfigError:
        return _refusal(self.file, *self.problems, _problem(message, self._place(event), hint=hint))

    def _place(self, event: yaml.Event) -> SourceLocation:
        return _place_of(event.start_mark, self.file)


_EMPTY = ScalarNode(text="", plain=True, place=SourceLocation(file="", line=1, column=1))


def _around(node: Node, inner: list[_Built]) -> _Built:
    size = 1 + sum(part.size for part in inner)
    return _Built(node=node, size=size, height=1 + max((part.height for part in inner), default=0))


def _place_of(mark: _Mark | None, file: str) -> SourceLocation:
    """Where a mark points; the stubs allow for its absence, though text that was read always has one."""
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    return SourceLocation(file=file, line=line + 1, column=column + 1)


def _tag_as_written(tag: str) -> str:
    standard = "tag:yaml.org,2002:"
    return f"!!{tag.removeprefix(standard)}" if tag.startswith(standard) else tag


def _events(text: str) -> Iterator[yaml.Event]:
    """Read with libyaml where PyYAML was built with it, as nearly everywhere: nine times as fast."""
    loader: type[yaml.CSafeLoader | yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events: Iterator[yaml.Event] = yaml.parse(text, Loader=loader)
    return events
