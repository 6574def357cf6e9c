"""Decodes the located tree into the model and collects every problem. Pure.

A value that cannot be read is left at its default, so that the remaining values are still examined. The
result must not be used if there are problems.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ductile.config.redaction import redacted_entries
from ductile.config.schema.fields import (
    Choice,
    FieldType,
    ListOf,
    MapOf,
    OneOf,
    Scalar,
    Section,
    SectionOf,
    SettingType,
    keys_of,
)
from ductile.config.schema.model import Config
from ductile.config.schema.parse import InvalidValueError, describe, parse_scalar
from ductile.config.secrets import SecretMap, looks_secret
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml_tree import (
    KeyPath,
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    is_empty,
    location_of,
    problem_at,
    to_plain,
)

_ANYTHING = Scalar(type=SettingType.ANYTHING)


class _Invalid:
    """Marks a value that cannot be read."""


_INVALID = _Invalid()


def decode(root: MapNode) -> tuple[Config, tuple[Problem, ...]]:
    decoder = _Decoder(root=root)
    config = decoder.section(root, Config, ())
    # The root has no required key, so it is never invalid.
    return (config if isinstance(config, Config) else Config()), tuple(decoder.problems)


@dataclass(slots=True)
class _Decoder:
    root: MapNode
    problems: list[Problem] = field(default_factory=list)

    def value(self, node: Node, field_type: FieldType, path: KeyPath) -> Any:
        match field_type:
            case SectionOf(section=section):
                return self._in_map(node, path, lambda found: self.section(found, section, path))
            case MapOf(value=inner):
                return self._in_map(node, path, lambda found: self._map(found, inner, path))
            case ListOf(item=item):
                return self._list(node, item, path)
            case OneOf(alternatives=alternatives):
                return self._one_of(node, alternatives, path)
            case Choice() | Scalar():
                return self._scalar(node, field_type, path)

    def section(self, node: MapNode, section: type[Section], path: KeyPath) -> Section | _Invalid:
        keys = {key.name: key for key in keys_of(section)}
        values = {}
        for name, value in node.entries:
            if name.text not in keys:
                hint = did_you_mean(name.text, keys) or f"the keys here are {', '.join(sorted(keys))}"
                where = f" in {path[-1]}" if path and isinstance(path[-1], str) else ""
                message = f'there is no key "{name.text}"{where}'
                self._add_problem(name.location, (*path, name.text), message, hint=hint)
                continue
            key = keys[name.text]
            # An empty section or map is a heading, and a free value may be null. Elsewhere null is absence.
            takes_null = isinstance(key.type, SectionOf | MapOf) or key.type == _ANYTHING
            if takes_null or not is_empty(value):
                values[key.attribute] = self.value(value, key.type, (*path, key.name))
        required = [key for key in keys.values() if key.required]
        for key in required:
            if key.attribute not in values:
                self._add_problem(node.location, path, f'"{key.name}" is missing', hint=key.description)
        usable = {name: value for name, value in values.items() if value is not _INVALID}
        if any(key.attribute not in usable for key in required):
            return _INVALID
        return section(**usable)

    def _in_map(self, node: Node, path: KeyPath, read: Any) -> Any:
        if isinstance(node, MapNode):
            return read(node)
        if is_empty(node):
            return read(MapNode(entries=(), location=node.location))
        found = self._found(node, path)
        self._add_problem(node.location, path, "this is not a map", expected="a map", found=found)
        return _INVALID

    def _map(self, node: MapNode, inner: FieldType, path: KeyPath) -> Any:
        read = {key.text: self.value(value, inner, (*path, key.text)) for key, value in node.entries}
        return MappingProxyType({key: value for key, value in read.items() if value is not _INVALID})

    def _list(self, node: Node, item: FieldType, path: KeyPath) -> Any:
        if not isinstance(node, ListNode):
            hint = "begin each entry with a dash, or write [one, two]"
            found = self._found(node, path)
            self._add_problem(
                node.location, path, "this is not a list", expected="a list", found=found, hint=hint
            )
            return _INVALID
        read = [self.value(inner, item, (*path, index)) for index, inner in enumerate(node.items)]
        return tuple(value for value in read if value is not _INVALID)

    def _one_of(self, node: Node, alternatives: tuple[FieldType, ...], path: KeyPath) -> Any:
        expected = []
        for alternative in alternatives:
            attempt = _Decoder(root=self.root)
            value = attempt.value(node, alternative, path)
            if not attempt.problems:
                return value
            expected += [problem.expected for problem in attempt.problems if problem.expected]
        found = self._found(node, path)
        self._add_problem(
            node.location, path, "this cannot be used", expected=" or ".join(expected), found=found
        )
        return _INVALID

    def _scalar(self, node: Node, field_type: Choice | Scalar, path: KeyPath) -> Any:
        try:
            match field_type:
                case Scalar(type=SettingType.ANYTHING):
                    return to_plain(node)
                case Scalar(type=SettingType.OBJECT | SettingType.VARIABLES as kind):
                    return self._in_map(node, path, lambda found: self._secret_map(found, kind, path))
                case Scalar(type=setting_type, at_least=at_least):
                    return parse_scalar(node, setting_type, at_least)
                case Choice():
                    return _choose(node, field_type)
        except InvalidValueError as error:
            secret = isinstance(field_type, Scalar) and field_type.type is SettingType.SECRET
            self._add_problem(
                node.location,
                path,
                error.message or "this value cannot be used",
                expected=error.expected,
                found=self._found(node, path, secret=secret),
                hint=error.hint,
            )
        except ConfigError as error:  # a number that JSON cannot hold
            for problem in error.problems:
                self._add_problem(
                    node.location, path, problem.message, expected=problem.expected, hint=problem.hint
                )
        return _INVALID

    def _secret_map(self, node: MapNode, kind: SettingType, path: KeyPath) -> SecretMap[Any]:
        values: dict[str, Any] = {}
        for key, value in node.entries:
            if kind is SettingType.OBJECT:
                values[key.text] = to_plain(value)
            elif isinstance(value, ScalarNode) and "\0" not in value.text:
                # As written: `PORT: 8080` and `DEBUG: true` are texts in an environment.
                values[key.text] = "" if is_empty(value) else value.text
            else:
                found = describe(value)
                self._add_problem(
                    value.location,
                    (*path, key.text),
                    "this value cannot be used",
                    expected="text",
                    found=found,
                )
        return SecretMap(values, redacted_entries(node))

    def _found(self, node: Node, path: KeyPath, *, secret: bool = False) -> str | None:
        key = next((part for part in reversed(path) if isinstance(part, str)), "")
        if isinstance(node, ScalarNode) and (secret or looks_secret(key)):
            return None
        return describe(node)

    def _add_problem(
        self, location: SourceLocation, path: KeyPath, message: str, **parts: str | None
    ) -> None:
        self.problems.append(problem_at(location_of(self.root, path) or location, path, message, **parts))


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
