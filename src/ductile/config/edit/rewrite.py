"""Changes one value in the text of a YAML file and leaves every other character as it is. Pure.

ruamel writes the whole file in a style of its own. Comparing its output with and without the change
separates the change from the style. The result is checked to mean the same but for the change.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ductile.core.json import JsonValue
from ductile.errors import ConfigError, NotFoundError
from ductile.protocol.yaml import parse_yaml, scalar_span
from ductile.protocol.yaml_tree import (
    KeyPath,
    ListNode,
    MapNode,
    Node,
    format_path,
    location_of,
    node_at,
    to_plain,
    walk,
)
from ductile.struct import Value

_BREAK = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
#: Line breaks in YAML 1.1, which the locations of its parsers count too.
_OTHER_BREAK = re.compile("[\x85\u2028\u2029]")
_COMMENT = re.compile(r"[ \t]+(?=#)")
#: A key without a value on its line.
_KEY_WITHOUT_VALUE = re.compile(r"([^#]*:)([ \t]*(?:#.*)?(?:\r\n|\r|\n)?)")


def with_value(before: bytes, path: KeyPath, value: JsonValue, file: Path) -> bytes:
    """Return the text of a file with a value set, in maps that are made if they do not exist."""

    def set_value(tree: Any) -> None:
        *parents, last = path
        try:
            for part in parents:
                if isinstance(part, str) and (part not in tree or tree[part] is None):
                    tree[part] = {}
                tree = tree[part]
            tree[last] = deepcopy(value)
        except (TypeError, IndexError, KeyError):  # text or a list where the path needs a map
            numbered = any(isinstance(part, str) and part.isdigit() for part in path)
            hint = "An entry of a list is written in brackets, such as schedules[0]." if numbered else None
            raise NotFoundError(f"nothing can be set at {format_path(path)}", hint=hint) from None

    return _rewrite(before, set_value, file, scalar_path=path)


def with_entry(before: bytes, path: KeyPath, entry: JsonValue, file: Path) -> bytes:
    """Return the text of a file with an entry at the end of a list, which is made if it does not exist."""

    def append(tree: Any) -> None:
        *parents, last = path
        try:
            for part in parents:
                if isinstance(part, str) and tree.get(part) is None:
                    tree[part] = {}
                tree = tree[part]
            entries = tree[last] if isinstance(last, int) else tree.get(last)
            if entries is None:
                tree[last] = entries = []
            entries.append(deepcopy(entry))
        except (AttributeError, TypeError, IndexError, KeyError):  # the path leads through or to text
            raise NotFoundError(f"nothing can be added at {format_path(path)}") from None

    return _rewrite(before, append, file)


def without_entry(before: bytes, path: KeyPath, file: Path) -> bytes:
    """Return the text of a file without a key or list entry, as ruamel removes it: with comments after it."""

    def remove(tree: Any) -> None:
        *parents, last = path
        for part in parents:
            tree = tree[part]
        del tree[last]

    return _rewrite(before, remove, file)


def without_value(before: bytes, path: KeyPath, file: Path) -> bytes:
    """Return the text of a file without a key or list entry. Comments before the next one stay."""
    text = before.decode("utf-8-sig")
    tree = parse_yaml(before, file=str(file))
    expected: Any = to_plain(tree)
    parent = expected
    for part in path[:-1]:
        parent = parent[part]
    del parent[path[-1]]
    for after in () if tree is None else _texts_without_entry(text, tree, path):
        parsed = _parse(after, file)
        if (to_plain(parsed) or {}) == expected:
            return codecs.BOM_UTF8 * before.startswith(codecs.BOM_UTF8) + after.encode()
    return without_entry(before, path, file)


def _texts_without_entry(text: str, tree: Node, path: KeyPath) -> Iterator[str]:
    """Yield the text without the lines of an entry, then with an explicit empty value for its parent.

    Both can be wrong, for example if the entry shares a line with another one: the caller compares.
    """
    start = location_of(tree, path)
    entry = node_at(tree, path)
    if entry is None:
        return
    inside = {node.location.line for _, node in walk(entry)} | {start.line}
    lines_with_nodes = {node.location.line for _, node in walk(tree)} | {
        key.location.line for _, node in walk(tree) if isinstance(node, MapNode) for key, _ in node.entries
    }
    lines: list[str] = _LINE.findall(text)
    end = min((line for line in lines_with_nodes if line > max(inside)), default=len(lines) + 1) - 1
    # Empty lines and comments before the next entry belong to that one, unless they are indented deeper.
    indent = _indent(lines[start.line - 1])
    while end > start.line and _is_blank_or_comment(lines[end - 1], indent):
        end -= 1
    remaining = [*lines[: start.line - 1], *lines[end:]]
    yield "".join(remaining)
    parent = node_at(tree, path[:-1])
    heading = location_of(tree, path[:-1]).line - 1
    if path[:-1] and heading < start.line - 1 and (match := _KEY_WITHOUT_VALUE.fullmatch(remaining[heading])):
        empty = " []" if isinstance(parent, ListNode) else " {}"
        remaining[heading] = f"{match[1]}{empty}{match[2]}"
        yield "".join(remaining)


def _is_blank_or_comment(line: str, indent: int) -> bool:
    """Return whether a line is empty, or a comment that is indented at most this far."""
    stripped = line.strip()
    return not stripped or (stripped.startswith("#") and _indent(line) <= indent)


def _rewrite(before: bytes, change: Callable[[Any], None], file: Path, scalar_path: KeyPath = ()) -> bytes:
    """Return the text with one change, in the scalar at a path or in whole lines.

    Raises ConfigError if the result would differ in meaning by more than the change.
    """
    text = before.decode("utf-8-sig")
    tree = parse_yaml(before, file=str(file))
    changed = _emit(text, tree, change)
    expected = to_plain(tree) or {}
    change(expected)
    if tree is None:  # at most comments
        lines = f"{text}\n{changed}" if text and not text.endswith("\n") else text + changed
    else:
        shift = _column_shift(tree, _parse(changed, file), scalar_path)
        lines = merge_lines(text, _emit(text, tree, None), changed, shift=shift)
    for after in (replace_scalar(text, changed, scalar_path), lines):
        if after is not None and to_plain(_parse(after, file)) == expected:
            return codecs.BOM_UTF8 * before.startswith(codecs.BOM_UTF8) + after.encode()
    message = f"{file} cannot be rewritten without changing something else in it"
    raise ConfigError(message, hint="edit the file by hand")


def _parse(text: str, file: Path) -> Node | None:
    """Return the tree of a text, None if it is not valid YAML."""
    try:
        return parse_yaml(text, file=str(file))
    except ConfigError:
        return None


def _emit(text: str, tree: Node | None, change: Callable[[Any], None] | None) -> str:
    """Return the whole file as ruamel writes it, with a change or without."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - 30 ms that only a change costs

    indentation = measure_indentation(tree)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.width = 100_000
    yaml.indent(mapping=indentation.keys, sequence=indentation.dashes + 2, offset=indentation.dashes)
    document = yaml.load(_BREAK.sub("\n", text))  # ruamel loses empty lines that end with other line breaks
    document = {} if document is None else document
    if change is not None:
        change(document)
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


