"""The values of a `manifest.yaml`, the description of a plugin by its author."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

from ductile.core.json import JsonValue
from ductile.protocol.manifest.schema import JsonSchema
from ductile.struct import Value, field

MANIFEST_FILE = "manifest.yaml"
MANIFEST_SPEC = "ductile.plugin"
MANIFEST_VERSION = 1
PROTOCOL = 2
#: The name of a plugin or a command, which occurs in URLs, scopes and `plugin.command`.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
NAME_RULE = "a letter or _, then letters, digits, _ or -"


class ExecutionMode(StrEnum):
    ASYNC = "async"
    SYNCHRONOUS = "synchronous"

    @classmethod
    def _missing_(cls, value: object) -> ExecutionMode | None:
        """`sync` is short for `synchronous`."""
        return cls.SYNCHRONOUS if value == "sync" else None


class CommandType(StrEnum):
    """A read command has no effect outside and may be repeated. A token may be limited to read commands."""

    READ = "read"
    WRITE = "write"


class DeclaredEvent(Value):
    """An event type that a command declares to emit, with the names of its values."""

    type: str
    values: tuple[str, ...] = ()


class Command(Value):
    """A command as the manifest declares it. `unknown_keys` holds the keys that Ductile does not know."""

    name: str
    type: CommandType = CommandType.WRITE
    description: str = ""
    input_schema: JsonSchema | None = None
    output_schema: JsonSchema | None = None
    idempotent: bool | None = None
    retry_safe: bool | None = None
    consumes: tuple[str, ...] = ()
    emits: tuple[DeclaredEvent, ...] = ()
    #: Whether the manifest declares the events of this command; the list may be empty.
    declares_events: bool = False
    unknown_keys: Mapping[str, JsonValue] = field(default_factory=dict)


class CompatibilityView(StrEnum):
    """The effect of a recorded fact on the stored state of the plugin."""

    MIRROR_OBJECT = "mirror_object"
    NONE = "none"


class FactOutput(Value):
    """After `command` succeeds, its `state_updates` are recorded as a fact of this type."""

    command: str
    fact_type: str
    compatibility_view: CompatibilityView = CompatibilityView.MIRROR_OBJECT


class Manifest(Value):
    """`unknown_keys` holds the keys that Ductile does not know; other programs may use them."""

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
    unknown_keys: Mapping[str, JsonValue] = field(default_factory=dict)
