"""Rules over an `if` that can be judged as it is written.

A condition never fails because of the payload it meets. So whatever could only ever be false, by its
path or by the kind of its value, is refused here, where somebody sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ductile.config.key_paths import did_you_mean, node_at
from ductile.config.secrets import looks_secret
from ductile.core.expressions.operators import Operator
from ductile.core.expressions.paths import Root, fault_in_path
from ductile.core.expressions.regex import pattern_fault
from ductile.protocol.yaml import ScalarNode

if TYPE_CHECKING:
    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.pipelines import ConditionSettings
    from ductile.config.validate.report import ValidationReport
    from ductile.core.json import JsonValue

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
        report.error(
            path, "this is not a condition", expected="path and op, or one of all, any, not", found=found
        )
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
    if condition.path is None or condition.op is None:
        report.error(path, "a comparison needs both `path` and `op`")
        return
    if fault := _fault_in_path(condition.path):
        at = (*path, "path")
        hint = did_you_mean(condition.path.partition(".")[0], Root)
        message = f"this path leads nowhere: it {fault}"
        report.error(at, message, expected=_EXPECTED_PATH, found=report.quote(at), hint=hint)
    if condition.value is not msgspec.UNSET:
        _check_value(condition.path, condition.op, condition.value, (*path, "value"), report)
    elif condition.op is not Operator.EXISTS:
        report.error(path, f"`{condition.op}` needs a `value` to compare with")


def _fault_in_path(text: str) -> str | None:
    if text.partition(".")[0] == Root.EVENT and text not in _EVENT_PATHS:
        return _fault_in_header_path(text)
    return fault_in_path(text)


def _fault_in_header_path(text: str) -> str | None:
    """Of a path below `event` that is none of the fixed ones. Names of headers come in lower case."""
    name = text.removeprefix(_HEADER_PATH)
    if not text.startswith(_HEADER_PATH) or "." in name:
        return f"is none of {', '.join(_EVENT_PATHS)} and {_HEADER_PATH}NAME"
    if name != name.lower():
        return f"names a header that is known as {_HEADER_PATH}{name.lower()}"
    return fault_in_path(text)


def _check_value(
    subject: str, op: Operator, value: JsonValue, path: KeyPath, report: ValidationReport
) -> None:
    """Only the kind of a value is told: what is compared with a secret is one."""
    if expected := _expected(op, value):
        report.error(path, f"`{op}` takes {expected}", found=_kind(value))
    elif op is Operator.REGEX and isinstance(value, str) and (fault := pattern_fault(value)):
        hidden = any(looks_secret(key) for key in subject.split(".")) or not may_quote(path, report)
        report.error(path, f"this is not a regular expression{'' if hidden else f': {fault}'}")


def _expected(op: Operator, value: JsonValue) -> str | None:
    """What kind of value the operator needs, if this is not it."""
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


def _kind(value: JsonValue) -> str:
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
    """Whether parts of a text may stand in a message: it came from no variable, its keys are not secret."""
    node = node_at(report.root, path)
    from_variable = isinstance(node, ScalarNode) and node.written is not None
    return not from_variable and not any(looks_secret(key) for key in path if isinstance(key, str))
