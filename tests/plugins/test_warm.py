"""Shipped plugins respond after a warm start as after a cold one."""

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

PYTHON_DIRECTORY = Path(sys.executable).parent
NAMES = sorted(path.parent.name for path in ROOT.glob("*/manifest.yaml"))
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="warm start needs Linux")


async def run_with(runner: Runner, launch: Launch, started_by: StartedBy) -> ProcessOutput:
    process = await runner.start(launch)
    assert not isinstance(process, CouldNotStart | ForkServerLost), process
    assert process.started_by is started_by
    result = await process.wait()
    assert isinstance(result, Exited)
    return result.output


async def run_cold_and_warm(launch: Launch) -> tuple[ProcessOutput, ProcessOutput]:
    cold, warm = SpawnRunner(), WarmRunner()
    try:
        return (
            await run_with(cold, launch, StartedBy.SPAWN),
            await run_with(warm, launch, StartedBy.WARM),
        )
    finally:
        await warm.close()
        await cold.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [2, 3])
def test_warm_is_like_cold(name: str, protocol: int, tmp_path: Path) -> None:
    """Stdout and exit status are the same, for a response and for a refusal."""
    shutil.copytree(ROOT, tmp_path / "plugins")
    request = {"protocol": protocol, "job_id": "j", "command": "health", "config": {}, "state": {}}
    launch = Launch(
        entrypoint=str(tmp_path / "plugins" / name / "run.py"),
        request=json.dumps(request).encode(),
        environment={"PATH": f"{PYTHON_DIRECTORY}:{os.environ['PATH']}"},
        directory=str(tmp_path),
        timeout=timedelta(seconds=30),
        warm=WarmStart(),
    )
    cold, warm = asyncio.run(run_cold_and_warm(launch))
    assert (warm.stdout, warm.stderr, warm.status) == (cold.stdout, cold.stderr, cold.status)
    assert bool(warm.stdout) is (protocol == 2), "a fault of the configuration is an answer too"
    assert protocol == 2 or warm.status.exit_code == 78
