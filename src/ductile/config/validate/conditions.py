"""Rules over an `if`, as far as they do not depend on a payload.

A condition never fails at run time. So one that could only ever be false, by its path or the type of its
value, is refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ductile.config.secrets import looks_secret
from ductile.core.expressions.operators import Operator
from ductile.core.expressions.paths import Root, fault_in_path
from ductile.core.expressions.regex import pattern_fault
from ductile.core.suggest import did_you_mean
from ductile.protocol.yaml_tree import ScalarNode, node_at

if TYPE_CHECKING:
    from ductile.config.schema.pipelines import ConditionSettings
    from ductile.config.validate.report import ValidationReport
    from ductile.core.json import JsonValue
    from ductile.protocol.yaml_tree import KeyPath

_EVENT_PATHS = ("event.type", "event.source")
_HEADER_PATH = "event.headers."
_EXPECTED_PATH = "a path such as payload.x, context.x, config.x or event.type"
_ORDERING = (Operator.GT, Operator.GTE, Operator.LT, Operator.LTE)
_OF_TEXTS = (Operator.STARTSWITH, Operator.ENDSWITH, Operator.REGEX)


def validate_condition(condition: ConditionSettings, path: KeyPath, report: ValidationReport) -> None:
    forms = {
        "path": condition.path is not None or condition.op is not None,
        "all": condition.all_of is not None,
        "any": condition.any_of is not None,
        "not": condition.negated is not None,
    }
    given = [form for form, present in forms.items() if present]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        expected = "path and op, or one of all, any, not"
        report.error(path, "this is not a condition", expected=expected, found=found)
        return
    for name, inner in (("all", condition.all_of), ("any", condition.any_of)):
        for index, part in enumerate(inner or ()):
            validate_condition(part, (*path, name, index), report)
        if inner == ():
            report.error((*path, name), f"`{name}` needs at least one condition")
    if condition.negated is not None:
        validate_condition(condition.negated, (*path, "not"), report)
    if forms["path"]:
        _check_comparison(condition, path, report)
    elif condition.value is not msgspec.UNSET:
        report.error((*path, "value"), "`value` goes with `path` and `op` only")


def _check_comparison(condition: ConditionSettings, path: KeyPath, report: ValidationReport) -> None:
    subject, op = condition.path, condition.op
    if subject is None or op is None:
        report.error(path, "a comparison needs both `path` and `op`")
        return
    if fault := _path_fault(subject):
        at = (*path, "path")
        hint = did_you_mean(subject.partition(".")[0], Root)
        message = f"this path leads nowhere: it {fault}"
        report.error(at, message, expected=_EXPECTED_PATH, found=report.quote(at), hint=hint)
    at, value = (*path, "value"), condition.value
    if value is msgspec.UNSET:
        if op is not Operator.EXISTS:
            report.error(path, f"`{op}` needs a `value` to compare with")
    elif expected := _expected_type(op, value):
        # Messages contain only the type of a value: a value that is compared with a secret is one.
        report.error(at, f"`{op}` takes {expected}", found=_type_name(value))
    elif op is Operator.REGEX and isinstance(value, str) and (fault := pattern_fault(value)):
        hidden = any(looks_secret(key) for key in subject.split(".")) or not may_quote(at, report)
        report.error(at, f"this is not a regular expression{'' if hidden else f': {fault}'}")


def _path_fault(text: str) -> str | None:
    if text.partition(".")[0] != Root.EVENT or text in _EVENT_PATHS:
        return fault_in_path(text)
    name = text.removeprefix(_HEADER_PATH)
    if not text.startswith(_HEADER_PATH) or "." in name:
        return f"is none of {', '.join(_EVENT_PATHS)} and {_HEADER_PATH}NAME"
    if name != name.lower():  # headers are stored in lower case
        return f"names a header that is known as {_HEADER_PATH}{name.lower()}"
    return fault_in_path(text)


def _expected_type(op: Operator, value: JsonValue) -> str | None:
    """Return the type of value that the operator needs, None if the value has it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if op is Operator.EXISTS and not isinstance(value, bool):
        return "no value, or true or false"
    if op is Operator.IN and not isinstance(value, list):
        return "a list"
    if op in _ORDERING and not (is_number or isinstance(value, str)):
        return "a number or text"
    if op in _OF_TEXTS and not isinstance(value, str):
        return "text"
    return None


def _type_name(value: JsonValue) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a map"


def may_quote(path: KeyPath, report: ValidationReport) -> bool:
    """Whether a message may contain the text at a path: not from a variable, and no key looks secret."""
    node = node_at(report.root, path)
    from_variable = isinstance(node, ScalarNode) and node.written is not None
    return not from_variable and not any(looks_secret(key) for key in path if isinstance(key, str))
