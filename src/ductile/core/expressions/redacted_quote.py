"""Quote a JSON value: shortened, with secrets masked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from ductile.core.json import JsonValue

MASK = "***"
MAX_QUOTE_LENGTH = 80
_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: `scheme://user:password@host`. Without slashes between, so that a long text is scanned only once.
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")


def quote_redacted(value: JsonValue, is_secret: Callable[[str], bool]) -> str:
    """Return the value as shortened JSON. Values of secret keys and URLs with a password are masked."""
    text = ""
    for piece in _pieces(value, is_secret):
        text += piece
        if len(text) > MAX_QUOTE_LENGTH:
            return f"{text[:MAX_QUOTE_LENGTH]}…"
    return text


def _pieces(value: JsonValue, is_secret: Callable[[str], bool]) -> Iterator[str]:
    """Yield the quote in pieces, so that only the beginning of a large value is processed."""
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
    """Quote text. Half a surrogate pair, which UTF-8 cannot encode, becomes a question mark."""
    shown = _ENCODER.encode(text[: MAX_QUOTE_LENGTH + 1])
    return shown.encode(errors="replace").decode()
