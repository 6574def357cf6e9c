"""Answers held against their description, strictly: what is not described is not answered."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from ductile.api.openapi_schemas import schema_ref


def strictly(schema: Any) -> Any:
    """The schema, but that an object has no fields beyond those it names; where it says so, it may."""
    match schema:
        case dict():
            closed = {key: strictly(inner) for key, inner in schema.items()}
            names_fields = isinstance(schema.get("properties"), dict) and schema.get("type") is not None
            return {"additionalProperties": False, **closed} if names_fields else closed
        case list():
            return [strictly(inner) for inner in schema]
        case _:
            return schema


def assert_holds(components: Any, schema: Any, value: Any) -> None:
    """That a value is exactly what the schema says of it."""
    whole = {"components": strictly(components), **strictly(schema)}
    jsonschema_rs.validator_for(whole, validate_formats=True).validate(value)


def holds(components: Any, schema: Any, written: str) -> bool:
    try:
        assert_holds(components, schema, json.loads(written))
    except jsonschema_rs.ValidationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Description:
    """An OpenAPI document."""

    document: dict[str, Any]

    def assert_shape(self, shape: str, value: Any) -> None:
        assert_holds(self.document["components"], schema_ref(shape), value)

    def schema_of(self, method: str, path: str, status: int, media_type: str) -> Any:
        """The schema of such an answer. Fails if the document does not describe one."""
        operation = self._operation(method, path)
        assert str(status) in operation["responses"], (method, path, status)
        response = operation["responses"][str(status)]
        if (place := response.get("$ref")) is not None:
            response = self.document["components"]["responses"][place.rpartition("/")[2]]
        content = response["content"]
        assert media_type in content or "*/*" in content, (method, path, media_type, [*content])
        return content.get(media_type, {}).get("schema", {})

    def _operation(self, method: str, path: str) -> dict[str, Any]:
        """Of the path itself, or of the template that it fits; words before parameters."""
        for template in sorted(self.document["paths"], key=lambda each: each.count("{")):
            pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
            item = self.document["paths"][template]
            if re.fullmatch(pattern, path.partition("?")[0]) and method.lower() in item:
                found: dict[str, Any] = item[method.lower()]
                return found
        raise AssertionError(f"{method} {path} is not in the document")
