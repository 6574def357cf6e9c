"""The commands of a manifest: what they are, and the three shapes in which they may be written."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from ductile.protocol.manifest.fields import describe, is_null
from ductile.protocol.manifest.schema import to_json_schema
from ductile.protocol.yaml import ListNode, MapNode, ScalarNode, to_plain
from ductile.struct import Value, field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ductile.core.json import JsonValue
    from ductile.protocol.manifest.fields import FieldReader
    from ductile.protocol.manifest.schema import JsonSchema
    from ductile.protocol.yaml import Node, SourceLocation

#: What may name a plugin or a command: it occurs in URLs, scopes, and `plugin.command`.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
NAME_RULE = "a letter or _, then letters, digits, _ or -"

_COMMAND_KEYS = frozenset(
    ["name", "type", "description", "input_schema", "output_schema", "idempotent", "retry_safe", "values"]
)


class CommandType(StrEnum):
    """Reading commands have no effect outside and may be repeated; a token may be limited to them."""

    READ = "read"
    WRITE = "write"


class EmittedEvent(Value):
    """An event type a command says it emits, and the payload names in it."""

    type: str
    values: tuple[str, ...] = ()


class Command(Value):
    name: str
    type: CommandType = CommandType.WRITE
    description: str = ""
    input_schema: JsonSchema | None = None
    output_schema: JsonSchema | None = None
    idempotent: bool | None = None
    retry_safe: bool | None = None
    consumes: tuple[str, ...] = ()
    emits: tuple[EmittedEvent, ...] = ()
    #: Whether it says what it emits, which may be nothing.
    declares_events: bool = False
    others: Mapping[str, JsonValue] = field(default_factory=dict)


def read_commands(fields: FieldReader) -> Iterator[Command]:
    """A mapping by name, a list of mappings that have a name, or a list of names."""
    node = fields.node.get("commands")
    names: list[str] = []
    for name, place, body, path in _command_entries(fields, node):
        if not NAME.fullmatch(name):
            fields.complain(
                "a command has a name that cannot be used", path, place, expected=NAME_RULE, found=f'"{name}"'
            )
        elif name in names:
            fields.complain(f"the command {name} is declared twice", path, place, hint="keep one of them")
        elif body is None:
            yield Command(name=name)
        else:
            yield _command(fields.inside(body, path), name)
        names.append(name)
    if not names:
        fields.refuse("commands", "at least one command, for example `commands: [poll, health]`")


def _command_entries(
    fields: FieldReader, node: Node | None
) -> Iterator[tuple[str, SourceLocation, MapNode | None, str]]:
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                path = f"commands.{key.text}"
                if isinstance(value, MapNode) or is_null(value):
                    yield key.text, key.place, value if isinstance(value, MapNode) else None, path
                else:
                    fields.complain(
                        f"the command {key.text} cannot be read",
                        path,
                        value.place,
                        expected="a mapping such as {type: read}",
                        found=describe(value),
                    )
                    yield key.text, key.place, None, path
        case ListNode(items=items):
            for index, item in enumerate(items):
                path = f"commands[{index}]"
                name = item.get("name") if isinstance(item, MapNode) else item
                if isinstance(name, ScalarNode):
                    yield name.text, name.place, item if isinstance(item, MapNode) else None, path
                else:
                    fields.complain(
                        "a command has no name",
                        path,
                        item.place,
                        expected="a name, or a mapping with the key name",
                        found=describe(item),
                    )
        case _:
            return


def _command(fields: FieldReader, name: str) -> Command:
    kind = fields.choice("type", tuple(CommandType))
    described = fields.node.get("values")
    consumes, emits = _values(described)
    return Command(
        name=name,
        type=CommandType.WRITE if kind is None else CommandType(kind),
        description=fields.text("description").strip(),
        input_schema=_schema(fields, "input_schema"),
        output_schema=_schema(fields, "output_schema"),
        idempotent=fields.flag("idempotent"),
        retry_safe=fields.flag("retry_safe"),
        consumes=consumes,
        emits=emits,
        declares_events=isinstance(described, MapNode) and isinstance(described.get("emit"), ListNode),
        others=fields.others(_COMMAND_KEYS),
    )


def _schema(fields: FieldReader, name: str) -> JsonSchema | None:
    node = fields.node.get(name)
    if is_null(node):
        return None
    match to_plain(node):
        case bool() as written:
            return written
        case dict() as written:
            return to_json_schema(written)
        case list() as names if all(isinstance(item, str) for item in names):
            return to_json_schema({str(item): "any" for item in names})
        case _:
            fields.refuse(name, "a JSON Schema, or a mapping of field to type")
            return None


def _values(node: Node | None) -> tuple[tuple[str, ...], tuple[EmittedEvent, ...]]:
    """Names that describe payloads. They feed catalogues only, so what is not understood is passed over."""
    if not isinstance(node, MapNode):
        return (), ()
    emitted = node.get("emit")
    items = emitted.items if isinstance(emitted, ListNode) else ()
    return _texts(node.get("consume")), tuple(event for item in items if (event := _emitted(item)))


def _emitted(item: Node) -> EmittedEvent | None:
    match item:
        case ScalarNode(text=text):
            return EmittedEvent(type=text)
        case MapNode() if isinstance(name := item.get("event"), ScalarNode):
            return EmittedEvent(type=name.text, values=_texts(item.get("values")))
        case _:
            return None


def _texts(node: Node | None) -> tuple[str, ...]:
    items = node.items if isinstance(node, ListNode) else ()
    return tuple(item.text for item in items if isinstance(item, ScalarNode))
