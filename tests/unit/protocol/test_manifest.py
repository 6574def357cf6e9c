"""Manifests are read from YAML."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from builders.plugins import a_manifest
from ductile.errors import ConfigError
from ductile.protocol.manifest.model import (
    CommandType,
    CompatibilityView,
    DeclaredEvent,
    ExecutionMode,
    FactOutput,
    Manifest,
)
from ductile.protocol.manifest.read import parse_manifest
from ductile.protocol.manifest.schema import to_json_schema
from ductile.protocol.yaml import parse_yaml

if TYPE_CHECKING:
    from ductile.core.json import JsonValue
    from ductile.errors import Problem

HEAD = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: echo
version: 1.10
protocol: 2
entrypoint: run.sh
"""


def parse(text: str) -> Manifest:
    return parse_manifest(parse_yaml(text, file="manifest.yaml"), file="manifest.yaml")


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as excinfo:
        parse(text)
    assert excinfo.value.problems
    return excinfo.value.problems


def test_every_key_of_a_manifest() -> None:
    """Version 1.10 is not the number 1.1."""
    manifest = parse(
        HEAD
        + """\
description: Says what it hears
concurrency_safe: false
execution_mode: synchronous
timeout: 1m30s
preload: [json, httpx]
commands:
  poll:
    type: read
    description: Look
    input_schema: {url: string}
    output_schema: {type: object}
    idempotent: true
    retry_safe: false
    values:
      consume: [payload.url]
      emit: [{event: echo.said, values: [payload.text]}, echo.silent]
config_keys: {required: [token], optional: [url]}
fact_outputs:
  - {when: {command: poll}, from: state_updates, fact_type: echo.seen, compatibility_view: none}
"""
    )
    assert (manifest.name, manifest.version, manifest.entrypoint) == ("echo", "1.10", "run.sh")
    assert manifest.description == "Says what it hears"
    assert manifest.concurrency_safe is False
    assert manifest.execution_mode is ExecutionMode.SYNCHRONOUS
    assert manifest.timeout == timedelta(seconds=90)
    assert manifest.preload == ("json", "httpx")
    assert (manifest.required_config, manifest.optional_config) == (("token",), ("url",))
    assert manifest.fact_outputs == (
        FactOutput(command="poll", fact_type="echo.seen", compatibility_view=CompatibilityView.NONE),
    )
    poll = manifest.commands["poll"]
    assert poll.type is CommandType.READ
    assert poll.description == "Look"
    assert poll.input_schema == {"type": "object", "properties": {"url": {"type": "string"}}}
    assert poll.output_schema == {"type": "object"}
    assert (poll.idempotent, poll.retry_safe) == (True, False)
    assert poll.consumes == ("payload.url",)
    assert poll.emits == (
        DeclaredEvent(type="echo.said", values=("payload.text",)),
        DeclaredEvent(type="echo.silent"),
    )


def test_defaults() -> None:
    """Commands write and are concurrency-safe, and facts are mirrored in the state."""
    manifest = parse(
        HEAD
        + "commands: [poll]\nfact_outputs: [{when: {command: poll}, from: state_updates, fact_type: a.b}]\n"
    )
    assert manifest.concurrency_safe is True
    assert manifest.execution_mode is None
    assert manifest.timeout is None
    assert manifest.commands["poll"].type is CommandType.WRITE
    assert manifest.fact_outputs[0].compatibility_view is CompatibilityView.MIRROR_OBJECT


@pytest.mark.parametrize(
    "commands",
    [
        "commands:\n  poll: {type: write}\n  health: {type: write}\n",
        "commands:\n  poll:\n  health: {}\n",
        "commands:\n  - name: poll\n    type: write\n  - name: health\n",
        "commands: [poll, health]\n",
        "commands: [poll, {name: health}]\n",
    ],
)
def test_the_forms_of_commands_are_equivalent(commands: str) -> None:
    """A map, a list of objects and a list of names are accepted."""
    assert parse(HEAD + commands).commands == parse(HEAD + "commands: [poll, health]\n").commands


def test_unknown_keys_are_kept_and_ignored() -> None:
    """This holds for keys of the manifest and of a command."""
    manifest = parse(
        HEAD + "stopwatch: {max_subs: 3}\nsecrets: [key]\ncommands:\n  poll: {cost: 1, type: read}\n"
    )
    assert manifest.unknown_keys == {"stopwatch": {"max_subs": 3}, "secrets": ["key"]}
    assert manifest.commands["poll"].unknown_keys == {"cost": 1}


