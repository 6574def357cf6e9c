"""Values as YAML that can be pasted into a configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ductile.cli.console.format import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.core.json import JsonValue

#: Text that needs no quotes. All other text is quoted, which is always valid.
_PLAIN = re.compile(r"\$\{\w+\}|[\w./][\w./@+-]*(:[\w./@+-]+)*|[\w./][\w./@+-]*( [\w./@+-]+)+", re.ASCII)
#: Text that YAML 1.2 reads as something else: its keywords, numbers, and the end of a document.
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
                head = f"{_scalar(key)}:"
                if isinstance(inner, dict | list) and inner:
                    yield head
                    yield from (f"  {line}" for line in _lines(inner))
                else:
                    yield f"{head} {_scalar(inner)}"
        case list() if value:
            for item in value:
                first, *rest = _lines(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
        case _:
            yield _scalar(value)


def _scalar(value: JsonValue) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _NOT_TEXT.fullmatch(value):
        return value
    return to_json(value)
