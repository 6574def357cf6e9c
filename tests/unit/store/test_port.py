"""The port binds verbs to transactions. A verb that lost a race runs again, a bounded number of times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from builders.jobs import a_new_job
from ductile.errors import ContendedError, StoreBusyError
from ductile.store import port
from ductile.store.model.jobs import Submission
from ductile.store.model.maintenance import StoreStats
from ductile.store.port import Priority, Store, WriteHint
from ductile.store.session import Session
from ductile.store.verbs.jobs import queue

R = TypeVar("R")


class RacingStore(Store):
    """A store that loses the first `lost` races and then returns nothing."""

    def __init__(self, lost: int) -> None:
        super().__init__("store")
        self.lost = lost
        self.runs: list[Priority] = []

    def run_read(self, work: Callable[[Session], R]) -> Awaitable[R]:
        raise NotImplementedError

    async def run_write(
        self,
        priority: Priority,
        work: Callable[[Session], R],  # noqa: ARG002
        hint: WriteHint = None,  # noqa: ARG002
    ) -> Any:
        self.runs.append(priority)
        if len(self.runs) <= self.lost:
            raise ContendedError("another transaction was first")
        return ()

    async def close(self) -> None: ...

    async def check_files(self) -> None: ...

    async def is_full(self) -> bool:
        return False

    async def stats(self) -> StoreStats:
        raise NotImplementedError


async def test_a_verb_that_lost_a_race_runs_again() -> None:
    store = RacingStore(lost=port.MAX_TRIES - 1)
    assert await store.enqueue(Submission(jobs=(a_new_job(),))) == ()
    assert store.runs == [Priority.ENQUEUE] * port.MAX_TRIES


async def test_a_verb_that_loses_every_race_reports_a_busy_store() -> None:
    store = RacingStore(lost=port.MAX_TRIES)
    with pytest.raises(StoreBusyError, match="another transaction was first"):
        await store.release_due()
    assert len(store.runs) == port.MAX_TRIES


def test_a_verb_keeps_the_docstring_of_its_function() -> None:
    assert Store.enqueue.__doc__ == queue.enqueue.__doc__
