"""The words in which answers are described: few of them, and what they make is JSON Schema.

What each operation answers is told in the modules named after their nouns (`job_shapes` and so on), once for
every surface. Tests hold real answers against it, strictly: a field that is added there is added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ductile.core.json import JsonObject, JsonValue

#: Where shapes that have a name are found, in any document that uses them.
PLACE = "#/components/schemas/"

TEXT: JsonObject = {"type": "string"}
COUNT: JsonObject = {"type": "integer"}
NUMBER: JsonObject = {"type": "number"}
FLAG: JsonObject = {"type": "boolean"}
ID: JsonObject = {"type": "string", "format": "uuid"}
INSTANT: JsonObject = {"type": "string", "format": "date-time"}
#: What a plugin or an operator put there, or what has a schema of its own.
ANYTHING: JsonObject = {}
OBJECT: JsonObject = {"type": "object", "additionalProperties": True}


def maybe(shape: JsonObject) -> JsonObject:
    """This, or null."""
    if isinstance(shape.get("type"), str):
        return {**shape, "type": [shape["type"], "null"]}
    if isinstance(words := shape.get("enum"), list):
        return {**shape, "enum": [*words, None]}
    return {"anyOf": [shape, {"type": "null"}]}


def told(shape: JsonObject, about: str) -> JsonObject:
    return {**shape, "description": about}


def listed(shape: JsonObject) -> JsonObject:
    return {"type": "array", "items": shape}


def by_name(shape: JsonObject) -> JsonObject:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": shape}


def words(known: Iterable[str]) -> JsonObject:
    return {"enum": [str(word) for word in known]}


def named(name: str) -> JsonObject:
    return {"$ref": f"{PLACE}{name}"}


def either(*shapes: JsonObject) -> JsonObject:
    return {"anyOf": [*shapes]}


def record(fields: Mapping[str, JsonObject], about: str | None = None) -> JsonObject:
    """An object with these fields; one whose name ends in `?` is not always there."""
    required: list[JsonValue] = [name for name in fields if not name.endswith("?")]
    return {
        "type": "object",
        **({"description": about} if about else {}),
        "required": required,
        "properties": {name.removesuffix("?"): shape for name, shape in fields.items()},
    }


#: Of calls that change something: whether they were only asked what they would do.
DRY_RUN: Mapping[str, JsonObject] = {
    "dry_run?": {"type": "boolean", "description": "True if nothing was changed: only the asker was told."}
}


def answer(fields: Mapping[str, JsonObject], about: str | None = None) -> JsonObject:
    """A whole answer, which always has something to say to people."""
    return record({**fields, "message": TEXT}, about)
