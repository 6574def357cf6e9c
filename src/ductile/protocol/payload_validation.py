"""Validates a payload against the schema of its command, with jsonschema-rs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from ductile.struct import Value

if TYPE_CHECKING:
    import jsonschema_rs

    from ductile.core.json import JsonValue
    from ductile.protocol.manifest.schema import JsonSchema

#: A pattern that needs more steps fails the field instead of blocking the daemon.
_MAX_BACKTRACKS = 100_000
_CACHED_SCHEMAS = 256
_MAX_VIOLATIONS = 20


class UnusableSchemaError(ValueError):
    """The schema itself is invalid, or has an external reference."""


class SchemaViolation(Value):
    """A fault in one field. The value is left out: it may be a secret."""

    field: str
    message: str


def find_schema_violations(payload: JsonValue, schema: JsonSchema) -> tuple[SchemaViolation, ...]:
    """Return the violations, up to a limit; empty if the payload is valid. Raises UnusableSchemaError."""
    validator = _compiled(msgspec.json.encode(schema))
    found = []
    for error in validator.iter_errors(payload):
        # `payload.items[2].url`
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        found.append(SchemaViolation(field="".join(("payload", *parts)), message=error.message))
        if len(found) == _MAX_VIOLATIONS:
            break
    return tuple(found)


@lru_cache(maxsize=_CACHED_SCHEMAS)
def _compiled(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # noqa: PLC0415 - 33 ms that only `validate_input` costs

    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(schema),
            offline=True,
            mask="this value",
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise UnusableSchemaError(str(error).partition("\n")[0]) from None
