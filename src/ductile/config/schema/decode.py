"""Decodes the located tree into the model and collects every problem. Pure.

A value that cannot be read is left at its default, so that the remaining values are still examined. The
result must not be used if there are problems.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

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
    is_empty,
    location_of,
    problem_at,
    to_plain,
)

SectionType = TypeVar("SectionType", bound=Section)

_ANYTHING = Scalar(type=SettingType.ANYTHING)


class _Invalid:
    """Marks a value that cannot be read."""


_INVALID = _Invalid()


def decode(root: MapNode) -> tuple[Config, tuple[Problem, ...]]:
    """Return the configuration, which must not be used if there are problems, and the problems."""
    decoder = _Decoder(root=root)
    config = decoder.section(root, Config, ())
    # The root has no required key, so it is never invalid.
    return (config if isinstance(config, Config) else Config()), tuple(decoder.problems)


def decode_section(
    root: MapNode, section: type[SectionType]
) -> tuple[SectionType | None, tuple[Problem, ...]]:
    """Return another document than the configuration as its section; None if it cannot be made."""
    decoder = _Decoder(root=root)
    decoded = decoder.section(root, section, ())
    return (decoded if isinstance(decoded, section) else None), tuple(decoder.problems)


@dataclass(slots=True)
class _Decoder:
    root: MapNode
    problems: list[Problem] = field(default_factory=list)

    def value(self, node: Node, field_type: FieldType, path: KeyPath) -> Any:
        """Return the value of a node; for one that cannot be read, add a problem and return `_INVALID`."""
        try:
            return self._decode(node, field_type, path)
        except InvalidValueError as error:
            key = next((part for part in reversed(path) if isinstance(part, str)), "")
            secret = looks_secret(key) or field_type == Scalar(type=SettingType.SECRET)
            self._add_problem(
                path,
                error.message or "this value cannot be used",
                expected=error.expected,
                found=None if secret and isinstance(node, ScalarNode) else describe(node),
                hint=error.hint,
            )
        except ConfigError as error:  # a number that JSON cannot hold
            for problem in error.problems:
                self._add_problem(path, problem.message, expected=problem.expected, hint=problem.hint)
        return _INVALID

    def _decode(self, node: Node, field_type: FieldType, path: KeyPath) -> Any:
        match field_type:
            case SectionOf() | MapOf() | Scalar(type=SettingType.OBJECT | SettingType.VARIABLES):
                return self._decode_map(node, field_type, path)
            case ListOf(item=item):
                if not isinstance(node, ListNode):
                    hint = "begin each entry with a dash, or write [one, two]"
                    raise InvalidValueError("a list", message="this is not a list", hint=hint)
                values = [self.value(inner, item, (*path, index)) for index, inner in enumerate(node.items)]
                return tuple(value for value in values if value is not _INVALID)
            case OneOf(alternatives=alternatives):
                expected = []
                for alternative in alternatives:
                    attempt = _Decoder(root=self.root)
                    value = attempt.value(node, alternative, path)
                    if not attempt.problems:
                        return value
                    expected += [problem.expected for problem in attempt.problems if problem.expected]
                raise InvalidValueError(" or ".join(expected), message="this cannot be used")
            case Scalar(type=SettingType.ANYTHING):
                return to_plain(node)
            case Scalar(type=setting_type, at_least=at_least):
                return parse_scalar(node, setting_type, at_least)
            case Choice():
                return _choose(node, field_type)

    def _decode_map(self, node: Node, field_type: SectionOf | MapOf | Scalar, path: KeyPath) -> Any:
        if is_empty(node):
            node = MapNode(entries=(), location=node.location)
        if not isinstance(node, MapNode):
            raise InvalidValueError("a map", message="this is not a map")
        match field_type:
            case SectionOf(section=section):
                return self.section(node, section, path)
            case MapOf(value=inner):
                items = {key.text: self.value(value, inner, (*path, key.text)) for key, value in node.entries}
                return MappingProxyType({key: value for key, value in items.items() if value is not _INVALID})
            case Scalar(type=SettingType.OBJECT):
                values = {key.text: to_plain(value) for key, value in node.entries}
                return SecretMap(values, redacted_entries(node))
            case _:  # `PORT: 8080` and `DEBUG: true` are texts in an environment
                variables = {}
                for key, value in node.entries:
                    if isinstance(value, ScalarNode) and "\0" not in value.text:
                        variables[key.text] = "" if is_empty(value) else value.text
                        continue
                    message = "this value cannot be used"
                    self._add_problem((*path, key.text), message, expected="text", found=describe(value))
                return SecretMap(variables, redacted_entries(node))

    def section(self, node: MapNode, section: type[Section], path: KeyPath) -> Section | _Invalid:
        keys = {key.name: key for key in keys_of(section)}
        values = {}
        for name, value in node.entries:
            if name.text not in keys:
                hint = did_you_mean(name.text, keys) or f"the keys here are {', '.join(sorted(keys))}"
                where = f" in {path[-1]}" if path and isinstance(path[-1], str) else ""
                message = f'there is no key "{name.text}"{where}'
                self._add_problem((*path, name.text), message, hint=hint)
                continue
            key = keys[name.text]
            # An empty section or map is a heading, and a free value may be null. Elsewhere null is absence.
            takes_null = isinstance(key.type, SectionOf | MapOf) or key.type == _ANYTHING
            if takes_null or not is_empty(value):
                values[key.attribute] = self.value(value, key.type, (*path, key.name))
        required = [key for key in keys.values() if key.required]
        for key in required:
            if key.attribute not in values:
                self._add_problem(path, f'"{key.name}" is missing', hint=key.description)
        usable = {name: value for name, value in values.items() if value is not _INVALID}
        if any(key.attribute not in usable for key in required):
            return _INVALID
        return section(**usable)

    def _add_problem(self, path: KeyPath, message: str, **parts: str | None) -> None:
        self.problems.append(problem_at(location_of(self.root, path), path, message, **parts))


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
