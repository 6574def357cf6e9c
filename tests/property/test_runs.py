"""Random pipelines through the real store, against a reading of what was written.

Whatever the pipeline, whatever its steps answer, in whatever order they end, however often they are tried
again and wherever the daemon dies: the steps that run are those that the text of the pipeline asks for,
each once for each line, and the run ends as its lines did.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, note, settings
from hypothesis import strategies as st

from builders.jobs import Clock, emitted, failed, ok, timed_out
from builders.pipeline_meaning import Behaviour, ExpectedRun, Interpreter, UndecidedError, canonical
from builders.pipelines import a_new_run, all_members, enqueue_run, payload_of, policy_of
from builders.stores import SQLITE, StoreFactory, claim_all, stored
from builders.written_pipelines import EVENT_TYPES, IN_MEMORY, written_pipelines
from ductile.core.jobs.model import TERMINAL, JobReason, JobStatus, LedgerKind, Outcome, Requeued
from ductile.core.policy import Policy
from ductile.store.model.jobs import Accepted, ClaimedJob, RetryResult, Settled
from ductile.store.port import Store

MOST_JOBS = 60
BAD = (JobStatus.FAILED, JobStatus.DEAD)
#: `steady` succeeds in the end or fails for good; `weak` fails until its attempts are over.
PLUGINS = {
    "steady": {"retry": {"max_attempts": 1000, "backoff_base": "1s", "backoff_max": "5s"}},
    "weak": {"retry": {"max_attempts": 2, "backoff_base": "1s", "backoff_max": "5s"}},
}

# ---------------------------------------------------------------------------------------------- what runs


def behave(plugin: str, path: str, payload: str) -> Behaviour:
    """The answer of a step: random, but the same for the same step and payload."""
    answer = mended(plugin, path, payload)
    if plugin == "weak":
        return Behaviour(stdout=None, fails=True)
    if _rng("fails", path, payload).random() < 0.12:
        return Behaviour(stdout=json.dumps({"status": "error", "error": answer.result}), fails=True)
    return answer


def mended(plugin: str, path: str, payload: str) -> Behaviour:
    """The answer once what made it fail is put right."""
    rng = _rng(plugin, path, payload)
    name = f"{path}#{rng.randrange(1 << 30):x}"
    count = rng.choice([0, 0, 1, 1, 1, 2, 3])
    events = tuple(
        (rng.choice(EVENT_TYPES), {"n": rng.randrange(8)} if rng.random() < 0.8 else {"result": "own"})
        for _ in range(count)
    )
    return Behaviour(stdout=json.dumps({"status": "ok", "result": name}), result=name, events=events)


def _rng(*parts: str) -> Random:
    return Random(hashlib.sha256("\0".join(parts).encode()).digest())


def outcome_of(claim: ClaimedJob, rng: Random, *, well: bool) -> Outcome:
    """The outcome of this execution, which may not be the last of the step."""
    job = claim.job
    given = (job.plugin, job.step_path or "", canonical(payload_of(claim)))
    answer = mended(*given) if well else behave(*given)
    if rng.random() < 0.1:
        return Requeued()
    if answer.stdout is None:
        return failed(stdout=None)
    if not well and rng.random() < 0.1:
        return failed(stdout=None) if rng.random() < 0.5 else timed_out()
    if answer.fails:
        return failed(permanent=True, stdout=answer.stdout)
    events = [emitted(kind, payload) for kind, payload in answer.events]
    return ok(*events, result=answer.result, stdout=answer.stdout)


@dataclass(slots=True)
class Drive:
    """One run from its start to its end, with every random mishap."""

    factory: StoreFactory
    policy: Policy
    rng: Random
    crashes: float
    #: No step fails any more, for good or for a while.
    well: bool = False
    #: How often the run, or a step of it, is cancelled.
    meddling: float = 0
    #: What each job was given, by its id.
    given: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    async def run(self, payload: dict[str, Any]) -> tuple[Store, str]:
        store = await self.factory.open()
        run = a_new_run(self.policy, payload)
        answer = await enqueue_run(store, self.policy, run)
        assert isinstance(answer, Accepted)
        return await self.go_on(store, run.job.id), run.job.id

    async def go_on(self, store: Store, run_id: str) -> Store:
        """To the end of the run."""
        for _ in range(MOST_JOBS * 40):
            store = await self._perhaps_die(store)
            if (await stored(store, run_id)).status in TERMINAL:
                return store
            await self._perhaps_meddle(store, run_id)
            claims = await claim_all(store, limit=self.rng.randint(1, 5))
            if not claims:
                self.factory.clock.advance(minutes=2)
                released = await store.release_due()
                ended = (await stored(store, run_id)).status in TERMINAL
                assert released.count or ended, "nothing is live any more, and the run has not ended"
            store = await self._settle(store, claims)
        raise AssertionError("the run does not end")

    async def _perhaps_die(self, store: Store) -> Store:
        return await self._die() if self.rng.random() < self.crashes else store

    async def _die(self) -> Store:
        self.factory.clock.advance(seconds=1)  # the generator of a test starts again, and ids must differ
        store = await self.factory.reopen()
        while (await store.recover(self.policy)).more:
            pass
        return store

    async def _perhaps_meddle(self, store: Store, run_id: str) -> None:
        if self.rng.random() >= self.meddling:
            return
        if self.rng.random() < 0.5:
            while (await store.cancel(run_id, self.policy)).more:
                pass
        bad = [job for job in await all_members(store, run_id) if job.status in BAD]
        if bad:
            await store.retry(self.rng.choice(bad).id, self.policy)

    async def _settle(self, store: Store, claims: list[ClaimedJob]) -> Store:
        self.rng.shuffle(claims)
        for claim in claims:
            self._note(claim)
        if self.rng.random() < 0.5:  # two branches that end at the same instant meet in the store
            answers = await asyncio.gather(*(self._end(store, claim) for claim in claims))
            assert all(isinstance(answer, Settled) for answer in answers)
            return store
        for claim in claims:
            if self.rng.random() < self.crashes:
                return await self._die()  # the rest of them still run, and are found so
            assert isinstance(await self._end(store, claim), Settled)
        return store

    async def _end(self, store: Store, claim: ClaimedJob) -> object:
        outcome = outcome_of(claim, self.rng, well=self.well)
        return await store.settle(claim.job, outcome, self.policy)

    def _note(self, claim: ClaimedJob) -> None:
        given = (claim.job.step_path or "", canonical(payload_of(claim)), canonical(claim.baggage))
        assert self.given.setdefault(claim.job.id, given) == given, "a retry was given something else"


async def check(
    pipelines: list[dict[str, Any]], payload: dict[str, Any], expected: ExpectedRun, seed: int
) -> None:
    rng = Random(seed)
    policy = policy_of(*pipelines, plugins=PLUGINS)
    # A crash is simulated by opening the store again, so nothing has to reach a disk.
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        factory = StoreFactory(kind=SQLITE, directory=Path(directory), clock=Clock())
        drive = Drive(factory, policy, rng, crashes=rng.choice([0, 0.05, 0.2]))
        try:
            store, run_id = await drive.run(payload)
            await compare(store, run_id, drive, expected)
            await factory.check_invariants()
        finally:
            await factory.close()


async def compare(store: Store, run_id: str, drive: Drive, expected: ExpectedRun) -> None:
    record = await store.get_run(run_id)
    assert record is not None
    assert Counter(drive.given.values()) == expected.executions
    made = [job for job in record.steps if job.id in drive.given]
    unmade = [job for job in record.steps if job.id not in drive.given]
    assert len(made) == expected.executions.total()
    assert Counter(job.step_path for job in unmade) == expected.unmade
    assert {job.reason for job in unmade} <= {JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE}
    assert all(job.status in TERMINAL for job in record.steps)
    notes = [note.data for note in record.ledger_entries if note.kind is LedgerKind.CONDITION_FALSE]
    assert Counter(note["step"] for note in notes if "error" not in note) == expected.bypassed
    assert Counter(note["step"] for note in notes if "error" in note) == expected.unclaimed
    assert record.job.reason == expected.reason
    *_, last = await store.list_executions(run_id)
    assert last.result == expected.result


async def check_again(
    pipelines: list[dict[str, Any]], payload: dict[str, Any], expected: ExpectedRun, seed: int
) -> None:
    """Let a run fail and be cancelled, and retry it until everything in it is well."""
    rng = Random(seed)
    policy = policy_of(*pipelines, plugins=PLUGINS)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        factory = StoreFactory(kind=SQLITE, directory=Path(directory), clock=Clock())
        drive = Drive(factory, policy, rng, crashes=rng.choice([0, 0.1]), meddling=rng.choice([0, 0.1, 0.3]))
        try:
            store, run_id = await drive.run(payload)
            for _ in range(2):
                if await store.retry(run_id, policy) is RetryResult.QUEUED:
                    store = await drive.go_on(store, run_id)
            drive.well, drive.meddling = True, 0
            # More than once, if need be: crashes alone can use up the attempts of a step.
            while await store.retry(run_id, policy) is RetryResult.QUEUED:
                store = await drive.go_on(store, run_id)
            await compare(store, run_id, drive, expected)
            await factory.check_invariants()
        finally:
            await factory.close()


@st.composite
def cases(
    draw: st.DrawFn, behaviour: Callable[[str, str, str], Behaviour] = behave, *, joins_fail: bool = True
) -> tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun]:
    """Pipelines, what a run begins with, and what has to come of it."""
    pipelines = draw(written_pipelines())
    if not joins_fail:
        pipelines = json.loads(json.dumps(pipelines).replace('"always"', '"succeeded"'))
    payload = draw(st.sampled_from([{"n": 1}, {"n": 5}, {}]))
    by_name = {pipeline["name"]: pipeline for pipeline in pipelines}
    try:
        expected = Interpreter(by_name, behaviour, most_jobs=MOST_JOBS).run("flow", "go", payload)
    except UndecidedError:
        expected = None
    assume(expected is not None)
    assert expected is not None
    return pipelines, payload, expected


def note_what_it_was(expected: ExpectedRun) -> None:
    event(f"the run ends {expected.reason}")
    for name, there in (
        ("joins", expected.joins),
        ("bypasses", expected.bypassed),
        ("unmade steps", expected.unmade),
    ):
        if there:
            event(name)
    jobs = expected.jobs
    event(f"jobs: {'0' if not jobs else '1-5' if jobs < 6 else '6-20' if jobs < 21 else 'many'}")


FORM = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@settings(FORM, max_examples=120)
@given(case=cases(), seed=st.integers(0, 1 << 32))
def test_a_run_does_what_its_pipeline_says(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """Each step once for each line, joins once, and the right end, crash or not."""
    pipelines, payload, expected = case
    note(json.dumps(pipelines))
    note_what_it_was(expected)
    asyncio.run(check(pipelines, payload, expected, seed))


@settings(FORM, max_examples=80)
@given(case=cases(mended, joins_fail=False), seed=st.integers(0, 1 << 32))
def test_a_run_that_is_retried_comes_to_what_it_would_have_come_to(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """Whatever failed, and whenever it was cancelled, nothing of it is lost or done twice.

    Splits that go on without a branch that failed are left out: the steps after them have seen the failure.
    """
    pipelines, payload, expected = case
    note(json.dumps(pipelines))
    note_what_it_was(expected)
    asyncio.run(check_again(pipelines, payload, expected, seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(FORM, max_examples=5000)
@given(case=cases(), seed=st.integers(0, 1 << 32))
def test_thousands_of_runs_do_what_their_pipelines_say(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """The nightly form."""
    pipelines, payload, expected = case
    asyncio.run(check(pipelines, payload, expected, seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(FORM, max_examples=3000)
@given(case=cases(mended, joins_fail=False), seed=st.integers(0, 1 << 32))
def test_thousands_of_retried_runs_come_to_what_they_would_have_come_to(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """The nightly form."""
    pipelines, payload, expected = case
    asyncio.run(check_again(pipelines, payload, expected, seed))
