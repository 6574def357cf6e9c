"""The runner under test: each kind in turn, with short grace periods and a check for leftovers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from builders.bad_plugins import children, open_descriptors
from ductile.runner.port import GracePeriods, Runner, StartedBy
from ductile.runner.process.spawn import SpawnRunner
from ductile.runner.warm.pool import WarmRunner

IMPATIENT = GracePeriods(after_terminate=0.3, for_group_members=0.2)
#: For processes that end in their grace period: how long that takes depends on the machine.
PATIENT = GracePeriods(after_terminate=60, for_group_members=60)


@pytest.fixture(params=[StartedBy.SPAWN, StartedBy.WARM])
def kind(request: pytest.FixtureRequest) -> StartedBy:
    """Return how Python plugins are started in this test."""
    kind: StartedBy = request.param
    return kind


@pytest.fixture
async def runner(kind: StartedBy) -> AsyncIterator[Runner]:
    async with a_runner(kind, IMPATIENT) as runner:
        yield runner


@pytest.fixture
async def patient_runner(kind: StartedBy) -> AsyncIterator[Runner]:
    async with a_runner(kind, PATIENT) as runner:
        yield runner


@asynccontextmanager
async def a_runner(kind: StartedBy, grace: GracePeriods) -> AsyncIterator[Runner]:
    before = len(open_descriptors())
    runner: Runner = SpawnRunner(grace) if kind is StartedBy.SPAWN else WarmRunner(grace)
    yield runner
    await runner.close()
    assert len(open_descriptors()) == before, open_descriptors()
    assert not children(), "a child was not reaped"


@pytest.fixture(autouse=True)
def _no_survivors(tmp_path: Path) -> Iterator[None]:
    """Kill processes that have left their group: no runner ends these."""
    yield
    child = next(iter(tmp_path.rglob("child")), None)
    if child is not None:
        with suppress(ProcessLookupError):
            os.kill(int(child.read_text()), 9)
