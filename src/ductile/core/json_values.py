"""The type of decoded JSON, and the one measure of how large a JSON value is."""

from __future__ import annotations

import json
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]


def encoded_size(value: JsonValue) -> int:
    """Bytes of the value as compact UTF-8 JSON: what every size limit on JSON is counted in."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
