"""A stored job is started, whether or not its caller is still connected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from builders.engines import an_engine
from ductile.core.jobs.model import SubmittedBy
from ductile.operations.context import OperationContext, Source
from ductile.operations.runs.publish import PublishEvent, publish_event
from ductile.operations.runs.start import TriggerPipeline, trigger_pipeline
from ductile.operations.submission import RunCommand, run_command
from ductile.struct import replace
from ductile.telemetry.signals import Signal

SOURCE = Source(submitted_by=SubmittedBy.API, detail="agent")


class SignallingStore:
    """A store that signals when it gets a submission."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.enqueued = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def enqueue(self, *args: Any) -> Any:
        self.enqueued.set()
        return self._store.enqueue(*args)


async def submit_command(context: OperationContext) -> object:
    return await run_command(context, RunCommand(plugin="echo", command="poll"))


async def submit_trigger(context: OperationContext) -> object:
    return await trigger_pipeline(context, TriggerPipeline(plugin="echo", command="poll"))


async def submit_event(context: OperationContext) -> object:
    return await publish_event(context, PublishEvent(type="it.happened", payload={}))


@pytest.mark.parametrize("submit", [submit_command, submit_trigger, submit_event])
async def test_a_caller_cancelled_during_the_commit_undoes_nothing(tmp_path: Path, submit: Any) -> None:
    """Without the notification the job would wait until another one is submitted."""
    routes = "routes: [{from: api, event_type: it.happened, to: echo.poll}]\n"
    async with an_engine(tmp_path, f"  echo: {{}}\n{routes}") as harness:
        await harness.start_and_wait()
        store = SignallingStore(harness.store)
        caller = asyncio.create_task(submit(replace(harness.context, store=store, source=SOURCE)))
        await store.enqueued.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await harness.until(Signal.JOB_SUCCEEDED)).plugin == "echo"
