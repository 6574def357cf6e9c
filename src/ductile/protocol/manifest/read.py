"""Reads `manifest.yaml` from its located tree. Pure: `ductile.plugins.trust` decides what may run.

Strict where a mistake would change which code runs (name, entrypoint, command types, fact rules), lenient
elsewhere: unknown keys are kept, and descriptions of payloads are accepted in any form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TypeVar

from ductile.core.durations import parse_duration
from ductile.core.json import JsonValue
from ductile.core.suggest import closest_match, did_you_mean
from ductile.errors import ConfigError, Problem
from ductile.protocol.manifest.model import (
    MANIFEST_SPEC,
    MANIFEST_VERSION,
    NAME,
    NAME_RULE,
    PROTOCOL,
    Command,
    CommandType,
    CompatibilityView,
    DeclaredEvent,
    ExecutionMode,
    FactOutput,
    Manifest,
)
from ductile.protocol.manifest.schema import JsonSchema, to_json_schema
from ductile.protocol.yaml_tree import (
    KeyPath,
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    format_path,
    is_empty,
    location_of,
    problem_at,
    scalar_value,
    to_plain,
)
from ductile.struct import Value, field

#: Similarity of a written key to a missing one. It is high because `name` and `names` are both keys.
_MISSPELT_SIMILARITY = 0.8

Choice = TypeVar("Choice", bound=StrEnum)


def describe(node: Node | None) -> str:
    """Return a few words for a node, for the `found` of a problem."""
    match node:
        case ListNode():
            return "a list"
        case MapNode():
            return "a mapping"
        case ScalarNode(text=text) if not is_empty(node):
            return f'"{text}"'
        case _:
            return "nothing"


class FieldReader(Value):
    """Reads one mapping. `problems` is shared with the readers of the mappings inside it.

    A method returns the value if it can be used and adds a problem otherwise, so that an author sees all
    problems of a manifest at once.
    """

    node: MapNode
    path: KeyPath = ()
    problems: list[Problem] = field(default_factory=list)
    #: The keys that methods have read.
    read_keys: set[str] = field(default_factory=set)

    def nested(self, node: MapNode, *path: str | int) -> FieldReader:
        """Return a reader of a mapping inside this one."""
        return FieldReader(node=node, path=(*self.path, *path), problems=self.problems)

    def get(self, name: str) -> Node | None:
        self.read_keys.add(name)
        return self.node.get(name)

    def add_problem(
        self, location: SourceLocation | None, path: KeyPath, message: str, **parts: str | None
    ) -> None:
        self.problems.append(problem_at(location, (*self.path, *path), message, **parts))

    def refuse(self, name: str, expected: str, *, hint: str | None = None) -> None:
        """Add the problem of a key that is missing or has a value that cannot be used."""
        node = self.get(name)
        location = location_of(self.node, (name,))
        message = "has a value that cannot be used"
        if node is None:
            message = "is missing"
            keys = {key.text: key for key, _ in self.node.entries}
            if (misspelt := closest_match(name, keys, similarity=_MISSPELT_SIMILARITY)) is not None:
                location, hint = keys[misspelt].location, f"{misspelt} is written instead"
        key = format_path((*self.path, name))
        self.add_problem(
            location, (name,), f"{key} {message}", expected=expected, found=describe(node), hint=hint
        )

    def text(self, name: str, *, expected: str | None = None, hint: str | None = None) -> str:
        """Return a scalar as written: version `1.10` is not 1.1. It is required when `expected` is given."""
        node = self.get(name)
        if isinstance(node, ScalarNode) and not is_empty(node) and (node.text.strip() or expected is None):
            return node.text
        if expected is not None or not is_empty(node):
            self.refuse(name, expected or "text", hint=hint)
        return ""

    def flag(self, name: str) -> bool | None:
        node = self.get(name)
        if isinstance(node, ScalarNode) and isinstance(value := scalar_value(node), bool):
            return value
        if not is_empty(node):
            self.refuse(name, "true or false")
        return None

    def choice(self, name: str, enum: type[Choice], *aliases: str) -> Choice | None:
        node, allowed = self.get(name), (*enum, *aliases)
        if isinstance(node, ScalarNode) and node.text in allowed:
            return enum(node.text)
        if not is_empty(node):
            hint = did_you_mean(node.text, allowed) if isinstance(node, ScalarNode) else None
            self.refuse(name, " or ".join(allowed), hint=hint)
        return None

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names. The keys of a mapping are accepted too; its values are remarks."""
        node = self.get(name)
        match node:
            case ListNode(items=items) if all(isinstance(item, ScalarNode) for item in items):
                return tuple(item.text for item in items if isinstance(item, ScalarNode))
            case MapNode(entries=entries):
                return tuple(key.text for key, _ in entries)
            case _:
                if not is_empty(node):
                    self.refuse(name, "a list of names")
                return ()

    def unknown_keys(self) -> dict[str, JsonValue]:
        """Return the entries that no method has read."""
        return {
            key.text: to_plain(value) for key, value in self.node.entries if key.text not in self.read_keys
        }


