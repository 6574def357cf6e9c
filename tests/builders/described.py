"""Responses compared with their OpenAPI description: no field may be there that is not described."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from ductile.api.openapi_schemas import schema_ref


def closed_schema(schema: Any) -> Any:
    """Return the schema without further fields in objects, unless it allows them explicitly."""
    match schema:
        case dict():
            closed = {key: closed_schema(inner) for key, inner in schema.items()}
            names_fields = isinstance(schema.get("properties"), dict) and schema.get("type") is not None
            return {"additionalProperties": False, **closed} if names_fields else closed
        case list():
            return [closed_schema(inner) for inner in schema]
        case _:
            return schema


def assert_matches(components: Any, schema: Any, value: Any) -> None:
    """Assert that a value matches the closed schema."""
    full_schema = {"components": closed_schema(components), **closed_schema(schema)}
    jsonschema_rs.validator_for(full_schema, validate_formats=True).validate(value)


def matches(components: Any, schema: Any, text: str) -> bool:
    try:
        assert_matches(components, schema, json.loads(text))
    except jsonschema_rs.ValidationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Description:
    """An OpenAPI document."""

    document: dict[str, Any]

    def assert_shape(self, shape: str, value: Any) -> None:
        assert_matches(self.document["components"], schema_ref(shape), value)

    def schema_of(self, method: str, path: str, status: int, media_type: str) -> Any:
        """Return the schema of such a response. The test fails if the document does not describe it."""
        operation = self._operation(method, path)
        assert str(status) in operation["responses"], (method, path, status)
        response = operation["responses"][str(status)]
        if (reference := response.get("$ref")) is not None:
            response = self.document["components"]["responses"][reference.rpartition("/")[2]]
        content = response["content"]
        assert media_type in content or "*/*" in content, (method, path, media_type, [*content])
        return content.get(media_type, {}).get("schema", {})

    def _operation(self, method: str, path: str) -> dict[str, Any]:
        """Return the operation of a path: of the path itself, or else of a template that matches it."""
        for template in sorted(self.document["paths"], key=lambda name: name.count("{")):
            pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
            item = self.document["paths"][template]
            if re.fullmatch(pattern, path.partition("?")[0]) and method.lower() in item:
                operation: dict[str, Any] = item[method.lower()]
                return operation
        raise AssertionError(f"{method} {path} is not in the document")
