"""Comparing the answers of two executions: the differences, and the verdict on the later one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from ductile.config.secrets import redact
from ductile.core.expressions.paths import MISSING, Missing
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.json_differences import Path, ValueDifference, compare_values
from ductile.operations.jobs.documents import plugin_response
from ductile.store.model.records import LogRow
from ductile.struct import Value, about

#: The parts of a response that are compared besides its result; an empty part counts as a missing one. Log
#: lines are not compared.
_COMPARED = ("events", "state_updates", "artifacts")
_MAX_TEXT = 200


class ReplayVerdict(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    #: It succeeded, and fails now.
    FAILS_NOW = "fails_now"
    #: It failed, and succeeds now.
    FAILED_BEFORE = "failed_before"
    #: It differs, but the plugin in force answers today as the candidate does.
    DRIFTED = "drifted"


#: Verdicts on a candidate that changes nothing for the worse.
HARMLESS = frozenset((ReplayVerdict.SAME, ReplayVerdict.FAILED_BEFORE, ReplayVerdict.DRIFTED))


class AnswerDifference(Value):
    path: Annotated[str, about("In the answer, such as `result.total`; or `error`.")]
    before: Annotated[str | None, about("As JSON, shortened, secrets masked; null if it was not there.")]
    now: str | None


def _compared_part(row: LogRow) -> JsonObject:
    """Return the part of a response that is compared."""
    if row.status is not LogStatus.SUCCEEDED:
        return {"error": row.error}
    envelope = plugin_response(row) or {}
    lists = {name: envelope[name] for name in _COMPARED if envelope.get(name)}
    return {"result": envelope.get("result"), **lists}


def compare_responses(before: LogRow, now: LogRow, ignore: Sequence[Path]) -> tuple[ValueDifference, ...]:
    """Return the differences of two responses except ignored paths; only the error if just one failed."""
    if (before.status is LogStatus.SUCCEEDED) != (now.status is LogStatus.SUCCEEDED):
        old = MISSING if before.status is LogStatus.SUCCEEDED else before.error
        new = MISSING if now.status is LogStatus.SUCCEEDED else now.error
        return (ValueDifference(path=("error",), before=old, now=new),)
    return compare_values(_compared_part(before), _compared_part(now), ignore)


def judge_responses(before: LogRow, now: LogRow, differences: Sequence[ValueDifference]) -> ReplayVerdict:
    """Return the verdict on the later response. It is never `drifted`, which needs a third response."""
    was_ok, is_ok = (row.status is LogStatus.SUCCEEDED for row in (before, now))
    if was_ok != is_ok:
        return ReplayVerdict.FAILS_NOW if was_ok else ReplayVerdict.FAILED_BEFORE
    return ReplayVerdict.DIFFERENT if differences else ReplayVerdict.SAME


def describe_difference(difference: ValueDifference) -> AnswerDifference:
    return AnswerDifference(
        path=difference.name,
        before=quote_masked(difference.path, difference.before),
        now=quote_masked(difference.path, difference.now),
    )


def quote_masked(path: Path, value: JsonValue | Missing) -> str | None:
    """Return the value as JSON, masked if a key on the way to it looks secret."""
    if value is MISSING:
        return None
    for key in reversed(path):
        masked = redact({key: value})
        value = masked[key] if isinstance(masked, dict) else masked
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
