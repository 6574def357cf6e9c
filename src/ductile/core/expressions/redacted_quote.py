"""A JSON value quoted for people: cut to a length, with nothing secret in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from ductile.core.json import JsonValue

MASK = "***"
LONGEST_QUOTE = 80
_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: `scheme://user:password@host`. No slash may come between, so that a long text is read only once.
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")


def quote_redacted(value: JsonValue, is_secret: Callable[[str], bool]) -> str:
    """The value as JSON, as far as it fits; what lies under a secret key, or has a password, is masked."""
    text = ""
    for piece in _pieces(value, is_secret):
        text += piece
        if len(text) > LONGEST_QUOTE:
            return f"{text[:LONGEST_QUOTE]}…"
    return text


def _pieces(value: JsonValue, is_secret: Callable[[str], bool]) -> Iterator[str]:
    """Piece by piece, so that of a large value only the beginning is looked at."""
    match value:
        case dict():
            comma = "{"
            for key, inner in value.items():
                yield f"{comma}{_text(key)}: "
                yield from (MASK,) if is_secret(key) else _pieces(inner, is_secret)
                comma = ", "
            yield "}" if value else "{}"
        case list():
            comma = "["
            for inner in value:
                yield comma
                yield from _pieces(inner, is_secret)
                comma = ", "
            yield "]" if value else "[]"
        case str():
            yield MASK if _CREDENTIALS.search(value) else _text(value)
        case _:
            yield json.dumps(value)


def _text(text: str) -> str:
    """Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    shown = _ENCODER.encode(text[: LONGEST_QUOTE + 1])
    return shown.encode(errors="replace").decode()