class Indentation(Value):
    """Columns from a key to the keys below it, and from a key to the dashes below it."""

    keys: int = 2
    dashes: int = 0


def measure_indentation(root: Node | None) -> Indentation:
    """Return the most frequent indentation of a file, the usual one where it has none."""
    steps: dict[type, Counter[int]] = {MapNode: Counter(), ListNode: Counter()}
    for _, node in () if root is None else walk(root):
        for key, value in node.entries if isinstance(node, MapNode) else ():
            # A value that begins on the line of its key is written in braces or brackets.
            if isinstance(value, MapNode | ListNode) and value.location.line > key.location.line:
                steps[type(value)][value.location.column - key.location.column] += 1
    [(keys, _)] = steps[MapNode].most_common(1) or [(2, 0)]
    [(dashes, _)] = steps[ListNode].most_common(1) or [(0, 0)]
    return Indentation(keys=keys, dashes=dashes)


def _column_shift(tree: Node, changed: Node | None, path: KeyPath) -> int:
    """Return by how many columns the keys beside a changed one are indented more than in the emitted file."""
    if changed is None:
        return 0
    for length in range(len(path) - 1, 0, -1):
        match node_at(tree, path[:length]), node_at(changed, path[:length]):
            case MapNode(entries=((key, _), *_)), MapNode(entries=((emitted, _), *_)):
                return key.location.column - emitted.location.column
            case None, _:
                continue
            case _:
                break
    return 0


