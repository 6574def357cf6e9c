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
    """The states are reported in order, once each; the start is reported with the age of the process."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        await harness.start_and_wait()
        job_id = await harness.submit(callback=StateSubscription(url="http://127.0.0.1:1/"))
        await harness.until(Signal.JOB_SUCCEEDED)
        (started,) = [event for event in harness.emitted if event.signal is Signal.JOB_STARTED]
        assert isinstance(age_ms := started.data["ms_ago"], float)
        assert age_ms > 0
        deliveries = (await harness.store.real.list_deliveries(DeliveryFilter(job_id=job_id), limit=9)).rows
        assert [delivery.state for delivery in reversed(deliveries)] == [
            "queued",
            "loading",
            "working",
            "done",
        ]


async def test_the_waiting_time_of_a_job_is_logged_with_its_first_claim_only(tmp_path: Path) -> None:
    """The time counts from the acceptance, also by an earlier daemon. A later claim has waited for other
    reasons.
    """
    a_plugin(tmp_path / "plugins", "weak", script="#!/bin/sh\nexit 1\n")
    retried = "  echo: {}\n  weak: {retry: {max_attempts: 2, backoff_base: 1ms}}\n"
    async with an_engine(tmp_path, retried) as harness:
        job_id = await harness.submit("weak", max_attempts=2)
        await harness.start_and_wait()
        await harness.until(Signal.JOB_DEAD)
        job = await harness.job(job_id)
        claims = [event.data for event in harness.emitted if event.signal is Signal.JOB_CLAIMED]
        assert [data["execution"] for data in claims] == [1, 2]
        assert isinstance(waited := claims[0]["waited_ms"], float)
        assert "waited_ms" not in claims[1]
        assert job.completed_at is not None
        assert 0 < waited < (job.completed_at - job.created_at).total_seconds() * 1000


async def test_a_job_for_an_idle_worker_is_claimed_in_the_commit_that_brings_it(tmp_path: Path) -> None:
    """This saves one write. All rows of a commit have the same instant."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        await harness.start_and_wait()
        jobs = [a_new_job("echo", "poll") for _ in range(20)]
        for job in jobs:  # one after the other: all workers are idle
            await harness.context.enqueue(Submission(jobs=(job,)))
            await harness.until(Signal.JOB_SUCCEEDED)
            for _ in range(3):  # a claim that the end of the job triggered has returned by then
                await harness.store.real.shorten_waits()
        ended = [await harness.job(job.id) for job in jobs]
        # Not every job: a store that is about to idle does not wait for the claim.
        # The first job is found by the claim at the start of the engine.
        assert any(job.started_at == job.created_at for job in ended[1:])
