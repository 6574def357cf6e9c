"""Thousands of runs leave nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from builders.bad_plugins import OK, a_bad_plugin, a_launch, an_executable, open_descriptors, start
from ductile.core.jobs.model import Completed
from ductile.runner.interpret import interpret
from ductile.runner.port import Launch, Runner, StartedBy

AT_ONCE = 8


async def run_many(runner: Runner, launch: Launch, count: int) -> None:
    async def one_after_another() -> None:
        for _ in range(count // AT_ONCE):
            process = await start(runner, launch)
            assert isinstance(interpret(await process.wait()).outcome, Completed)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


async def test_thousands_of_runs_leak_no_descriptor_and_no_zombie(
    runner: Runner, kind: StartedBy, tmp_path: Path
) -> None:
    """The fixture checks that no child is left."""
    script = an_executable(tmp_path, f"#!/bin/sh\necho '{OK}'\n")
    plugin, count = (script, 2000) if kind is StartedBy.SPAWN else (a_bad_plugin(tmp_path, "answers"), 800)
    await run_many(runner, a_launch(plugin), AT_ONCE)
    before = open_descriptors()
    await run_many(runner, a_launch(plugin), count)
    assert open_descriptors().keys() == before.keys()
