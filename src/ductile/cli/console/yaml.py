"""Values shown as YAML, for people: what is printed can be pasted into a configuration."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ductile.core.terminal_text import escape_in_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.core.json import JsonValue

#: Text that reads as itself without quotes. The rest is quoted, which is always right.
_PLAIN = re.compile(r"\$\{\w+\}|[\w./][\w./@+-]*(:[\w./@+-]+)*|[\w./][\w./@+-]*( [\w./@+-]+)+", re.ASCII)
#: What would be read as something else: the words of YAML 1.2, numbers, and the end of a document.
_NOT_TEXT = re.compile(
    r"(?i:true|false|null|[-+]?\.(inf|nan))|0o[0-7]+|0x[0-9a-fA-F]+|\.\.\.( .*)?"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
)


def to_yaml(value: JsonValue) -> str:
    return "\n".join(_lines(value))


def _lines(value: JsonValue) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, inner in value.items():
                yield from _entry(f"{_text(key)}:", inner, "  ")
        case list() if value:
            for item in value:
                yield from _item(item)
        case _:
            yield _scalar(value)


def _entry(head: str, value: JsonValue, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from (indent + line for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _item(value: JsonValue) -> Iterator[str]:
    lines = list(_lines(value))
    yield f"- {lines[0]}"
    yield from (f"  {line}" for line in lines[1:])


def _scalar(value: JsonValue) -> str:
    match value:
        case str():
            return _text(value)
        case _:
            return json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    return escape_in_json(json.dumps(text, ensure_ascii=False))
