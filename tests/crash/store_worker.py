"""A process that uses a store continuously and reports on stdout what the store has acknowledged.

`test_store_survives_sigkill` starts and kills it. A line is printed only after the verb has returned, so the
store must have the content of every line.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from ductile.core.events.model import EventRoute, EventRouteTable
from ductile.core.ids import make_id
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.jobs.model import (
    Completed,
    Evidence,
    Failed,
    JobReason,
    LedgerEntry,
    LedgerKind,
    NewJob,
    Outcome,
    PluginEvent,
    PluginResponse,
    StateSubscription,
    SubmittedBy,
    TimedOut,
)
from ductile.core.policy import FactRule, PluginPolicy, Policy
from ductile.store.model.jobs import Accepted, Settled, Submission
from ductile.store.port import Store
from ductile.store.sqlite.store import open_sqlite_store

CONFIGURED = StateSubscription(url="http://configured.invalid/")
POLICY = Policy(
    plugins={
        "source": PluginPolicy(
            retry=RetryPolicy(max_attempts=2, backoff_base=timedelta(0)), state_webhook=CONFIGURED
        ),
        "sink": PluginPolicy(state_webhook=CONFIGURED),
        "facts": PluginPolicy(facts=(FactRule(command="handle", fact_type="facts.seen"),)),
    },
    routes=EventRouteTable.of(
        [
            EventRoute(source="source", event_type="found", plugin="sink"),
            EventRoute(source="source", event_type="found", plugin="facts"),
        ]
    ),
)


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def submit(store: Store, rng: Random) -> None:
    latest: str | None = None
    while True:
        job = NewJob(
            id=make_id(datetime.now(UTC), rng),
            plugin="source",
            command="poll",
            submitted_by=SubmittedBy.API,
            max_attempts=2,
            payload={"n": rng.randrange(1 << 60)},
            dedupe_key=rng.choice([None, None, f"key:{rng.randrange(5)}"]),
            callback=rng.choice([None, StateSubscription(url="http://receiver.invalid/")]),
            configured_callback=POLICY.state_webhook("source", "poll", None),
            rerun_of=rng.choice([None, latest]),
        )
        rerun = LedgerEntry(
            kind=LedgerKind.JOB_RERUN, job_id=job.rerun_of, run_id=None, data={"rerun_job_id": job.id}
        )
        ledger = (rerun,) if job.rerun_of is not None else ()
        submission = Submission(jobs=(job,), ledger=ledger, dedupe_window=timedelta(0))
        (result,) = await store.enqueue(submission)
        if isinstance(result, Accepted):
            latest = result.job_id
            report("accepted", result.job_id)


async def work(store: Store, rng: Random) -> None:
    while True:
        await store.release_due()
        claims = await store.claim(
            owner=str(os.getpid()), caps=Caps(workers=8), limit=2, lease=timedelta(minutes=1)
        )
        for claim in claims:
            report("claimed", claim.job.id, claim.job.execution)
            settled = await store.settle(claim.job, an_outcome(rng), POLICY)
            assert isinstance(settled, Settled)
            report("settled", claim.job.id, claim.job.execution, settled.settlement.status)
            for child in settled.started:
                report("accepted", child.job_id)


def an_outcome(rng: Random) -> Outcome:
    evidence = Evidence(stdout="{}", stderr="x" * rng.randrange(2000), exit_code=0)
    event = PluginEvent(type="found", payload={"big": "y" * rng.randrange(3000)}, dedupe_key=None)
    ok = PluginResponse(ok=True, result="fine", events=(event, event), state_updates={"at": rng.random()})
    match rng.randrange(4):
        case 0:
            return Failed(reason=JobReason.PLUGIN_ERROR, error="no", evidence=evidence)
        case 1:
            return TimedOut(error="late", evidence=evidence)
        case _:
            return Completed(response=ok, evidence=evidence)


async def main(path: Path, seed: int) -> None:
    rng = Random(seed)
    store = open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=rng)
    while (recovery := await store.recover(POLICY)).jobs:
        for job in recovery.jobs:
            report("recovered", job.id)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(submit(store, rng))
            tasks.create_task(work(store, rng))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
