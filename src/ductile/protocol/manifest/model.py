"""`manifest.yaml`: what a plugin says about itself.

Owns the values that a manifest becomes and the reading of them from the located YAML tree. Strict
where a mistake would change what runs (name, entrypoint, command types, fact rules), easy-going
elsewhere: keys that are not known are kept, and descriptions of payloads are taken as they come.
Nothing here touches the disk; whether a plugin may be trusted is decided in `ductile.plugins.trust`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from ductile.core.durations import parse_duration
from ductile.errors import ConfigError, Problem
from ductile.protocol.manifest.commands import (
    NAME,
    NAME_RULE,
    Command,
    CommandType,
    EmittedEvent,
    read_commands,
)
from ductile.protocol.manifest.fields import FieldReader, closest, describe, is_null
from ductile.protocol.yaml import ListNode, MapNode, ScalarNode
from ductile.struct import Value, field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from ductile.core.json import JsonValue
    from ductile.protocol.yaml import Node

__all__ = [
    "MANIFEST_FILE",
    "NAME",
    "PROTOCOL",
    "Command",
    "CommandType",
    "CompatibilityView",
    "EmittedEvent",
    "ExecutionMode",
    "FactOutput",
    "Manifest",
    "declared_name",
    "declared_protocol",
    "parse_manifest",
]

MANIFEST_FILE = "manifest.yaml"
MANIFEST_SPEC = "ductile.plugin"
MANIFEST_VERSION = 1
PROTOCOL = 2

_KEYS = frozenset(
    [
        "manifest_spec",
        "manifest_version",
        "name",
        "version",
        "protocol",
        "entrypoint",
        "description",
        "concurrency_safe",
        "execution_mode",
        "timeout",
        "preload",
        "commands",
        "config_keys",
        "fact_outputs",
    ]
)


class ExecutionMode(StrEnum):
    ASYNC = "async"
    SYNCHRONOUS = "synchronous"

    @classmethod
    def _missing_(cls, value: object) -> ExecutionMode | None:
        """`sync` is short for `synchronous`."""
        return cls.SYNCHRONOUS if value == "sync" else None


class CompatibilityView(StrEnum):
    """What becomes of the plugin's state row when a fact is recorded."""

    MIRROR_OBJECT = "mirror_object"
    NONE = "none"


class FactOutput(Value):
    """After `command` succeeded, what it put in `state_updates` is recorded as a fact of this type."""

    command: str
    fact_type: str
    compatibility_view: CompatibilityView = CompatibilityView.MIRROR_OBJECT


class Manifest(Value):
    name: str
    entrypoint: str
    commands: Mapping[str, Command]
    version: str = ""
    protocol: int = PROTOCOL
    description: str = ""
    concurrency_safe: bool = True
    execution_mode: ExecutionMode | None = None
    timeout: timedelta | None = None
    preload: tuple[str, ...] = ()
    required_config: tuple[str, ...] = ()
    optional_config: tuple[str, ...] = ()
    fact_outputs: tuple[FactOutput, ...] = ()
    others: Mapping[str, JsonValue] = field(default_factory=dict)


def declared_protocol(node: Node | None) -> int | None:
    """The protocol a manifest names, if it names one at all: the rest of another protocol's manifest
    may look different, so this is asked before anything else is read.
    """
    found = node.get("protocol") if isinstance(node, MapNode) else None
    if isinstance(found, ScalarNode) and re.fullmatch(r"[0-9]{1,9}", found.text):
        return int(found.text)
    return None


def declared_name(node: Node | None) -> str | None:
    """The name a manifest claims, usable or not; for speaking of one that cannot be loaded."""
    found = node.get("name") if isinstance(node, MapNode) else None
    return found.text if isinstance(found, ScalarNode) and NAME.fullmatch(found.text) else None


