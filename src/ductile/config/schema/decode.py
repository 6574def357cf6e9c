"""From the located tree to the model, with every problem told at once.

What cannot be read is left at its default, so that the rest is still looked at; the caller must not
use the result if there were problems. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ductile.config.key_paths import KeyPath, did_you_mean, place_of, problem_at
from ductile.config.read.merge import is_empty
from ductile.config.redaction import redacted_entries
from ductile.config.schema.fields import (
    Choice,
    FieldType,
    ListOf,
    MapOf,
    OneOf,
    Scalar,
    SectionOf,
    SettingKey,
    keys_of,
)
from ductile.config.schema.model import Config
from ductile.config.schema.parse import PARSERS, InvalidValueError, describe
from ductile.config.schema.types import SettingType
from ductile.config.secrets import SecretMap, looks_secret
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode, SourceLocation, to_plain

if TYPE_CHECKING:
    from ductile.config.schema.types import Section


class _Nothing:
    """The mark of a value that could not be read."""


_NOTHING = _Nothing()


def decode(root: MapNode) -> tuple[Config, tuple[Problem, ...]]:
    decoder = _Decoder(root=root)
    config = decoder.section(root, Config, ())
    # No key of the root is required, so there always is one.
    return (config if isinstance(config, Config) else Config()), tuple(decoder.problems)


@dataclass(slots=True)
class _Decoder:
    root: MapNode
    problems: list[Problem] = field(default_factory=list)

    def value(self, node: Node, shape: FieldType, path: KeyPath) -> Any:
        match shape:
            case SectionOf(section=section):
                return self._in_map(node, path, lambda found: self.section(found, section, path))
            case MapOf(value=inner):
                return self._in_map(node, path, lambda found: self._map(found, inner, path))
            case ListOf(item=item):
                return self._list(node, item, path)
            case OneOf(alternatives=alternatives):
                return self._one_of(node, alternatives, path)
            case Choice() | Scalar():
                return self._leaf(node, shape, path)

    def section(self, node: MapNode, section: type[Section], path: KeyPath) -> Section | _Nothing:
        keys = {key.name: key for key in keys_of(section)}
        values = {}
        for name, value in node.entries:
            if name.text not in keys:
                self._unknown_key(name, tuple(keys), path)
            elif not is_empty(value) or _takes_null(keys[name.text]):
                key = keys[name.text]
                read = self.value(value, key.shape, (*path, key.name))
                values[key.attribute] = read
        return self._build(section, keys, node, values, path)

    def _build(
        self,
        section: type[Section],
        keys: dict[str, SettingKey],
        node: MapNode,
        values: dict[str, Any],
        path: KeyPath,
    ) -> Section | _Nothing:
        required = [key for key in keys.values() if key.required]
        for key in required:
            if key.attribute not in values:
                self._complain(node.place, path, f'"{key.name}" is missing', hint=key.description)
        usable = {name: value for name, value in values.items() if value is not _NOTHING}
        if any(key.attribute not in usable for key in required):
            return _NOTHING
        return section(**usable)

    def _in_map(self, node: Node, path: KeyPath, read: Any) -> Any:
        if isinstance(node, MapNode):
            return read(node)
        if is_empty(node):
            return read(MapNode(entries=(), place=node.place))
        self._complain(node.place, path, "this is not a map", expected="a map", found=self._found(node, path))
        return _NOTHING

    def _map(self, node: MapNode, inner: FieldType, path: KeyPath) -> Any:
        read = {key.text: self.value(value, inner, (*path, key.text)) for key, value in node.entries}
        return MappingProxyType({key: value for key, value in read.items() if value is not _NOTHING})

    def _list(self, node: Node, item: FieldType, path: KeyPath) -> Any:
        if not isinstance(node, ListNode):
            hint = "begin each entry with a dash, or write [one, two]"
            self._complain(
                node.place,
                path,
                "this is not a list",
                expected="a list",
                found=self._found(node, path),
                hint=hint,
            )
            return _NOTHING
        read = [self.value(inner, item, (*path, index)) for index, inner in enumerate(node.items)]
        return tuple(value for value in read if value is not _NOTHING)

    def _one_of(self, node: Node, alternatives: tuple[FieldType, ...], path: KeyPath) -> Any:
        expected = []
        for shape in alternatives:
            attempt = _Decoder(root=self.root)
            value = attempt.value(node, shape, path)
            if not attempt.problems:
                return value
            expected += [problem.expected for problem in attempt.problems if problem.expected]
        found = self._found(node, path)
        self._complain(node.place, path, "this cannot be used", expected=" or ".join(expected), found=found)
        return _NOTHING

    def _leaf(self, node: Node, shape: Choice | Scalar, path: KeyPath) -> Any:
        try:
            match shape:
                case Scalar(kind=SettingType.ANYTHING):
                    return to_plain(node)
                case Scalar(kind=SettingType.OBJECT | SettingType.VARIABLES as kind):
                    return self._in_map(node, path, lambda found: self._guarded(found, kind, path))
                case Scalar(kind=kind, at_least=at_least):
                    return PARSERS[kind](node, at_least)
                case Choice():
                    return _choose(node, shape)
        except InvalidValueError as error:
            found = self._found(node, path, kind=shape.kind if isinstance(shape, Scalar) else None)
            message = error.message or "this value cannot be used"
            self._complain(node.place, path, message, expected=error.expected, found=found, hint=error.hint)
        except ConfigError as error:  # a number that JSON cannot hold
            for problem in error.problems:
                self._complain(
                    node.place, path, problem.message, expected=problem.expected, hint=problem.hint
                )
        return _NOTHING

    def _guarded(self, node: MapNode, kind: SettingType, path: KeyPath) -> SecretMap[Any]:
        if kind is SettingType.OBJECT:
            values = {key.text: to_plain(value) for key, value in node.entries}
        else:
            values = {key.text: self._variable(value, (*path, key.text)) for key, value in node.entries}
        return SecretMap(values, redacted_entries(node))

    def _variable(self, node: Node, path: KeyPath) -> str:
        """A variable's value is what was written: `PORT: 8080` and `DEBUG: true` are texts there."""
        if isinstance(node, ScalarNode) and "\0" not in node.text:
            return "" if is_empty(node) else node.text
        self._complain(node.place, path, "this value cannot be used", expected="text", found=describe(node))
        return ""

    def _unknown_key(self, name: ScalarNode, known: tuple[str, ...], path: KeyPath) -> None:
        hint = did_you_mean(name.text, known) or f"the keys here are {', '.join(sorted(known))}"
        where = f" in {path[-1]}" if path and isinstance(path[-1], str) else ""
        self._complain(name.place, (*path, name.text), f'there is no key "{name.text}"{where}', hint=hint)

    def _found(self, node: Node, path: KeyPath, *, kind: SettingType | None = None) -> str | None:
        key = next((part for part in reversed(path) if isinstance(part, str)), "")
        if isinstance(node, ScalarNode) and (kind is SettingType.SECRET or looks_secret(key)):
            return None
        return describe(node)

    def _complain(self, place: SourceLocation, path: KeyPath, message: str, **parts: str | None) -> None:
        self.problems.append(problem_at(place_of(self.root, path) or place, path, message, **parts))


def _takes_null(key: SettingKey) -> bool:
    """A free value may be null; a section or a map may be an empty heading. Elsewhere null is absence."""
    return isinstance(key.shape, SectionOf | MapOf) or key.shape == Scalar(kind=SettingType.ANYTHING)


def _choose(node: Node, choice: Choice) -> object:
    expected = f"one of {', '.join(choice.words)}" if len(choice.words) > 1 else choice.words[0]
    if not isinstance(node, ScalarNode):
        raise InvalidValueError(expected)
    if choice.enum is None:
        if node.text in choice.words:
            return node.text
    else:
        try:
            return choice.enum(node.text)
        except ValueError:
            pass
    hint = did_you_mean(node.text, choice.words) if node.written is None else None
    raise InvalidValueError(expected, hint=hint)
