"""Escape characters that control a terminal or reorder its text.

Texts of plugins and callers are untrusted: escape sequences (also in their 8-bit form, U+0080 to U+009F) move
the cursor, and bidirectional controls change the order of a line.
"""

from __future__ import annotations

import re

_HIGH_CONTROLS = "\x7f-\x9f"
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_SEPARATORS = "\u2028\u2029"
_UNSAFE = re.compile(f"[\x00-\x09\x0b-\x1f{_HIGH_CONTROLS}{_DIRECTIONS}{_SEPARATORS}]")
#: Unsafe characters that JSON encoders do not escape.
_BEYOND_ASCII = re.compile(f"[{_HIGH_CONTROLS}{_DIRECTIONS}{_SEPARATORS}]")
_ONE_BYTE = 0xFF


def escape_controls(text: str) -> str:
    r"""Return the text with unsafe characters other than line breaks as `\x1b` or `\u202e`."""
    return text if text.isprintable() else _UNSAFE.sub(_escape, text)


def escape_in_json(text: str) -> str:
    r"""Return equal JSON with unsafe characters as `\u` escapes."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _BEYOND_ASCII.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_beyond_ascii(text: str) -> str:
    """Return the text with unsafe non-ASCII characters escaped, for text with escape sequences of Ductile."""
    return text if text.isascii() else _BEYOND_ASCII.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= _ONE_BYTE else f"\\u{code:04x}"
