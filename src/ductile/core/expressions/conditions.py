"""The conditions of `if`: evaluated strictly by type, with a result that explains itself.

Conditions are stored with the graph of a run as msgspec encodes them: the keys of the configuration and a
`kind`. A result quotes the compared values only masked and shortened, so it can be logged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from ductile.core.expressions.operators import Operator, compare
from ductile.core.expressions.paths import MISSING, EvalContext, look_up
from ductile.core.expressions.regex import MatchBudget, PatternError, matches
from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value, field

#: The most comparisons in an explanation. The JSON form of the result has all of them.
_MAX_EXPLAINED = 3


class ConditionError(ValueError):
    """The condition cannot be evaluated; its step fails."""


class _ConditionPart(Value, tag_field="kind", forbid_unknown_fields=True):
    """Settings of the tagged union `Condition`."""


class PathComparison(_ConditionPart, tag="comparison"):
    """Compare the value at `path` with `value`; for `exists`, `value` is whether it is expected to exist."""

    path: str
    op: Operator
    value: Any = True  # a JsonValue, which msgspec cannot decode by type: the alias is recursive


class AllOf(_ConditionPart, kw_only=False, tag="all"):
    parts: tuple[Condition, ...] = field(name="all")


class AnyOf(_ConditionPart, kw_only=False, tag="any"):
    parts: tuple[Condition, ...] = field(name="any")


class Not(_ConditionPart, kw_only=False, tag="not"):
    part: Condition = field(name="not")


Condition: TypeAlias = PathComparison | AllOf | AnyOf | Not


class ComparisonResult(Value):
    """One evaluated comparison. `found` is None if there is no value at the path."""

    path: str
    op: Operator
    expected: str
    found: str | None
    is_true: bool


class ConditionResult(Value):
    is_true: bool
    #: The comparisons that decided.
    deciding: tuple[ComparisonResult, ...]
    #: All evaluated comparisons, in order of evaluation.
    evaluated: tuple[ComparisonResult, ...]


def evaluate_condition(
    condition: Condition,
    context: EvalContext,
    *,
    is_secret: Callable[[str], bool],
    budget: MatchBudget | None = None,
) -> ConditionResult:
    """Evaluate a condition from left to right, until the result is known.

    `is_secret` decides by the name of a key whether its value is masked. Raises ConditionError if a regular
    expression is invalid or exceeds the part of `budget` for one condition.
    """
    if budget is not None:
        budget.next_condition()
    evaluator = _Evaluator(context, is_secret, matches if budget is None else budget.matches)
    return evaluator.evaluate(condition)


class _Evaluator(NamedTuple):
    context: EvalContext
    is_secret: Callable[[str], bool]
    match: Callable[[str, str], bool]

    def evaluate(self, condition: Condition) -> ConditionResult:
        match condition:
            case PathComparison():
                compared = self._compare(condition)
                return ConditionResult(is_true=compared.is_true, deciding=(compared,), evaluated=(compared,))
            case AllOf(parts):
                return self._evaluate_parts(parts, stop_at=False)
            case AnyOf(parts):
                return self._evaluate_parts(parts, stop_at=True)
            case Not(part):
                inner = self.evaluate(part)
                return ConditionResult(
                    is_true=not inner.is_true, deciding=inner.deciding, evaluated=inner.evaluated
                )

    def _evaluate_parts(self, parts: tuple[Condition, ...], *, stop_at: bool) -> ConditionResult:
        """Evaluate parts up to the first with the result `stop_at`, which decides alone, else all decide."""
        deciding: tuple[ComparisonResult, ...] = ()
        evaluated: tuple[ComparisonResult, ...] = ()
        for part in parts:
            result = self.evaluate(part)
            evaluated += result.evaluated
            if result.is_true is stop_at:
                return ConditionResult(is_true=stop_at, deciding=result.deciding, evaluated=evaluated)
            deciding += result.deciding
        return ConditionResult(is_true=not stop_at, deciding=deciding, evaluated=evaluated)

    def _compare(self, comparison: PathComparison) -> ComparisonResult:
        path, op, value = comparison.path, comparison.op, comparison.value
        actual = look_up(path, self.context)
        try:
            is_true = compare(actual, op, value, self.match)
        except PatternError as error:
            raise ConditionError(f"the condition on {path} cannot be evaluated: {error}") from None
        hidden = is_secret_path(path, self.is_secret)
        return ComparisonResult(
            path=path,
            op=op,
            expected=self._quote(value, hidden=hidden and op is not Operator.EXISTS),
            found=None if actual is MISSING else self._quote(actual, hidden=hidden),
            is_true=is_true,
        )

    def _quote(self, value: JsonValue, *, hidden: bool) -> str:
        return MASK if hidden else quote_redacted(value, self.is_secret)


@lru_cache(maxsize=1024)
def is_secret_path(path: str, is_secret: Callable[[str], bool]) -> bool:
    """Return whether a key of the path is secret. Cached: it takes longer than a comparison."""
    return any(is_secret(key) for key in path.split("."))


def paths_compared(condition: Condition) -> Iterator[str]:
    """Yield the paths that a condition compares, in the order in which it is written."""
    match condition:
        case PathComparison(path=path):
            yield path
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from paths_compared(part)
        case Not(part):
            yield from paths_compared(part)


def explain_condition(result: ConditionResult) -> str:
    """Return a sentence: whether the condition holds, and the comparisons that decided with their values."""
    parts = []
    for compared in result.deciding[:_MAX_EXPLAINED]:
        value = (
            "" if compared.op is Operator.EXISTS and compared.expected == "true" else f" {compared.expected}"
        )
        found = f"there is no {compared.path}" if compared.found is None else f"found {compared.found}"
        parts.append(
            f"{compared.path} {compared.op}{value} is {'true' if compared.is_true else 'false'} ({found})"
        )
    if len(result.deciding) > _MAX_EXPLAINED:
        parts.append(f"and {len(result.deciding) - _MAX_EXPLAINED} more")
    return f"the condition {'holds' if result.is_true else 'does not hold'}: {'; '.join(parts)}"


def condition_result_to_json(result: ConditionResult) -> JsonObject:
    """Return the result as the ledger and the API have it."""
    return {
        "holds": result.is_true,
        "explanation": explain_condition(result),
        "because": [_comparison_to_json(comparison) for comparison in result.deciding],
        "looked_at": [_comparison_to_json(comparison) for comparison in result.evaluated],
    }


def _comparison_to_json(result: ComparisonResult) -> JsonObject:
    return {
        "path": result.path,
        "op": result.op.value,
        "expected": result.expected,
        "found": result.found,
        "missing": result.found is None,
        "holds": result.is_true,
    }


MASK = "***"
MAX_QUOTE_LENGTH = 80
_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: `scheme://user:password@host`. Without slashes between, so that a long text is scanned only once.
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")


def quote_redacted(value: JsonValue, is_secret: Callable[[str], bool]) -> str:
    """Return the value as shortened JSON. Values of secret keys and URLs with a password are masked."""
    text = ""
    for piece in _quote_pieces(value, is_secret):
        text += piece
        if len(text) > MAX_QUOTE_LENGTH:
            return f"{text[:MAX_QUOTE_LENGTH]}…"
    return text


def _quote_pieces(value: JsonValue, is_secret: Callable[[str], bool]) -> Iterator[str]:
    """Yield the quote in pieces, so that only the beginning of a large value is processed."""
    match value:
        case dict():
            comma = "{"
            for key, inner in value.items():
                yield f"{comma}{_quote_text(key)}: "
                yield from (MASK,) if is_secret(key) else _quote_pieces(inner, is_secret)
                comma = ", "
            yield "}" if value else "{}"
        case list():
            comma = "["
            for inner in value:
                yield comma
                yield from _quote_pieces(inner, is_secret)
                comma = ", "
            yield "]" if value else "[]"
        case str():
            yield MASK if _CREDENTIALS.search(value) else _quote_text(value)
        case _:
            yield json.dumps(value)


def _quote_text(text: str) -> str:
    """Quote text. Half a surrogate pair, which UTF-8 cannot encode, becomes a question mark."""
    quoted = _ENCODER.encode(text[: MAX_QUOTE_LENGTH + 1])
    return quoted.encode(errors="replace").decode()
