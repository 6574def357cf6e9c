"""With a slow, full or locked store, the engine keeps results and can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builders.engines import EngineUnderTest, an_engine
from ductile.core.jobs.model import JobStatus
from ductile.core.policy import Policy
from ductile.store.notifier import RetryScheduled
from ductile.telemetry.signals import Signal


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[EngineUnderTest]:
    async with an_engine(tmp_path, "  echo: {retry: {backoff_base: 10ms, max_attempts: 3}}\n") as harness:
        await harness.start_and_wait()
        yield harness


async def test_a_stop_while_a_claim_is_under_way_strands_no_job(harness: EngineUnderTest) -> None:
    """A claimed job is run or requeued; the next start does not find it running."""
    harness.store.pause_after_claim = asyncio.Event()
    job_id = await harness.submit(max_attempts=1)
    await harness.store.claimed.wait()
    harness.engine.stop()
    harness.store.pause_after_claim.set()
    await harness.wait_until_stopped()
    assert (await harness.job(job_id)).status is not JobStatus.RUNNING
    assert (await harness.store.real.recover(Policy())).jobs == ()


async def test_a_full_store_does_not_stop_the_daemon_when_a_retry_is_due(harness: EngineUnderTest) -> None:
    """The daemon lives, and continues when there is room."""
    harness.store.full.add("release_due")
    harness.store.notifier.publish([RetryScheduled(due_at=datetime.now(UTC))])
    job_id = await harness.submit()
    await harness.until(Signal.JOB_SUCCEEDED)
    assert harness.task is not None
    assert not harness.task.done()
    harness.store.full.clear()
    assert (await harness.job(job_id)).status is JobStatus.SUCCEEDED


async def test_a_result_is_held_while_the_store_is_full_and_kept_when_it_is_not(
    harness: EngineUnderTest,
) -> None:
    """Finished outcomes are held and stored later."""
    harness.store.full.add("settle")
    job_id = await harness.submit()
    await harness.until(Signal.STORE_FULL)
    assert (await harness.job(job_id)).status is JobStatus.RUNNING
    harness.store.full.clear()
    await harness.until(Signal.JOB_SUCCEEDED)


async def test_a_locked_store_is_not_called_full(harness: EngineUnderTest) -> None:
    harness.store.busy.add("settle")
    await harness.submit()
    await harness.until(Signal.STORE_BUSY)
    harness.store.busy.clear()
    await harness.until(Signal.JOB_SUCCEEDED)
    assert all(event.signal is not Signal.STORE_FULL for event in harness.emitted)


async def test_a_second_stop_ends_a_daemon_whose_store_is_full(harness: EngineUnderTest) -> None:
    """A second stop does not wait for the store; the next start finds the job running."""
    harness.store.full.add("settle")
    job_id = await harness.submit()
    await harness.until(Signal.STORE_FULL)
    harness.engine.stop()
    harness.engine.stop()
    await harness.wait_until_stopped()
    assert (await harness.job(job_id)).status is JobStatus.RUNNING
