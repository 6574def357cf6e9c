"""Whether an `if` holds, and what it saw: strict about types, and able to explain itself.

A condition is stored with the graph of a run, hence the JSON form, which is the one of the YAML. Of
what was compared only a masked and shortened quotation is kept: a verdict can be logged as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ductile.core.expressions.operators import Operator, compare
from ductile.core.expressions.paths import MISSING, EvalContext, look_up
from ductile.core.expressions.redacted_quote import MASK, quote_redacted
from ductile.core.expressions.regex import MatchBudget, PatternError, matches
from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value

_OPERATORS = frozenset(Operator)
#: So many comparisons an explanation tells; a condition that lists more is told in full by its verdict.
_MAX_EXPLAINED = 3


class ConditionError(ValueError):
    """The condition could not be judged; the step that has it fails."""


class Comparison(Value):
    """`value` is what the path's value is compared with; for `exists`, whether it is to exist."""

    path: str
    op: Operator
    value: JsonValue = True


class AllOf(Value, kw_only=False):
    parts: tuple[Condition, ...]


class AnyOf(Value, kw_only=False):
    parts: tuple[Condition, ...]


class Not(Value, kw_only=False):
    part: Condition


Condition: TypeAlias = Comparison | AllOf | AnyOf | Not


class ComparisonResult(Value):
    """One comparison that was looked at. `found` is None where the path led nowhere."""

    path: str
    op: Operator
    expected: str
    found: str | None
    held: bool


class ConditionResult(Value):
    """`because` has the comparisons that decided, `looked_at` all up to there, in order of evaluation."""

    holds: bool
    because: tuple[ComparisonResult, ...]
    looked_at: tuple[ComparisonResult, ...]


def evaluate_condition(
    condition: Condition,
    scope: EvalContext,
    *,
    is_secret: Callable[[str], bool],
    budget: MatchBudget | None = None,
) -> ConditionResult:
    """Judge a condition, from left to right and no further than needed.

    `is_secret` tells by its name whether the value of a key must not be shown. ConditionError if a
    regular expression cannot be used, or takes more of the budget than there is for one condition.
    """
    if budget is not None:
        budget.next_condition()
    judge = _Evaluator(scope, is_secret, matches if budget is None else budget.matches)
    return judge.verdict(condition)


class _Evaluator(NamedTuple):
    scope: EvalContext
    is_secret: Callable[[str], bool]
    match: Callable[[str, str], bool]

    def verdict(self, condition: Condition) -> ConditionResult:
        match condition:
            case Comparison():
                seen = self._look(condition)
                return ConditionResult(holds=seen.held, because=(seen,), looked_at=(seen,))
            case AllOf(parts):
                return self._until(parts, stop_at=False)
            case AnyOf(parts):
                return self._until(parts, stop_at=True)
            case Not(part):
                inner = self.verdict(part)
                return ConditionResult(
                    holds=not inner.holds, because=inner.because, looked_at=inner.looked_at
                )

    def _until(self, parts: tuple[Condition, ...], *, stop_at: bool) -> ConditionResult:
        """The first part that gives `stop_at` decides alone; if none does, they all decide together."""
        because: tuple[ComparisonResult, ...] = ()
        looked_at: tuple[ComparisonResult, ...] = ()
        for part in parts:
            verdict = self.verdict(part)
            looked_at += verdict.looked_at
            if verdict.holds is stop_at:
                return ConditionResult(holds=stop_at, because=verdict.because, looked_at=looked_at)
            because += verdict.because
        return ConditionResult(holds=not stop_at, because=because, looked_at=looked_at)

    def _look(self, comparison: Comparison) -> ComparisonResult:
        found = look_up(comparison.path, self.scope)
        is_secret = self.is_secret
        try:
            held = compare(found, comparison.op, comparison.value, self.match)
        except PatternError as error:
            raise ConditionError(f"the condition on {comparison.path} cannot be judged: {error}") from None
        hidden = _is_hidden(comparison.path, is_secret)
        return ComparisonResult(
            path=comparison.path,
            op=comparison.op,
            expected=_masked_quote(
                comparison.value, is_secret, hidden=hidden and comparison.op is not Operator.EXISTS
            ),
            found=None if found is MISSING else _masked_quote(found, is_secret, hidden=hidden),
            held=held,
        )


@lru_cache(maxsize=1024)
def _is_hidden(path: str, is_secret: Callable[[str], bool]) -> bool:
    """Remembered, for paths are few and judging their words takes longer than the comparison."""
    return any(is_secret(key) for key in path.split("."))


def _masked_quote(value: JsonValue, is_secret: Callable[[str], bool], *, hidden: bool) -> str:
    return MASK if hidden else quote_redacted(value, is_secret)


def explain_condition(verdict: ConditionResult) -> str:
    """One sentence: whether it holds, and the comparisons that decided with what they saw."""
    told = [_explain_comparison(seen) for seen in verdict.because[:_MAX_EXPLAINED]]
    if len(verdict.because) > _MAX_EXPLAINED:
        told.append(f"and {len(verdict.because) - _MAX_EXPLAINED} more")
    return f"the condition {'holds' if verdict.holds else 'does not hold'}: {'; '.join(told)}"


def _explain_comparison(seen: ComparisonResult) -> str:
    value = "" if seen.op is Operator.EXISTS and seen.expected == "true" else f" {seen.expected}"
    found = f"there is no {seen.path}" if seen.found is None else f"found {seen.found}"
    return f"{seen.path} {seen.op}{value} is {'true' if seen.held else 'false'} ({found})"


def condition_result_to_json(verdict: ConditionResult) -> JsonObject:
    """For the ledger and for programs."""
    return {
        "holds": verdict.holds,
        "explanation": explain_condition(verdict),
        "because": [_seen_to_json(seen) for seen in verdict.because],
        "looked_at": [_seen_to_json(seen) for seen in verdict.looked_at],
    }


def _seen_to_json(seen: ComparisonResult) -> JsonObject:
    return {
        "path": seen.path,
        "op": seen.op.value,
        "expected": seen.expected,
        "found": seen.found,
        "missing": seen.found is None,
        "holds": seen.held,
    }


def condition_to_json(condition: Condition) -> JsonObject:
    match condition:
        case Comparison(path=path, op=op, value=value):
            return {"path": path, "op": op.value, "value": value}
        case AllOf(parts):
            return {"all": [condition_to_json(part) for part in parts]}
        case AnyOf(parts):
            return {"any": [condition_to_json(part) for part in parts]}
        case Not(part):
            return {"not": condition_to_json(part)}


def condition_from_json(stored: JsonObject) -> Condition:
    """What `condition_to_json` wrote; ConditionError for anything else."""
    match stored:
        case {"path": str(path), "op": str(op), **rest} if op in _OPERATORS and rest.keys() <= {"value"}:
            return Comparison(path=path, op=Operator(op), value=rest.get("value", True))
        case {"all": list(parts), **rest} if not rest:
            return AllOf(_parts_from_json(parts))
        case {"any": list(parts), **rest} if not rest:
            return AnyOf(_parts_from_json(parts))
        case {"not": dict(part), **rest} if not rest:
            return Not(condition_from_json(part))
        case _:
            raise ConditionError("this is not a stored condition")


def _parts_from_json(parts: list[JsonValue]) -> tuple[Condition, ...]:
    return tuple(condition_from_json(part if isinstance(part, dict) else {}) for part in parts)
