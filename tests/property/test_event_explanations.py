"""The explanation of an event agrees with the effect of publishing it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from builders.jobs import START, a_job, an_event, some_rng
from builders.pipelines import claiming, policy_of, uses
from builders.plugins import a_plugin
from ductile.core.events.explain import StartOutcome, TargetExplanation, TargetKind, explain_event
from ductile.core.events.model import EventRoute, Hook, IndexedEvent
from ductile.core.events.routing import EventProducer, JobEnding, fan_out, fire_hooks
from ductile.core.jobs.model import JobStatus, LedgerKind, SubmittedBy
from ductile.core.policy import Policy
from ductile.offline import open_offline
from ductile.operations.runs.explain_event import ExplainEvent
from ductile.operations.runs.explain_event import explain_event as explain_operation
from ductile.operations.runs.publish import PlannedEvent, Published, PublishEvent, publish_event
from ductile.struct import replace

TYPES = ("a", "b", *Hook)
SOURCES = ("p", "q", "api", "cli")
CONDITIONS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"path": "payload.n", "op": "gte", "value": 2},
    {"path": "context.kept", "op": "eq", "value": 1},
    {"any": [{"path": "event.source", "op": "eq", "value": "p"}, {"path": "run.payload.n", "op": "exists"}]},
    {"path": "payload.text", "op": "regex", "value": "(a+)+b"},
)
payloads = st.fixed_dictionaries(
    {}, optional={"n": st.integers(0, 3), "text": st.sampled_from(["ab", "a" * 40])}
)


@st.composite
def pipelines(draw: st.DrawFn) -> list[dict[str, Any]]:
    drawn_pipelines = []
    for number in range(draw(st.integers(0, 4))):
        pipeline: dict[str, Any] = {"name": f"flow{number}", "steps": [uses()]}
        if draw(st.booleans()):
            pipeline["on"] = draw(st.sampled_from(TYPES))
            sources: tuple[str, ...] = SOURCES
        else:
            pipeline["on-hook"] = draw(st.sampled_from(Hook)).value
            sources = ("p", "q", "flow0") if number else ("p", "q")
        if draw(st.booleans()):
            pipeline["from_plugin"] = draw(st.sampled_from(sources))
        if (condition := draw(st.sampled_from(CONDITIONS))) is not None:
            pipeline["if"] = condition
        pipeline["notify_on_complete"] = draw(st.booleans())
        drawn_pipelines.append(pipeline)
    return drawn_pipelines


routes = st.lists(
    st.fixed_dictionaries(
        {
            "from": st.sampled_from(SOURCES),
            "event_type": st.sampled_from(TYPES),
            "to": st.sampled_from(["q", "r.poll"]),
        }
    ),
    max_size=4,
    unique_by=lambda route: (route["from"], route["event_type"], route["to"]),
)
CLAIM = {"name": "claims", "steps": [*claiming("kept")["steps"], uses(None, "q")]}


def compile_policy(
    pipeline_list: list[dict[str, Any]], route_list: list[dict[str, Any]], notify: bool
) -> Policy:
    plugins = {"p": {"notify_on_complete": notify}}
    # Every pipeline may inherit `kept`. Sources and hooks that cannot carry it are left out.
    for pipeline in pipeline_list:
        if "context.kept" in str(pipeline.get("if")) and (
            "on-hook" in pipeline or pipeline.get("from_plugin") in ("api", "cli")
        ):
            del pipeline["if"]
    return policy_of(*pipeline_list, CLAIM, plugins=plugins, routes=route_list, service={"max_hops": 3})


def route_values(route_list: list[dict[str, Any]]) -> list[EventRoute]:
    values = []
    for route in route_list:
        plugin, _, command = route["to"].partition(".")
        values.append(
            EventRoute(
                source=route["from"],
                event_type=route["event_type"],
                plugin=plugin,
                command=command or "handle",
            )
        )
    return values


def started_targets(explained: tuple[TargetExplanation, ...], *kinds: TargetKind) -> list[str]:
    return [
        explanation.target
        for explanation in explained
        if explanation.kind in kinds and explanation.outcome is StartOutcome.STARTS
    ]


@settings(max_examples=150, deadline=None)
@given(
    pipeline_list=pipelines(),
    route_list=routes,
    kind=st.sampled_from(TYPES),
    source=st.sampled_from(SOURCES),
    payload=payloads,
    baggage=st.sampled_from([{}, {"kept": 1}, {"kept": 2}]),
    hops=st.sampled_from([0, 1, 3, 4]),
    notify=st.booleans(),
)
def test_the_explanation_of_an_event_is_what_it_starts(
    pipeline_list: list[dict[str, Any]],
    route_list: list[dict[str, Any]],
    kind: str,
    source: str,
    payload: dict[str, Any],
    baggage: dict[str, Any],
    hops: int,
    notify: bool,
) -> None:
    """The event goes through routes, pipelines and hooks, at and beyond the limit of hops."""
    policy = compile_policy(pipeline_list, route_list, notify)
    sent_event = an_event(kind, source=source, payload=payload)
    producer = EventProducer(submitted_by=SubmittedBy.ROUTE, baggage=baggage, hops=hops)
    explained = explain_event(producer, sent_event, route_values(route_list), policy)
    assert len(explained) == len(route_list) + len(pipeline_list), (
        "each route, pipeline and hook is explained once"
    )
    fanout = fan_out(producer, [IndexedEvent(event=sent_event)], policy, START, some_rng())
    fanout_targets = [f"{job.plugin}.{job.command}" for job in fanout.jobs]
    fanout_targets += [f"pipeline:{run.job.command}" for run in fanout.runs]
    assert started_targets(explained, TargetKind.ROUTE, TargetKind.PIPELINE) == fanout_targets
    dropped = [entry for entry in fanout.ledger if entry.kind is LedgerKind.EVENT_DROPPED]
    limited = [
        explanation.target
        for explanation in explained
        if explanation.kind is not TargetKind.HOOK and explanation.outcome is StartOutcome.HOP_LIMIT
    ]
    assert limited == [target for entry in dropped for target in entry.data["targets"]]  # type: ignore[union-attr]
    for explanation in explained:
        event(explanation.outcome)
        assert explanation.reason
        if explanation.outcome in (
            StartOutcome.CONDITION,
            StartOutcome.OTHER_SOURCE,
            StartOutcome.OTHER_TYPE,
        ):
            assert explanation.deciding


ENDINGS = {
    Hook.COMPLETED: (JobStatus.SUCCEEDED, False),
    Hook.FAILED: (JobStatus.FAILED, False),
    Hook.TIMED_OUT: (JobStatus.DEAD, True),
}


@settings(max_examples=80, deadline=None)
@given(
    pipeline_list=pipelines(),
    hook=st.sampled_from(Hook),
    source=st.sampled_from(["p", "q", "flow0"]),
    hops=st.sampled_from([0, 2, 3]),
    notify=st.booleans(),
)
def test_the_explanation_of_a_hook_is_what_the_end_of_a_job_starts(
    pipeline_list: list[dict[str, Any]], hook: Hook, source: str, hops: int, notify: bool
) -> None:
    policy = compile_policy(pipeline_list, [], notify)
    status, timed_out = ENDINGS[hook]
    ending = JobEnding(status=status, timed_out=timed_out, error=None, attempt=1, duration=START - START)
    plugin, command = ("pipeline", source) if source == "flow0" else (source, "handle")
    job = a_job(plugin, command, status=JobStatus.RUNNING, hops=hops, submitted_by=SubmittedBy.API)
    fanout = fire_hooks(job, ending, {}, policy, START, some_rng())
    payload = fanout.runs[0].event.payload if fanout.runs else {}
    producer = EventProducer(submitted_by=SubmittedBy.HOOK, hops=hops + 1)
    if fanout.ledger and not fanout.runs:
        payload = {}  # no condition here depends on the payload of a hook
    explained = explain_event(producer, an_event(hook, source=source, payload=payload), [], policy)
    assert started_targets(explained, TargetKind.HOOK) == [
        f"pipeline:{run.job.command}" for run in fanout.runs
    ]


CONFIG = """\
plugins: {echo: {}, other: {enabled: false}}
routes:
  - {from: cli, event_type: a, to: echo}
  - {from: cli, event_type: a, to: other.poll}
  - {from: cli, event_type: b, to: echo.poll}