def declared_protocol(node: Node | None) -> int | None:
    """Return the protocol version of a manifest. It is read first, because other keys depend on it."""
    version = node.get("protocol") if isinstance(node, MapNode) else None
    if isinstance(version, ScalarNode) and re.fullmatch(r"[0-9]{1,9}", version.text):
        return int(version.text)
    return None


def declared_name(node: Node | None) -> str | None:
    """Return the name in a manifest if it is well-formed, even where the manifest cannot be loaded."""
    name = node.get("name") if isinstance(node, MapNode) else None
    return name.text if isinstance(name, ScalarNode) and NAME.fullmatch(name.text) else None


def parse_manifest(node: Node | None, *, file: str) -> Manifest:
    """Return the manifest. Raises ConfigError with every problem of the file."""
    if not isinstance(node, MapNode):
        problem = Problem(
            message="the manifest is empty" if node is None else "the manifest is not a mapping",
            file=file,
            line=None if node is None else node.location.line,
            expected="keys such as name, entrypoint and commands",
            found=describe(node),
        )
        raise ConfigError(f"{file} is not a plugin manifest", problems=(problem,))
    fields = FieldReader(node=node)
    manifest = read_manifest(fields)
    if fields.problems:
        raise ConfigError(f"{file} is not a valid plugin manifest", problems=tuple(fields.problems))
    return manifest


def read_manifest(fields: FieldReader) -> Manifest:
    """Return the manifest. It can only be used if `fields` has no problems afterwards."""
    for key, value in (
        ("manifest_spec", MANIFEST_SPEC),
        ("manifest_version", str(MANIFEST_VERSION)),
        ("protocol", str(PROTOCOL)),
    ):
        hint = f"write {key}: {value}"
        if fields.text(key, expected=value, hint=hint) not in ("", value):
            fields.refuse(key, value, hint=hint)
    commands = {command.name: command for command in _commands(fields)}
    concurrency_safe = fields.flag("concurrency_safe")
    execution_mode = fields.choice("execution_mode", ExecutionMode, "sync")
    config_keys = fields.get("config_keys")
    required: tuple[str, ...] = ()
    if isinstance(config_keys, MapNode):
        declared = fields.nested(config_keys, "config_keys")
        required, optional = declared.names("required"), declared.names("optional")
    else:  # a plain list is the old form, in which no key is required
        optional = fields.names("config_keys")
    timeout = None
    if written := fields.text("timeout"):
        try:
            timeout = parse_duration(written)
        except ValueError:
            fields.refuse("timeout", "a duration such as 30s or 5m")
    name = fields.text("name", expected=NAME_RULE)
    if name and not NAME.fullmatch(name):
        fields.refuse("name", NAME_RULE)
    return Manifest(
        name=name,
        version=fields.text("version"),
        entrypoint=fields.text("entrypoint", expected="the path of an executable in the plugin's directory"),
        description=fields.text("description").strip(),
        concurrency_safe=concurrency_safe is not False,
        execution_mode=execution_mode,
        timeout=timeout,
        preload=fields.names("preload"),
        commands=commands,
        required_config=required,
        optional_config=optional,
        fact_outputs=tuple(_fact_outputs(fields, commands)),
        unknown_keys=fields.unknown_keys(),
    )


def _commands(fields: FieldReader) -> Iterator[Command]:
    """Yield the commands with a valid name, the first one of each name."""
    names: list[str] = []
    for name, location, body, path in _command_entries(fields):
        if not NAME.fullmatch(name):
            message = "a command has a name that cannot be used"
            fields.add_problem(location, path, message, expected=NAME_RULE, found=f'"{name}"')
        elif name in names:
            fields.add_problem(
                location, path, f"the command {name} is declared twice", hint="keep one of them"
            )
        elif body is None:
            yield Command(name=name)
        else:
            yield read_command(fields.nested(body, *path), name)
        names.append(name)
    if not names:
        fields.refuse("commands", "at least one command, for example `commands: [poll, health]`")


