"""Explain which targets an event would start, and which not, with the comparison that decided. Pure.

Publishing uses the same tables and functions (`ductile.core.events.routing`), so an explanation cannot
disagree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ductile.core.events.model import EventRoute, Hook, NewEvent, Pipeline
from ductile.core.events.routing import EventProducer, can_fire_hooks, decide_start, exceeds_hops
from ductile.core.expressions.conditions import ComparisonResult, explain_condition, quote_redacted
from ductile.core.expressions.operators import Operator
from ductile.core.policy import Policy
from ductile.struct import Value


class TargetKind(StrEnum):
    ROUTE = "route"
    PIPELINE = "pipeline"
    HOOK = "hook"


class StartOutcome(StrEnum):
    """The result for one target: it starts, or the reason why it does not."""

    STARTS = "starts"
    DUPLICATE = "duplicate"
    CONDITION = "condition"
    CONDITION_ERROR = "condition_error"
    HOP_LIMIT = "hop_limit"
    NOT_NOTIFIED = "not_notified"
    OTHER_SOURCE = "other_source"
    OTHER_TYPE = "other_type"


class TargetExplanation(Value):
    kind: TargetKind
    #: `PLUGIN.COMMAND` or `pipeline:NAME`.
    target: str
    outcome: StartOutcome
    reason: str
    #: The comparisons that decided, of the event's type and source and of the pipeline's `if`.
    deciding: tuple[ComparisonResult, ...] = ()


def explain_event(
    producer: EventProducer, event: NewEvent, routes: Sequence[EventRoute], policy: Policy
) -> tuple[TargetExplanation, ...]:
    """Explain every route, pipeline and hook for one event, in the order of the configuration.

    A hook is explained as if a job of the event's source had ended with this hook and the event's payload.
    """
    explanations = []
    matching_routes = policy.routes.matching(event.source, event.type)
    for route in routes:
        comparisons = (
            _compare("event.type", route.event_type, event.type, policy),
            _compare("event.source", route.source, event.source, policy),
        )
        if route in matching_routes:
            outcome, reason = StartOutcome.STARTS, f"the route from {route.source} takes {route.event_type}"
            if exceeds_hops(producer, policy):
                outcome, reason = StartOutcome.HOP_LIMIT, _hop_reason(producer)
            deciding: tuple[ComparisonResult, ...] = comparisons
        else:
            outcome, reason, deciding = _mismatch(comparisons, route.event_type, route.source)
        explanations.append(
            TargetExplanation(
                kind=TargetKind.ROUTE, target=route.target, outcome=outcome, reason=reason, deciding=deciding
            )
        )
    event_pipelines = policy.pipelines.started_by(event.type, event.source)
    hook = next((hook for hook in Hook if hook == event.type), None)
    hook_pipelines = () if hook is None else policy.pipelines.started_by_hook(hook, event.source)
    for pipeline in policy.pipelines.by_name.values():
        if pipeline.on is not None or pipeline.on_hook is not None:
            matches = pipeline in (event_pipelines if pipeline.on is not None else hook_pipelines)
            explanations.append(_explain_pipeline(producer, event, pipeline, policy, matches=matches))
    return tuple(explanations)


def _explain_pipeline(
    producer: EventProducer, event: NewEvent, pipeline: Pipeline, policy: Policy, *, matches: bool
) -> TargetExplanation:
    kind = TargetKind.PIPELINE if pipeline.on is not None else TargetKind.HOOK
    trigger = pipeline.on or str(pipeline.on_hook)
    comparisons = [_compare("event.type", trigger, event.type, policy)]
    if pipeline.from_plugin is not None:
        comparisons.append(_compare("event.source", pipeline.from_plugin, event.source, policy))
    deciding = tuple(comparisons)
    if not matches:
        outcome, reason, deciding = _mismatch(deciding, trigger, pipeline.from_plugin)
    elif kind is TargetKind.HOOK and not can_fire_hooks(event.source, policy):
        outcome = StartOutcome.NOT_NOTIFIED
        reason = (
            f"a hook starts when a job ends, and only if its plugin or pipeline has notify_on_complete; "
            f"{event.source} has not"
        )
        deciding = (_compare("notify_on_complete", True, False, policy),)
    elif exceeds_hops(producer, policy):
        outcome, reason = StartOutcome.HOP_LIMIT, _hop_reason(producer)
    else:
        decision = decide_start(pipeline, event, producer, policy)
        outcome, reason = StartOutcome.STARTS, f"it starts on {trigger}"
        if decision.result is not None:
            deciding = decision.result.deciding
            reason = explain_condition(decision.result)
        if not decision.starts:
            outcome = StartOutcome.CONDITION
        if decision.error is not None:
            outcome, reason = StartOutcome.CONDITION_ERROR, decision.error
    target = f"pipeline:{pipeline.name}"
    return TargetExplanation(kind=kind, target=target, outcome=outcome, reason=reason, deciding=deciding)


def _mismatch(
    comparisons: tuple[ComparisonResult, ...], accepted_type: str, accepted_source: str | None
) -> tuple[StartOutcome, str, tuple[ComparisonResult, ...]]:
    """Return the outcome of a target that another type or source starts, by the first false comparison."""
    first = next(comparison for comparison in comparisons if not comparison.is_true)
    if first.path == "event.type":
        return StartOutcome.OTHER_TYPE, f"it takes {accepted_type}", (first,)
    return StartOutcome.OTHER_SOURCE, f"it takes {accepted_type} of {accepted_source} only", (first,)


def _compare(path: str, expected: str | bool, actual: str | bool, policy: Policy) -> ComparisonResult:
    return ComparisonResult(
        path=path,
        op=Operator.EQ,
        expected=quote_redacted(expected, policy.is_secret),
        found=quote_redacted(actual, policy.is_secret),
        is_true=expected == actual,
    )


def _hop_reason(producer: EventProducer) -> str:
    return f"the event has crossed {producer.hops - 1} hops, the limit (service.max_hops)"
