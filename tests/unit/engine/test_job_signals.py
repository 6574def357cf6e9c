"""Every change of a job is emitted as a signal once; logs and metrics are derived from signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import engines
from builders.engines import EngineUnderTest, an_engine
from builders.plugins import a_plugin
from ductile.core.json import JsonObject
from ductile.operations import table
from ductile.telemetry.signals import Signal

PIPELINES = """pipelines:
  - name: broken
    on: never.heard
    steps: [{uses: echo, with: {text: "{payload.absent}"}}]
  - name: follows
    on: found
    steps: [{uses: echo}, {uses: echo}]
"""
FINDER = """#!/bin/sh
cat > /dev/null
echo '{"status": "ok", "result": "done", "events": [{"type": "found", "payload": {}}]}'
"""


def job_ids(harness: EngineUnderTest, signal: Signal) -> list[str | None]:
    return [event.job_id for event in harness.emitted if event.signal is signal]


@pytest.fixture(autouse=True)
def _pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "SERVICE", f"{engines.SERVICE}{PIPELINES}")


async def test_a_run_that_ends_as_it_begins_is_logged(tmp_path: Path) -> None:
    """A bad template fails the step and the run in the transaction that accepts them."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        await harness.start_and_wait()
        response = await table.OPERATIONS["pipeline.run"].run(harness.context, {"pipeline": "broken"})
        ids = [job.id for job in await harness.store.real.job_tree(response.job_id, limit=100)]
        assert len(ids) == 2
        assert sorted(job_ids(harness, Signal.JOB_FAILED), key=str) == sorted(ids)


async def test_every_job_is_accepted_once(tmp_path: Path) -> None:
    """This holds for scheduled jobs and for the steps of a run that an event starts."""
    a_plugin(tmp_path / "plugins", "finder", script=FINDER)
    async with an_engine(tmp_path, "  echo: {}\n  finder: {schedule: {every: 1h}}\n") as harness:
        await harness.start_and_wait()
        ended = [await harness.until(Signal.JOB_SUCCEEDED) for _ in range(4)]  # the run is one of the four
        accepted = job_ids(harness, Signal.JOB_ACCEPTED)
        assert sorted(accepted, key=str) == sorted((job.job_id for job in ended), key=str)
        traces = {(await harness.job(str(job_id))).trace_id for job_id in accepted}
        assert len(traces) == 1
        assert traces != {None}, "one trace, from the schedule to the last step"


async def test_accepted_and_duplicate_jobs_are_logged_with_their_plugin(tmp_path: Path) -> None:
    """Jobs of schedules, events, runs, steps and callers have a plugin, because logs are searched by
    plugin.
    """
    a_plugin(tmp_path / "plugins", "finder", script=FINDER)
    async with an_engine(tmp_path, "  echo: {}\n  finder: {schedule: {every: 1h}}\n") as harness:
        await harness.start_and_wait()
        for _ in range(4):
            await harness.until(Signal.JOB_SUCCEEDED)
        request: JsonObject = {"plugin": "echo", "command": "poll", "dedupe_key": "k", "dedupe_ttl": "1h"}
        for _ in range(2):
            await table.OPERATIONS["plugin.run"].run(harness.context, request)
        logged = [
            (event.signal, event.plugin, event.data["command"])
            for event in harness.emitted
            if event.signal in (Signal.JOB_ACCEPTED, Signal.JOB_DEDUPLICATED)
        ]
    assert logged == [
        (Signal.JOB_ACCEPTED, "finder", "poll"),
        (Signal.JOB_ACCEPTED, "pipeline", "follows"),
        (Signal.JOB_ACCEPTED, "echo", "handle"),
        (Signal.JOB_ACCEPTED, "echo", "handle"),
        (Signal.JOB_ACCEPTED, "echo", "poll"),
        (Signal.JOB_DEDUPLICATED, "echo", "poll"),
    ]