def _command_entries(fields: FieldReader) -> Iterator[tuple[str, SourceLocation, MapNode | None, KeyPath]]:
    """Yield name, location, body and path of each command.

    Commands are written as a mapping by name, a list of mappings that have a name, or a list of names.
    """
    match fields.get("commands"):
        case MapNode(entries=entries):
            for key, value in entries:
                path: KeyPath = ("commands", key.text)
                if not isinstance(value, MapNode) and not is_empty(value):
                    message = f"the command {key.text} cannot be read"
                    expected = "a mapping such as {type: read}"
                    fields.add_problem(
                        value.location, path, message, expected=expected, found=describe(value)
                    )
                yield key.text, key.location, value if isinstance(value, MapNode) else None, path
        case ListNode(items=items):
            for index, item in enumerate(items):
                path = ("commands", index)
                name = item.get("name") if isinstance(item, MapNode) else item
                if isinstance(name, ScalarNode):
                    yield name.text, name.location, item if isinstance(item, MapNode) else None, path
                else:
                    expected = "a name, or a mapping with the key name"
                    found = describe(item)
                    fields.add_problem(
                        item.location, path, "a command has no name", expected=expected, found=found
                    )
        case _:
            return


def read_command(fields: FieldReader, name: str) -> Command:
    fields.get("name")
    kind = fields.choice("type", CommandType)
    values = fields.get("values")
    emitted = values.get("emit") if isinstance(values, MapNode) else None
    emits = []
    # An unknown form is ignored: declared events only feed catalogues and warnings.
    for item in emitted.items if isinstance(emitted, ListNode) else ():
        event = item.get("event") if isinstance(item, MapNode) else item
        if isinstance(event, ScalarNode):
            names = _texts(item.get("values")) if isinstance(item, MapNode) else ()
            emits.append(DeclaredEvent(type=event.text, values=names))
    return Command(
        name=name,
        type=kind or CommandType.WRITE,
        description=fields.text("description").strip(),
        input_schema=_schema(fields, "input_schema"),
        output_schema=_schema(fields, "output_schema"),
        idempotent=fields.flag("idempotent"),
        retry_safe=fields.flag("retry_safe"),
        consumes=_texts(values.get("consume")) if isinstance(values, MapNode) else (),
        emits=tuple(emits),
        declares_events=isinstance(emitted, ListNode),
        unknown_keys=fields.unknown_keys(),
    )


def _schema(fields: FieldReader, name: str) -> JsonSchema | None:
    """Return a payload schema as JSON Schema. A list of names is accepted too."""
    match to_plain(fields.get(name)):
        case None:
            return None
        case bool() as written:
            return written
        case dict() as written:
            return to_json_schema(written)
        case list() as names if all(isinstance(item, str) for item in names):
            return to_json_schema({str(item): "any" for item in names})
        case _:
            fields.refuse(name, "a JSON Schema, or a mapping of field to type")
            return None


def _texts(node: Node | None) -> tuple[str, ...]:
    """Return the texts in a list. Other values are ignored."""
    items = node.items if isinstance(node, ListNode) else ()
    return tuple(item.text for item in items if isinstance(item, ScalarNode))


def _fact_outputs(fields: FieldReader, commands: Mapping[str, Command]) -> Iterator[FactOutput]:
    """Yield the fact rules that are mappings."""
    node = fields.get("fact_outputs")
    if is_empty(node):
        return
    if not isinstance(node, ListNode):
        fields.refuse("fact_outputs", "a list of rules")
        return
    for index, item in enumerate(node.items):
        path = ("fact_outputs", index)
        if not isinstance(item, MapNode):
            message = "a fact rule cannot be read"
            fields.add_problem(item.location, path, message, expected="a mapping", found=describe(item))
            continue
        rule = fields.nested(item, *path)
        if rule.text("from") not in ("", "state_updates"):
            rule.refuse("from", "state_updates")
        view = rule.choice("compatibility_view", CompatibilityView)
        command = ""
        if isinstance(condition_node := rule.get("when"), MapNode):
            condition = rule.nested(condition_node, "when")
            command = condition.text("command", expected="the name of a command")
            if command and command not in commands:
                hint = did_you_mean(command, commands)
                condition.refuse("command", "a command of this manifest", hint=hint)
        else:
            rule.refuse("when", "a mapping with the key command")
        yield FactOutput(
            command=command,
            fact_type=rule.text("fact_type", expected="a name for the fact, for example echo.snapshot"),
            compatibility_view=view or CompatibilityView.MIRROR_OBJECT,
        )
