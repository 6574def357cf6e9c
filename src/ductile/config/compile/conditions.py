"""An `if` that was found good, as the value that the core judges. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ductile.core.expressions.conditions import AllOf, AnyOf, Comparison, Condition, Not

if TYPE_CHECKING:
    from ductile.config.schema import pipelines


def compile_condition(written: pipelines.ConditionSettings) -> Condition:
    match written:
        case _ if written.all_of is not None:
            return AllOf(tuple(compile_condition(part) for part in written.all_of))
        case _ if written.any_of is not None:
            return AnyOf(tuple(compile_condition(part) for part in written.any_of))
        case _ if written.negated is not None:
            return Not(compile_condition(written.negated))
        case _:
            return _comparison(written)


def _comparison(written: pipelines.ConditionSettings) -> Comparison:
    if written.path is None or written.op is None:
        raise ValueError("a condition is checked before it is compiled")
    value = True if written.value is msgspec.UNSET else written.value
    return Comparison(path=written.path, op=written.op, value=value)