@pytest.mark.parametrize(
    ("config_keys", "required", "optional"),
    [
        ("[a, b]", (), ("a", "b")),
        ("{required: [a], optional: [b]}", ("a",), ("b",)),
        ("{required: [], optional: }", (), ()),
        ("", (), ()),
        ("{optional: {a: what it is for}}", (), ("a",)),
    ],
)
def test_config_keys(config_keys: str, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    """The form is `{required, optional}`; in the older plain list no key is required."""
    manifest = parse(HEAD + f"commands: [poll]\nconfig_keys: {config_keys}\n")
    assert (manifest.required_config, manifest.optional_config) == (required, optional)


@pytest.mark.parametrize("key", ["manifest_spec", "manifest_version", "name", "protocol", "entrypoint"])
@pytest.mark.parametrize("value", [None, "''", "[1]", "~"])
def test_required_keys(key: str, value: str | None) -> None:
    """The problem names the key."""
    lines = [line for line in a_manifest().splitlines() if not line.startswith(f"{key}:")]
    [problem] = problems_of("\n".join([*lines, f"{key}: {value}"] if value is not None else lines))
    assert problem.key == key
    assert problem.expected


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("manifest_spec: other.plugin", "manifest_spec"),
        ("manifest_version: 2", "manifest_version"),
        ("name: 9lives", "name"),
        ("name: a b", "name"),
        ("name: a.b", "name"),
        ("protocol: two", "protocol"),
    ],
)
def test_values_that_are_refused(line: str, key: str) -> None:
    lines = [
        manifest_line
        for manifest_line in a_manifest().splitlines()
        if not manifest_line.startswith(f"{key}:")
    ]
    [problem] = problems_of("\n".join([*lines, line]))
    assert (problem.key, problem.line, problem.file) == (key, len(lines) + 1, "manifest.yaml")


@pytest.mark.parametrize(
    ("commands", "key"),
    [
        ("commands: []", "commands"),
        ("commands: {}", "commands"),
        ("commands: poll", "commands"),
        ("commands: {poll: {type: readonly}}", "commands.poll.type"),
        ("commands: {poll: {type: [read]}}", "commands.poll.type"),
        ("commands: {poll: read}", "commands.poll"),
        ("commands: [{type: read}, poll]", "commands[0]"),
        ("commands: [poll, poll]", "commands[1]"),
        ("commands: [bad name]", "commands[0]"),
        ("commands: {poll: {idempotent: maybe}}", "commands.poll.idempotent"),
        ("commands: {poll: {input_schema: text}}", "commands.poll.input_schema"),
    ],
)
def test_commands_that_are_refused(commands: str, key: str) -> None:
    """Any type but read and write refuses the plugin."""
    assert problems_of(HEAD + commands + "\n")[0].key == key


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("{fact_type: a.b}", "fact_outputs[0].when"),
        ("{when: {command: pol}, fact_type: a.b}", "fact_outputs[0].when.command"),
        ("{when: {command: poll}}", "fact_outputs[0].fact_type"),
        ("{when: {command: poll}, fact_type: a.b, from: events}", "fact_outputs[0].from"),
        (
            "{when: {command: poll}, fact_type: a.b, compatibility_view: x}",
            "fact_outputs[0].compatibility_view",
        ),
        ("poll", "fact_outputs[0]"),
    ],
)
def test_fact_rules_that_are_refused(rule: str, key: str) -> None:
    """A rule that can never match is an error."""
    assert problems_of(HEAD + f"commands: [poll]\nfact_outputs: [{rule}]\n")[0].key == key


def test_a_misspelt_command_suggests_the_closest() -> None:
    [problem] = problems_of(
        HEAD + "commands: [poll]\nfact_outputs: [{when: {command: pol}, fact_type: a.b}]\n"
    )
    assert problem.hint == "did you mean poll?"


def test_a_misspelt_key_is_named_where_the_right_one_is_missing() -> None:
    head = HEAD.replace("entrypoint:", "entrypiont:")
    assert head != HEAD
    [problem] = problems_of(head + "commands: [poll]\n")
    assert (problem.key, problem.hint) == ("entrypoint", "entrypiont is written instead")
    assert (
        problem.line
        == head.splitlines().index(next(line for line in head.splitlines() if "piont" in line)) + 1
    )


def test_all_problems_are_reported_together() -> None:
    problems = problems_of("name: a b\ncommands: [poll, poll]\ntimeout: soon\nprotocol: 2\n")
    assert {problem.key for problem in problems} == {
        "manifest_spec",
        "manifest_version",
        "name",
        "entrypoint",
        "commands[1]",
        "timeout",
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "[1]", "text"])
def test_a_manifest_has_to_be_a_mapping(text: str) -> None:
    problems_of(text)


@pytest.mark.parametrize(
    ("declaration", "schema"),
    [
        ({}, {}),
        (True, True),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "string"}, {"type": "string"}),
        ({"type": "object", "description": "x"}, {"type": "object", "description": "x"}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}}),
        ({"$ref": "#/x"}, {"$ref": "#/x"}),
        ({"a": "int"}, {"type": "object", "properties": {"a": {"type": "integer"}}}),
        (
            {"type": "string", "a": "bool"},
            {"type": "object", "properties": {"type": {"type": "string"}, "a": {"type": "boolean"}}},
        ),
        ({"required": "boolean"}, {"type": "object", "properties": {"required": {"type": "boolean"}}}),
        ({"when": "a date"}, {"type": "object", "properties": {"when": {"description": "a date"}}}),
        ({"a": "any"}, {"type": "object", "properties": {"a": {}}}),
        (
            {"a": {"type": "array", "items": {}}},
            {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
        ),
        (
            {"a": {"b": "string"}},
            {
                "type": "object",
                "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}},
            },
        ),
    ],
)
def test_schemas_become_json_schema(declaration: dict[str, JsonValue] | bool, schema: JsonValue) -> None:
    """A JSON Schema stays as it is, the compact form is translated, and an unclear form accepts any
    payload.
    """
    assert to_json_schema(declaration) == schema
