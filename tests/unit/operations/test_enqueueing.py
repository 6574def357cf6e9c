"""Whatever is on disk is started, whether or not its caller is still there."""

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


class Handed:
    """A store that signals when it gets a submission."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.there = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def enqueue(self, *given: Any) -> Any:
        self.there.set()
        return self._store.enqueue(*given)


async def by_name(context: OperationContext) -> object:
    return await run_command(context, RunCommand(plugin="echo", command="poll"))


async def by_trigger(context: OperationContext) -> object:
    return await trigger_pipeline(context, TriggerPipeline(plugin="echo", command="poll"))


async def by_event(context: OperationContext) -> object:
    return await publish_event(context, PublishEvent(type="it.happened", payload={}))


@pytest.mark.parametrize("submit", [by_name, by_trigger, by_event])
async def test_a_caller_cancelled_during_the_commit_undoes_nothing(tmp_path: Path, submit: Any) -> None:
    """A job that is written but not announced would wait in the queue until another one comes."""
    routes = "routes: [{from: api, event_type: it.happened, to: echo.poll}]\n"
    async with an_engine(tmp_path, f"  echo: {{}}\n{routes}") as bench:
        await bench.start_and_wait()
        store = Handed(bench.store)
        caller = asyncio.create_task(submit(replace(bench.context, store=store, source=SOURCE)))
        await store.there.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await bench.until(Signal.JOB_SUCCEEDED)).plugin == "echo"
