"""Shipped plugins start warm and answer as they do cold."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from builders.shipped import ROOT
from ductile.runner.port import (
    CouldNotStart,
    Exited,
    ForkServerLost,
    Launch,
    ProcessOutput,
    Runner,
    StartedBy,
    WarmStart,
)
from ductile.runner.process.spawn import SpawnRunner
from ductile.runner.warm.pool import WarmRunner

PYTHONS = Path(sys.executable).parent
NAMES = sorted(path.parent.name for path in ROOT.glob("*/manifest.yaml"))
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="warm start needs Linux")


async def remains_of(runner: Runner, run: Launch, started_by: StartedBy) -> ProcessOutput:
    process = await runner.start(run)
    assert not isinstance(process, CouldNotStart | ForkServerLost), process
    assert process.started_by is started_by
    ending = await process.wait()
    assert isinstance(ending, Exited)
    return ending.output


async def both(run: Launch) -> tuple[ProcessOutput, ProcessOutput]:
    cold, warm = SpawnRunner(), WarmRunner()
    try:
        return (
            await remains_of(cold, run, StartedBy.SPAWN),
            await remains_of(warm, run, StartedBy.WARM),
        )
    finally:
        await warm.close()
        await cold.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [2, 3])
def test_warm_is_like_cold(name: str, protocol: int, tmp_path: Path) -> None:
    """The same bytes on stdout and the same exit status, for an answer and for a refusal."""
    shutil.copytree(ROOT, tmp_path / "plugins")
    request = {"protocol": protocol, "job_id": "j", "command": "health", "config": {}, "state": {}}
    run = Launch(
        entrypoint=str(tmp_path / "plugins" / name / "run.py"),
        request=json.dumps(request).encode(),
        environment={"PATH": f"{PYTHONS}:{os.environ['PATH']}"},
        directory=str(tmp_path),
        timeout=timedelta(seconds=30),
        warm=WarmStart(),
    )
    cold, warm = asyncio.run(both(run))
    assert (warm.stdout, warm.stderr, warm.status) == (cold.stdout, cold.stderr, cold.status)
    assert bool(warm.stdout) is (protocol == 2), "a fault of the configuration is an answer too"
    assert protocol == 2 or warm.status.exit_code == 78