pipelines:
  - {name: big, on: a, if: {path: payload.n, op: gte, value: 2}, steps: [{uses: echo}]}
  - {name: any, on: b, steps: [{uses: echo}]}
  - {name: theirs, on: a, from_plugin: echo, steps: [{uses: echo}]}
"""
requests = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), payloads, st.sampled_from([None, "k1", " k1 ", "k2"])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(publications=requests)
def test_publishing_does_what_was_explained(
    publications: list[tuple[str, dict[str, Any], str | None]],
) -> None:
    """A real store is used, with dedupe keys; neither an explanation nor a dry run changes it."""
    asyncio.run(_publish_all(publications))


async def _publish_all(publications: list[tuple[str, dict[str, Any], str | None]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name in ("echo", "other"):
            a_plugin(Path(directory) / "plugins", name)
        (Path(directory) / "config.yaml").write_text(CONFIG)
        async with open_offline(directory, {}) as context:
            for kind, payload, key in publications:
                before = await context.store.list_ledger(after=0, limit=1000)
                explained = await explain_operation(
                    context, ExplainEvent(type=kind, payload=payload, dedupe_key=key)
                )
                request = PublishEvent(type=kind, payload=payload, dedupe_key=key)
                planned = await publish_event(context, replace(request, dry_run=True))
                assert await context.store.list_ledger(after=0, limit=1000) == before
                assert isinstance(planned, PlannedEvent)
                assert (planned.would_start, planned.targets) == (explained.would_start, explained.targets)
                published = await publish_event(context, request)
                assert isinstance(published, Published)
                assert explained.would_start == [entry.target for entry in published.started]
                assert {
                    entry.target: entry.duplicate_of for entry in explained.targets if entry.duplicate_of
                } == {entry.target: entry.job_id for entry in published.deduplicated}
                refused = [
                    entry.target for entry in explained.targets if entry.outcome is StartOutcome.CONDITION
                ]
                assert refused == [f"pipeline:{entry.target}" for entry in published.dropped]