def parse_manifest(node: Node | None, *, file: str) -> Manifest:
    """Read a manifest; ConfigError carries every problem of the file."""
    if not isinstance(node, MapNode):
        problem = Problem(
            message="the manifest is empty" if node is None else "the manifest is not a mapping",
            file=file,
            line=None if node is None else node.place.line,
            expected="keys such as name, entrypoint and commands",
            found=describe(node),
        )
        raise ConfigError(f"{file} is not a plugin manifest", problems=(problem,))
    fields = FieldReader(node=node)
    manifest = _read(fields)
    if fields.problems:
        raise ConfigError(f"{file} is not a valid plugin manifest", problems=tuple(fields.problems))
    return manifest


def _read(fields: FieldReader) -> Manifest:
    _check_constant(fields, "manifest_spec", MANIFEST_SPEC)
    _check_constant(fields, "manifest_version", str(MANIFEST_VERSION))
    _check_constant(fields, "protocol", str(PROTOCOL))
    commands = {command.name: command for command in read_commands(fields)}
    safe = fields.flag("concurrency_safe")
    mode = fields.choice("execution_mode", (*ExecutionMode, "sync"))
    required, optional = _config_keys(fields)
    return Manifest(
        name=_plugin_name(fields),
        version=fields.text("version"),
        entrypoint=fields.text("entrypoint", expected="the path of an executable in the plugin's directory"),
        description=fields.text("description").strip(),
        concurrency_safe=True if safe is None else safe,
        execution_mode=None if mode is None else ExecutionMode(mode),
        timeout=_timeout(fields),
        preload=fields.names("preload"),
        commands=commands,
        required_config=required,
        optional_config=optional,
        fact_outputs=tuple(_fact_outputs(fields, commands)),
        others=fields.others(_KEYS),
    )


def _check_constant(fields: FieldReader, name: str, value: str) -> None:
    if fields.text(name, expected=value, hint=f"write {name}: {value}") not in ("", value):
        fields.refuse(name, value, hint=f"write {name}: {value}")


def _plugin_name(fields: FieldReader) -> str:
    name = fields.text("name", expected=NAME_RULE)
    if name and not NAME.fullmatch(name):
        fields.refuse("name", NAME_RULE)
    return name


def _timeout(fields: FieldReader) -> timedelta | None:
    if not (written := fields.text("timeout")):
        return None
    try:
        return parse_duration(written)
    except ValueError:
        fields.refuse("timeout", "a duration such as 30s or 5m")
        return None


def _config_keys(fields: FieldReader) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Required and optional names; a plain list is the old form, which did not ask for any of them."""
    node = fields.node.get("config_keys")
    match node:
        case MapNode():
            keys = fields.inside(node, "config_keys")
            return keys.names("required"), keys.names("optional")
        case _:
            return (), fields.names("config_keys")


def _fact_outputs(fields: FieldReader, commands: Mapping[str, Command]) -> Iterator[FactOutput]:
    node = fields.node.get("fact_outputs")
    if is_null(node):
        return
    if not isinstance(node, ListNode):
        fields.refuse("fact_outputs", "a list of rules")
        return
    for index, item in enumerate(node.items):
        path = f"fact_outputs[{index}]"
        if isinstance(item, MapNode):
            yield _fact_output(fields.inside(item, path), commands)
        else:
            fields.complain(
                "a fact rule cannot be read", path, item.place, expected="a mapping", found=describe(item)
            )


def _fact_output(rule: FieldReader, commands: Mapping[str, Command]) -> FactOutput:
    source = rule.text("from")
    if source not in ("", "state_updates"):
        rule.refuse("from", "state_updates")
    view = rule.choice("compatibility_view", tuple(CompatibilityView))
    return FactOutput(
        command=_fact_command(rule, commands),
        fact_type=rule.text("fact_type", expected="a name for the fact, for example echo.snapshot"),
        compatibility_view=CompatibilityView.MIRROR_OBJECT if view is None else CompatibilityView(view),
    )


def _fact_command(rule: FieldReader, commands: Mapping[str, Command]) -> str:
    when = rule.node.get("when")
    if not isinstance(when, MapNode):
        rule.refuse("when", "a mapping with the key command")
        return ""
    condition = rule.inside(when, rule.key("when"))
    command = condition.text("command", expected="the name of a command")
    if command and command not in commands:
        condition.refuse("command", "a command of this manifest", hint=closest(command, commands))
    return command
