"""A JSON object as an option: directly, from a file (@FILE), or from standard input (-)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.errors import UsageError

if TYPE_CHECKING:
    from ductile.core.json import JsonObject


def json_object(text: str | None, option: str) -> JsonObject | None:
    """The object of an option, which is named without dashes. UsageError if it is not an object."""
    if text is None:
        return None
    source, content = _content(text, option)
    try:
        given = json.loads(content)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint=f"""write an object, for example --{option} '{{"name": "Ada"}}'""",
        ) from None
    except RecursionError:
        raise UsageError(f"{source} nests too deep") from None
    if not isinstance(given, dict):
        raise UsageError(f"{source} must be a JSON object", hint='wrap it: {"value": ...}')
    return given


def _content(text: str, option: str) -> tuple[str, str]:
    try:
        if text == "-":
            return "standard input", sys.stdin.read()
        if text == "@":
            raise UsageError(f"--{option} @ names no file", hint=f"write --{option} @FILE")
        if text.startswith("@"):
            return text[1:], Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{text[1:]} cannot be read: {error.strerror}", hint=f"it is looked for in {Path.cwd()}"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{text[1:] or 'standard input'} is not UTF-8 text") from None
    return f"the {option}" if option == "payload" else f"--{option}", text
