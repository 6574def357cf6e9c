"""The jobs and runs that an event starts."""

from __future__ import annotations

from typing import Any

import pytest

from builders.jobs import START, an_event, some_rng
from builders.pipelines import claiming, policy_of, uses
from ductile.core.events.model import IndexedEvent
from ductile.core.events.routing import EventProducer, Fanout, fan_out
from ductile.core.jobs.model import LedgerKind, Origin, SubmittedBy
from ductile.core.policy import Policy
from ductile.struct import replace

POLICY = policy_of(
    {"name": "first", "on": "found", "steps": [uses()]},
    {"name": "second", "on": "found", "from_plugin": "q", "steps": [uses()]},
    {
        "name": "choosy",
        "on": "found",
        "if": {"path": "context.kept", "op": "eq", "value": 1},
        "steps": [uses()],
    },
    claiming("kept"),
    routes=[
        {"from": "p", "event_type": "found", "to": "sink"},
        {"from": "p", "event_type": "found", "to": "r.poll"},
        {"from": "api", "event_type": "found", "to": "sink"},
    ],
    service={"max_hops": 3},
)
SENDER = EventProducer(
    submitted_by=SubmittedBy.ROUTE,
    job_id="producer",
    execution=2,
    run_id="run",
    context_id="context",
    baggage={"kept": 1},
    hops=1,
    trace_id="trace",
)


def fan_out_event(
    *, sender: EventProducer = SENDER, policy: Policy = POLICY, index: int = 0, **event: Any
) -> Fanout:
    outgoing = IndexedEvent(event=an_event("found", **({"source": "p"} | event)), index=index)
    return fan_out(sender, [outgoing], policy, START, some_rng())


def test_every_route_and_pipeline_that_matches_fires_in_the_order_of_the_configuration() -> None:
    fanout = fan_out_event()
    assert [(job.plugin, job.command) for job in fanout.jobs] == [("sink", "handle"), ("r", "poll")]
    assert [run.job.command for run in fanout.runs] == ["first", "choosy"]
    assert fanout.ledger == ()
    assert [run.job.command for run in fan_out_event(source="q").runs] == ["first", "second", "choosy"]


def test_a_started_job_knows_its_origin() -> None:
    fanout = fan_out_event(dedupe_key="k", index=7)
    for job, target in ((fanout.jobs[0], "sink.handle"), (fanout.runs[0].job, "pipeline:first")):
        assert job.origin == Origin(job_id="producer", execution=2, event_index=7, target=target)
        assert (job.parent_job_id, job.hops, job.trace_id) == ("producer", 1, "trace")
        assert (job.event_context_id, job.dedupe_key, job.run_id) == ("context", "key:k", None)
        assert job.submitted_detail == "p:found"


def test_an_event_from_outside_has_no_producer() -> None:
    sender = EventProducer(submitted_by=SubmittedBy.API, detail="token")
    fanout = fan_out_event(sender=sender, source="api")
    assert [(job.origin, job.parent_job_id) for job in fanout.jobs] == [(None, None)]
    assert {job.submitted_detail for job in fanout.jobs} == {"token"}


def test_a_pipeline_whose_if_is_false_is_recorded_and_not_started() -> None:
    fanout = fan_out_event(sender=replace(SENDER, baggage={}))
    assert [run.job.command for run in fanout.runs] == ["first"]
    (entry,) = fanout.ledger
    assert (entry.kind, entry.job_id, entry.run_id) == (LedgerKind.CONDITION_FALSE, "producer", "run")
    assert entry.data["pipeline"] == "choosy"


@pytest.mark.parametrize(("hops", "dropped"), [(3, False), (4, True)])
def test_an_event_that_went_too_far_is_dropped_and_recorded(hops: int, dropped: bool) -> None:
    """An event may have `max_hops` hops."""
    fanout = fan_out_event(sender=replace(SENDER, hops=hops))
    assert (fanout.jobs == ()) == (fanout.runs == ()) == dropped
    assert [entry.kind for entry in fanout.ledger] == ([LedgerKind.EVENT_DROPPED] if dropped else [])
    if dropped:
        targets = ["sink.handle", "r.poll", "pipeline:first", "pipeline:choosy"]
        assert fanout.ledger[0].data["targets"] == targets


def test_an_event_without_a_target_makes_no_entry() -> None:
    assert (
        fan_out(replace(SENDER, hops=9), [IndexedEvent(event=an_event("lost"))], POLICY, START, some_rng())
        == Fanout()
    )
