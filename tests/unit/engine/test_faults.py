"""A slow, full or locked store: the engine keeps results, and can be stopped."""

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
async def bench(tmp_path: Path) -> AsyncIterator[EngineUnderTest]:
    async with an_engine(tmp_path, "  echo: {retry: {backoff_base: 10ms, max_attempts: 3}}\n") as bench:
        await bench.start_and_wait()
        yield bench


async def test_a_stop_while_a_claim_is_under_way_strands_no_job(bench: EngineUnderTest) -> None:
    """A claimed job is run or requeued; the next start does not find it running."""
    bench.store.pause_after_claim = asyncio.Event()
    job_id = await bench.submit(max_attempts=1)
    await bench.store.claimed.wait()
    bench.engine.stop()
    bench.store.pause_after_claim.set()
    await bench.wait_until_stopped()
    assert (await bench.job(job_id)).status is not JobStatus.RUNNING
    assert (await bench.store.real.recover(Policy())).jobs == ()


async def test_a_full_store_does_not_stop_the_daemon_when_a_retry_is_due(bench: EngineUnderTest) -> None:
    """The daemon lives, and continues when there is room."""
    bench.store.full.add("release_due")
    bench.store.notifier.publish([RetryScheduled(due_at=datetime.now(UTC))])
    job_id = await bench.submit()
    await bench.until(Signal.JOB_SUCCEEDED)
    assert bench.task is not None
    assert not bench.task.done()
    bench.store.full.clear()
    assert (await bench.job(job_id)).status is JobStatus.SUCCEEDED


async def test_a_result_is_held_while_the_store_is_full_and_kept_when_it_is_not(
    bench: EngineUnderTest,
) -> None:
    """Finished outcomes are held and offered again."""
    bench.store.full.add("settle")
    job_id = await bench.submit()
    await bench.until(Signal.STORE_FULL)
    assert (await bench.job(job_id)).status is JobStatus.RUNNING
    bench.store.full.clear()
    await bench.until(Signal.JOB_SUCCEEDED)


async def test_a_locked_store_is_not_called_full(bench: EngineUnderTest) -> None:
    bench.store.busy.add("settle")
    await bench.submit()
    await bench.until(Signal.STORE_BUSY)
    bench.store.busy.clear()
    await bench.until(Signal.JOB_SUCCEEDED)
    assert all(event.signal is not Signal.STORE_FULL for event in bench.emitted)


async def test_a_second_stop_ends_a_daemon_whose_store_is_full(bench: EngineUnderTest) -> None:
    """At once means at once; the job is found running by the next start and loses nothing else."""
    bench.store.full.add("settle")
    job_id = await bench.submit()
    await bench.until(Signal.STORE_FULL)
    bench.engine.stop()
    bench.engine.stop()
    await bench.wait_until_stopped()
    assert (await bench.job(job_id)).status is JobStatus.RUNNING
