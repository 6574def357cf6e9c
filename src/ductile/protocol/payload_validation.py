"""Checking a payload against the schema of its command. The one module that knows the schema library."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from ductile.struct import Value

if TYPE_CHECKING:
    import jsonschema_rs

    from ductile.core.json import JsonValue
    from ductile.protocol.manifest.schema import JsonSchema

#: A pattern that needs more steps than this fails the field instead of holding up the daemon.
_BACKTRACKS = 100_000
_COMPILED = 256
_SHOWN = 20


class UnusableSchemaError(ValueError):
    """The schema itself is wrong, or refers to something outside of itself."""


class SchemaViolation(Value):
    """What is wrong with one field, without its value: that may be a secret."""

    field: str
    message: str


def find_schema_violations(payload: JsonValue, schema: JsonSchema) -> tuple[SchemaViolation, ...]:
    """Everything that is wrong, up to a limit; empty if the payload fits."""
    validator = _compiled(msgspec.json.encode(schema))
    found = []
    for error in validator.iter_errors(payload):
        found.append(SchemaViolation(field=_field(error.instance_path), message=error.message))
        if len(found) == _SHOWN:
            break
    return tuple(found)


@lru_cache(maxsize=_COMPILED)
def _compiled(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # noqa: PLC0415 - 33 ms that only those pay who switch checking on

    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(schema),
            offline=True,
            mask="this value",
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise UnusableSchemaError(str(error).partition("\n")[0]) from None


def _field(path: list[str | int]) -> str:
    """`payload.items[2].url`"""
    return "payload" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
