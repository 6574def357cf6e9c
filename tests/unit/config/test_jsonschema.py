"""The JSON Schema of the configuration matches the model."""

from __future__ import annotations

import json
from typing import Any

from ductile.config.schema.fields import keys_of, settings_under
from ductile.config.schema.jsonschema import config_schema
from ductile.config.schema.model import Config


def resolve(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Follow references, lists, maps and "or null" down to the section."""
    while True:
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        elif "anyOf" in schema:
            schema = schema["anyOf"][0]
        elif "items" in schema:
            schema = schema["items"]
        elif isinstance(schema.get("additionalProperties"), dict):
            schema = schema["additionalProperties"]
        else:
            return schema


def test_every_key_of_the_model_is_described() -> None:
    root = config_schema()
    for path, key in settings_under(Config):
        section = root
        for part in path[:-1]:
            if part not in ("*", "[]"):
                section = resolve(section["properties"][part], root)
        assert section["properties"][key.name]["description"] == key.description
        assert key.description.endswith(".")
        assert section["additionalProperties"] is False
        assert (key.name in section.get("required", [])) == key.required


def test_the_schema_is_json_and_names_its_dialect() -> None:
    schema = json.loads(json.dumps(config_schema()))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["properties"]) == {key.name for key in keys_of(Config)}
    assert schema["properties"]["service"]["anyOf"][0] == {"$ref": "#/$defs/ServiceSettings"}


def test_a_reference_is_allowed_for_every_value() -> None:
    """An editor must accept `max_workers: ${WORKERS}`."""
    service = config_schema()["$defs"]["ServiceSettings"]["properties"]
    for key in ("max_workers", "tick_interval", "log_level", "strict_mode"):
        assert {"type": "string", "pattern": r"\$\{"} in service[key]["anyOf"]
