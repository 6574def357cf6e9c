#!/usr/bin/env python3
"""The if plugin: the first rule that is true decides under which type an event goes on.

Conditions mean what they mean in pipelines. Types are strict, and operators that look inside a text take no
notice of case. A path that leads nowhere is null for eq, neq and in, and false for the others.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

ORDER = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
TEXT: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda found, value: value in found,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "regex": lambda found, value: re.fullmatch(value, found, re.IGNORECASE) is not None,
}
OPERATORS = ("exists", "eq", "neq", "in", *ORDER, *TEXT)
POSITION = re.compile(r"0|[1-9][0-9]{0,8}")
ROOTS = ("payload", "context", "config", "event")
MISSING = object()

plugin = Plugin()


class Rule(NamedTuple):
    when: dict[str, Any]
    emit: str


@plugin.command
def handle(request: Request) -> str:
    roots = {
        "payload": request.payload,
        "context": request.context,
        "config": request.config,
        "event": request.event,
    }
    kind = classify(read_rules(request.config), request.config.get("else"), roots)
    if kind is None:
        return "no rule is true"
    request.emit(kind, request.payload, dedupe_key=request.event.get("dedupe_key"))
    return kind


@plugin.command
def health(request: Request) -> str:
    return f"healthy, {len(read_rules(request.config))} rules"


def classify(rules: list[Rule], otherwise: str | None, roots: dict[str, Any]) -> str | None:
    return next((rule.emit for rule in rules if holds(rule.when, roots)), otherwise)


def read_rules(config: dict[str, Any]) -> list[Rule]:
    rules = config.get("rules")
    if not isinstance(rules, list):
        raise Failure("`rules` in the plugin's config has to be a list", retry=False)
    otherwise = config.get("else")
    if otherwise is not None and not is_name(otherwise):
        raise Failure("`else` in the plugin's config has to be an event type", retry=False)
    return [read_rule(rule, f"rules[{index}]") for index, rule in enumerate(rules)]


def read_rule(rule: Any, place: str) -> Rule:
    if not isinstance(rule, dict) or not is_name(rule.get("emit")):
        raise Failure(f"{place} needs `when`, a condition, and `emit`, an event type", retry=False)
    check_condition(rule.get("when"), f"{place}.when")
    return Rule(when=rule["when"], emit=rule["emit"])


def is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def check_condition(condition: Any, place: str) -> None:
    match condition:
        case {"all": [*parts]} | {"any": [*parts]} if len(condition) == 1:
            for index, part in enumerate(parts):
                check_condition(part, f"{place}[{index}]")
        case {"not": part} if len(condition) == 1:
            check_condition(part, f"{place}.not")
        case {"path": str(path), "op": op} if op in OPERATORS and path.split(".")[0] in ROOTS:
            check_value(op, condition.get("value"), place)
        case _:
            expected = f"{{path, op, value}}, all, any or not; a path begins with one of {', '.join(ROOTS)}"
            raise Failure(f"{place} is no condition: expected {expected}", retry=False)


def check_value(op: str, value: Any, place: str) -> None:
    if op in TEXT and op != "contains" and not isinstance(value, str):
        raise Failure(f"{place}: {op} needs a text as `value`", retry=False)
    if op == "in" and not isinstance(value, list):
        raise Failure(f"{place}: in needs a list as `value`", retry=False)
    if op == "regex":
        try:
            re.compile(value)
        except re.error as error:
            raise Failure(f"{place}: {value!r} is no regular expression: {error}", retry=False) from None


def holds(condition: dict[str, Any], roots: dict[str, Any]) -> bool:
    if "all" in condition:
        return all(holds(part, roots) for part in condition["all"])
    if "any" in condition:
        return any(holds(part, roots) for part in condition["any"])
    if "not" in condition:
        return not holds(condition["not"], roots)
    return compare(condition["op"], look_up(condition["path"], roots), condition.get("value"))


def look_up(path: str, roots: dict[str, Any]) -> Any:
    found: Any = roots
    for name in path.split("."):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list):
            found = item_of(found, name)
        else:
            return MISSING
    return found


def item_of(items: list[Any], name: str) -> Any:
    """The item at this position; else the first object with this `id`."""
    if POSITION.fullmatch(name) and int(name) < len(items):
        return items[int(name)]
    return next((item for item in items if isinstance(item, dict) and item.get("id") == name), MISSING)


def compare(op: str, found: Any, value: Any) -> bool:
    if op == "exists":
        return (found is not MISSING) is (value is not False)
    if op in ("eq", "neq", "in"):
        known = None if found is MISSING else found
        among = value if op == "in" else [value]
        return any(same(known, item) for item in among) != (op == "neq")
    if found is MISSING:
        return False
    if op in ORDER:
        return comparable(found, value) and bool(ORDER[op](found, value))
    if op == "contains" and isinstance(found, list):
        return any(same(item, value) for item in found)
    if op == "contains" and isinstance(found, dict):
        return isinstance(value, str) and value in found
    if not isinstance(found, str) or not isinstance(value, str):
        return False
    if op == "regex":
        return TEXT[op](found, value)
    return TEXT[op](found.casefold(), value.casefold())


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def comparable(one: Any, other: Any) -> bool:
    """Numbers with numbers, texts with texts."""
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return numbers or (isinstance(one, str) and isinstance(other, str))


plugin.run()
