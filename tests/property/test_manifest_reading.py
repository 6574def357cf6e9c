"""Reading a manifest raises only ConfigError, and the forms of commands are equivalent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from builders.plugins import a_manifest, manifest_keys
from ductile.errors import ConfigError
from ductile.protocol.manifest.model import CommandType
from ductile.protocol.manifest.read import parse_manifest
from ductile.protocol.manifest.schema import to_json_schema
from ductile.protocol.yaml import parse_yaml

if TYPE_CHECKING:
    from ductile.core.json import JsonValue
    from ductile.errors import Problem
    from ductile.protocol.manifest.model import Manifest

#: No line and paragraph separators: libyaml ends a line at them, and a key has to be on one line.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(sorted(manifest_keys()))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)


def parse_tree(tree: JsonValue) -> Manifest:
    """Write the tree as JSON, which is YAML, and read it as a manifest."""
    return parse_manifest(parse_yaml(json.dumps(tree, ensure_ascii=False), file="m"), file="m")


def problems_of(tree: JsonValue) -> tuple[Problem, ...]:
    try:
        parse_tree(tree)
    except ConfigError as error:
        return error.problems
    return ()


def a_valid_manifest() -> dict[str, JsonValue]:
    return {
        "manifest_spec": "ductile.plugin",
        "manifest_version": 1,
        "name": "echo",
        "protocol": 2,
        "entrypoint": "run",
        "commands": ["poll"],
    }


@given(KEYS, VALUES)
def test_any_value_is_read_or_reported(key: str, value: JsonValue) -> None:
    """Each problem has a key and a line."""
    for problem in problems_of(a_valid_manifest() | {key: value}):
        assert problem.key
        assert problem.line


@given(st.dictionaries(NAMES, st.sampled_from(CommandType), min_size=1, max_size=5))
def test_the_forms_of_commands_are_equivalent(commands: dict[str, CommandType]) -> None:
    """A map and a list of objects are equivalent."""
    as_map = parse_tree(
        a_valid_manifest() | {"commands": {name: {"type": kind} for name, kind in commands.items()}}
    )
    as_list = parse_tree(
        a_valid_manifest() | {"commands": [{"name": name, "type": kind} for name, kind in commands.items()]}
    )
    assert as_map == as_list
    assert {name: command.type for name, command in as_map.commands.items()} == commands
    names_only = parse_tree(a_valid_manifest() | {"commands": list(commands)})
    assert list(names_only.commands) == list(commands)
    assert all(command.type is CommandType.WRITE for command in names_only.commands.values())


@given(st.dictionaries(st.from_regex(r"x_[a-z]{1,8}", fullmatch=True), VALUES, max_size=4))
def test_unknown_keys_never_refuse(unknown: dict[str, JsonValue]) -> None:
    """Unknown keys are kept and ignored."""
    assert parse_tree(a_valid_manifest() | unknown).unknown_keys == unknown


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_normalised_schemas_stay_as_they_are(schema: dict[str, JsonValue]) -> None:
    """The result is JSON Schema, so translating it again changes nothing."""
    normalised = to_json_schema(schema)
    assert to_json_schema(normalised) == normalised


def test_the_builder_is_a_good_manifest() -> None:
    """The other tests start from this text."""
    assert parse_manifest(parse_yaml(a_manifest(), file="m"), file="m").name == "echo"
