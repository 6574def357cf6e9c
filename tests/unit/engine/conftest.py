"""The engines of these tests keep their store in each of the databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.engines import keep_engine_in
from builders.postgres import STORES

#: Modules whose tests start engines; nodes recover the jobs of a dead daemon by rules of their own.
ENGINES = (
    "test_cancelling",
    "test_executor",
    "test_faults",
    "test_reload",
    "test_stopping",
    "test_unqueued_jobs",
    "test_waiting_callers",
)
#: Where several nodes share a store, such a job waits for a node that has its plugin.
ONE_DAEMON = ("test_jobs_of_a_removed_plugin_that_cannot_be_ended_now_end_at_their_claim",)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    starts_engines = metafunc.module.__name__.rpartition(".")[2] in ENGINES
    if starts_engines and metafunc.function.__name__ not in ONE_DAEMON:
        metafunc.parametrize("engine_store", STORES, indirect=True)


@pytest.fixture(autouse=True)
def engine_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the database of the engines of this test."""
    store: str = getattr(request, "param", "sqlite")
    keep_engine_in(store, tmp_path)
    return store
