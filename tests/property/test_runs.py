"""Random pipelines in the real store, compared with an interpreter of the pipeline text.

Steps respond, fail and end in random order, and the daemon dies at random places. The steps that the
pipeline defines run once for each token, and the run ends as its tokens did.
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
    """Return the response of a step: random, but the same for the same step and payload."""
    behaviour = behave_repaired(plugin, path, payload)
    if plugin == "weak":
        return Behaviour(stdout=None, fails=True)
    if _rng("fails", path, payload).random() < 0.12:
        return Behaviour(stdout=json.dumps({"status": "error", "error": behaviour.result}), fails=True)
    return behaviour


def behave_repaired(plugin: str, path: str, payload: str) -> Behaviour:
    """Return the response of a step after the cause of its failure is corrected."""
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


def outcome_of(claim: ClaimedJob, rng: Random, *, repaired: bool) -> Outcome:
    """Return the outcome of this execution, which may not be the last of the step."""
    job = claim.job
    step_input = (job.plugin, job.step_path or "", canonical(payload_of(claim)))
    behaviour = behave_repaired(*step_input) if repaired else behave(*step_input)
    if rng.random() < 0.1:
        return Requeued()
    if behaviour.stdout is None:
        return failed(stdout=None)
    if not repaired and rng.random() < 0.1:
        return failed(stdout=None) if rng.random() < 0.5 else timed_out()
    if behaviour.fails:
        return failed(permanent=True, stdout=behaviour.stdout)
    events = [emitted(kind, payload) for kind, payload in behaviour.events]
    return ok(*events, result=behaviour.result, stdout=behaviour.stdout)


@dataclass(slots=True)
class RunDriver:
    """A driver of one run from its start to its end, with crashes, cancels and retries."""

    factory: StoreFactory
    policy: Policy
    rng: Random
    crashes: float
    #: Whether no step fails any more.
    repaired: bool = False
    #: The probability of a cancel or a retry before each claim.
    interference: float = 0
    #: The input of each job, by its id.
    inputs: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    async def run(self, payload: dict[str, Any]) -> tuple[Store, str]:
        store = await self.factory.open()
        run = a_new_run(self.policy, payload)
        result = await enqueue_run(store, self.policy, run)
        assert isinstance(result, Accepted)
        return await self.continue_run(store, run.job.id), run.job.id

    async def continue_run(self, store: Store, run_id: str) -> Store:
        """Continue the run to its end."""
        for _ in range(MOST_JOBS * 40):
            store = await self._maybe_crash(store)
            if (await stored(store, run_id)).status in TERMINAL:
                return store
            await self._maybe_interfere(store, run_id)
            claims = await claim_all(store, limit=self.rng.randint(1, 5))
            if not claims:
                self.factory.clock.advance(minutes=2)
                released = await store.release_due()
                ended = (await stored(store, run_id)).status in TERMINAL
                assert released.count or ended, "nothing is live any more, and the run has not ended"
            store = await self._settle(store, claims)
        raise AssertionError("the run does not end")

    async def _maybe_crash(self, store: Store) -> Store:
        return await self._crash() if self.rng.random() < self.crashes else store

    async def _crash(self) -> Store:
        self.factory.clock.advance(seconds=1)  # the random generator starts again, and ids must differ
        store = await self.factory.reopen()
        while (await store.recover(self.policy)).more:
            pass
        return store

    async def _maybe_interfere(self, store: Store, run_id: str) -> None:
        if self.rng.random() >= self.interference:
            return
        if self.rng.random() < 0.5:
            while (await store.cancel(run_id, self.policy)).more:
                pass
        failed_jobs = [job for job in await all_members(store, run_id) if job.status in BAD]
        if failed_jobs:
            await store.retry(self.rng.choice(failed_jobs).id, self.policy)

    async def _settle(self, store: Store, claims: list[ClaimedJob]) -> Store:
        self.rng.shuffle(claims)
        for claim in claims:
            self._record_input(claim)
        if self.rng.random() < 0.5:  # two branches that end at the same instant meet in the store
            results = await asyncio.gather(*(self._end(store, claim) for claim in claims))
            assert all(isinstance(result, Settled) for result in results)
            return store
        for claim in claims:
            if self.rng.random() < self.crashes:
                return await self._crash()  # the other jobs still run, and recovery finds them
            assert isinstance(await self._end(store, claim), Settled)
        return store

    async def _end(self, store: Store, claim: ClaimedJob) -> object:
        outcome = outcome_of(claim, self.rng, repaired=self.repaired)
        return await store.settle(claim.job, outcome, self.policy)

    def _record_input(self, claim: ClaimedJob) -> None:
        step_input = (claim.job.step_path or "", canonical(payload_of(claim)), canonical(claim.baggage))
        assert self.inputs.setdefault(claim.job.id, step_input) == step_input, (
            "a retry was given something else"
        )


async def check_run(
    pipelines: list[dict[str, Any]], payload: dict[str, Any], expected: ExpectedRun, seed: int
) -> None:
    rng = Random(seed)
    policy = policy_of(*pipelines, plugins=PLUGINS)
    # A crash is simulated by opening the store again, so the disk is not needed.
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        factory = StoreFactory(kind=SQLITE, directory=Path(directory), clock=Clock())
        driver = RunDriver(factory, policy, rng, crashes=rng.choice([0, 0.05, 0.2]))
        try:
            store, run_id = await driver.run(payload)
            await compare(store, run_id, driver, expected)
            await factory.check_invariants()
        finally:
            await factory.close()


async def compare(store: Store, run_id: str, driver: RunDriver, expected: ExpectedRun) -> None:
    record = await store.get_run(run_id)
    assert record is not None
    assert Counter(driver.inputs.values()) == expected.executions
    executed = [job for job in record.steps if job.id in driver.inputs]
    not_created = [job for job in record.steps if job.id not in driver.inputs]
    assert len(executed) == expected.executions.total()
    assert Counter(job.step_path for job in not_created) == expected.unmade
    assert {job.reason for job in not_created} <= {JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE}
    assert all(job.status in TERMINAL for job in record.steps)
    notes = [note.data for note in record.ledger_entries if note.kind is LedgerKind.CONDITION_FALSE]
    assert Counter(note["step"] for note in notes if "error" not in note) == expected.bypassed
    assert Counter(note["step"] for note in notes if "error" in note) == expected.unclaimed
    assert record.job.reason == expected.reason
    *_, last = await store.list_executions(run_id)
    assert last.result == expected.result


async def check_retried_run(
    pipelines: list[dict[str, Any]], payload: dict[str, Any], expected: ExpectedRun, seed: int
) -> None:
    """Let a run fail and be cancelled, and retry it until every step has succeeded."""
    rng = Random(seed)
    policy = policy_of(*pipelines, plugins=PLUGINS)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        factory = StoreFactory(kind=SQLITE, directory=Path(directory), clock=Clock())
        driver = RunDriver(
            factory, policy, rng, crashes=rng.choice([0, 0.1]), interference=rng.choice([0, 0.1, 0.3])
        )
        try:
            store, run_id = await driver.run(payload)
            for _ in range(2):
                if await store.retry(run_id, policy) is RetryResult.QUEUED:
                    store = await driver.continue_run(store, run_id)
            driver.repaired, driver.interference = True, 0
            # Crashes alone can use up the attempts of a step, so the run may need several retries.
            while await store.retry(run_id, policy) is RetryResult.QUEUED:
                store = await driver.continue_run(store, run_id)
            await compare(store, run_id, driver, expected)
            await factory.check_invariants()
        finally:
            await factory.close()


@st.composite
def cases(
    draw: st.DrawFn, behaviour: Callable[[str, str, str], Behaviour] = behave, *, joins_fail: bool = True
) -> tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun]:
    """Return pipelines, the payload of a run, and its expected result."""
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


def note_features(expected: ExpectedRun) -> None:
    event(f"the run ends {expected.reason}")
    for name, is_present in (
        ("joins", expected.joins),
        ("bypasses", expected.bypassed),
        ("unmade steps", expected.unmade),
    ):
        if is_present:
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
    """Each step runs once for each token, splits join once, and the end is right, also after crashes."""
    pipelines, payload, expected = case
    note(json.dumps(pipelines))
    note_features(expected)
    asyncio.run(check_run(pipelines, payload, expected, seed))


@settings(FORM, max_examples=80)
@given(case=cases(behave_repaired, joins_fail=False), seed=st.integers(0, 1 << 32))
def test_a_retried_run_ends_like_a_run_without_failures(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """No step is lost or repeated, whatever failed or was cancelled.

    Splits that continue after a failed branch are left out, because their next steps have seen the failure.
    """
    pipelines, payload, expected = case
    note(json.dumps(pipelines))
    note_features(expected)
    asyncio.run(check_retried_run(pipelines, payload, expected, seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(FORM, max_examples=5000)
@given(case=cases(), seed=st.integers(0, 1 << 32))
def test_thousands_of_runs_do_what_their_pipelines_say(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """This is the nightly form."""
    pipelines, payload, expected = case
    asyncio.run(check_run(pipelines, payload, expected, seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(FORM, max_examples=3000)
@given(case=cases(behave_repaired, joins_fail=False), seed=st.integers(0, 1 << 32))
def test_thousands_of_retried_runs_end_like_runs_without_failures(
    case: tuple[list[dict[str, Any]], dict[str, Any], ExpectedRun], seed: int
) -> None:
    """This is the nightly form."""
    pipelines, payload, expected = case
    asyncio.run(check_retried_run(pipelines, payload, expected, seed))