def replace_scalar(before: str, after: str, path: KeyPath) -> str | None:
    """Return the text with one scalar replaced by the characters it has in `after`.

    None if one of the two is not a scalar on a single line.
    """
    old, new = scalar_span(before, path), scalar_span(after, path)
    if old is None or new is None or _OTHER_BREAK.search(before + after):
        return None
    written = _LINE.findall(after)[new.line][new.start : new.end]
    lines: list[str] = _LINE.findall(before)
    line = lines[old.line]
    tail = line[old.end :]
    if comment := _COMMENT.match(tail):  # a comment keeps its column if there is room
        room = len(comment[0]) - (len(written) - (old.end - old.start))
        tail = " " * max(1, room) + tail[comment.end() :]
    lines[old.line] = line[: old.start] + written + tail
    return "".join(lines)


def merge_lines(before: str, unchanged: str, after: str, *, shift: int = 0) -> str:
    """Return the text with the lines that differ between two emitted files.

    ruamel indents every line of a file by the same rule, authors may not: added lines are moved to the right
    by `shift`, others to the indentation of the line they replace.
    """
    original: list[str] = _LINE.findall(before)
    emitted, changed = _BREAK.split(unchanged)[:-1], _BREAK.split(after)[:-1]
    starts = _align(original, emitted)
    merged: list[str] = []
    copied = 0
    for kind, start, end, new_start, new_end in _opcodes(emitted, changed):
        if kind == "equal":
            continue
        first, last = starts[start], starts[end] if end > start else starts[start]
        moved = shift if kind == "insert" else _indent(original[first]) - _indent(emitted[start])
        lines = [
            " " * max(0, _indent(line) + moved) + line.lstrip(" ") for line in changed[new_start:new_end]
        ]
        if kind == "insert" and all(lines):
            # Empty lines before the entry, and comments that are indented less, belong to what follows;
            # ruamel adds after them.
            while first > copied and _is_blank_or_comment(original[first - 1], _indent(lines[0]) - 1):
                first -= 1
            last = first
        merged += original[copied:first]
        merged += lines
        copied = max(copied, last)
    # New lines end as the first line of the text does.
    match = _BREAK.search(before)
    line_break = match[0] if match else "\n"
    ended = (line if _BREAK.search(line) else line + line_break for line in merged)
    return "".join((*ended, *original[copied:]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _align(original: Sequence[str], emitted: Sequence[str]) -> list[int]:
    """Return, for each emitted line and for their end, the index of the corresponding original line.

    The two differ mostly in blanks, so nearly all lines are equal without them.
    """
    original, emitted = (["".join(line.split()) for line in lines] for lines in (original, emitted))
    starts = [0] * (len(emitted) + 1)
    starts[-1] = len(original)
    for _, start, end, emitted_start, emitted_end in _opcodes(original, emitted):
        same = end - start == emitted_end - emitted_start
        for index in range(emitted_start, emitted_end):
            starts[index] = start + (index - emitted_start) if same else start
    return starts


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    return list(SequenceMatcher(None, old, new, autojunk=False).get_opcodes())
