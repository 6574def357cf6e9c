"""One job from its claim to its result."""

from __future__ import annotations

from pathlib import Path

from builders.engines import an_engine
from builders.jobs import a_new_job
from builders.plugins import a_plugin
from ductile.core.jobs.model import StateSubscription
from ductile.store.model.deliveries import DeliveryFilter
from ductile.store.model.jobs import Submission
from ductile.telemetry.signals import Signal


async def test_every_state_is_reported_although_the_process_is_quick(tmp_path: Path) -> None:
    """In order, each once, with the age of the process when its start is reported."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.start_and_wait()
        job_id = await bench.submit(callback=StateSubscription(url="http://127.0.0.1:1/"))
        await bench.until(Signal.JOB_SUCCEEDED)
        (started,) = [each for each in bench.emitted if each.signal is Signal.JOB_STARTED]
        assert isinstance(ago := started.data["ms_ago"], float)
        assert ago > 0
        sent = (await bench.store.real.list_deliveries(DeliveryFilter(job_id=job_id), limit=9)).rows
        assert [each.state for each in reversed(sent)] == ["queued", "loading", "working", "done"]


async def test_the_waiting_time_of_a_job_is_logged_with_its_first_claim_only(tmp_path: Path) -> None:
    """From acceptance, be it by an earlier daemon; a later claim has waited for something else."""
    a_plugin(tmp_path / "plugins", "weak", script="#!/bin/sh\nexit 1\n")
    retried = "  echo: {}\n  weak: {retry: {max_attempts: 2, backoff_base: 1ms}}\n"
    async with an_engine(tmp_path, retried) as bench:
        job_id = await bench.submit("weak", max_attempts=2)
        await bench.start_and_wait()
        await bench.until(Signal.JOB_DEAD)
        job = await bench.job(job_id)
        claims = [each.data for each in bench.emitted if each.signal is Signal.JOB_CLAIMED]
        assert [data["execution"] for data in claims] == [1, 2]
        assert isinstance(waited := claims[0]["waited_ms"], float)
        assert "waited_ms" not in claims[1]
        assert job.completed_at is not None
        assert 0 < waited < (job.completed_at - job.created_at).total_seconds() * 1000


async def test_a_job_for_an_idle_worker_is_claimed_in_the_commit_that_brings_it(tmp_path: Path) -> None:
    """One write to the disk less. All that a commit writes has one instant."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.start_and_wait()
        jobs = [a_new_job("echo", "poll") for _ in range(20)]
        for job in jobs:  # one after the other: all workers are idle
            await bench.context.enqueue(Submission(jobs=(job,)))
            await bench.until(Signal.JOB_SUCCEEDED)
            for _ in range(3):  # a claim that the end of the job triggered has returned by then
                await bench.store.real.shorten_waits()
        ended = [await bench.job(job.id) for job in jobs]
        # Not always: a store that is about to go to rest does not wait for the claim. And the first one
        # is found by those who look because the engine has started.
        assert any(job.started_at == job.created_at for job in ended[1:])
