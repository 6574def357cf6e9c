"""What is on disk is told of, whether or not somebody still waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from builders.jobs import a_new_job
from builders.stores import LEASE, ROOMY, accept
from ductile.store.model.submission import Submission
from ductile.store.port import Store

Told = Callable[[Any], None]
#: The verbs that tell, each given what finds the one job that is queued.
VERBS: dict[str, Callable[[Store, str, Told], Awaitable[object]]] = {
    "enqueue": lambda store, _, told: store.enqueue(Submission(jobs=(a_new_job(),)), told),
    "claim": lambda store, _, told: store.claim(owner="me", caps=ROOMY, limit=1, lease=LEASE, told=told),
    "claim_these": lambda store, job, told: store.claim_by_id([job], owner="me", lease=LEASE, told=told),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_the_answer_is_told_before_whoever_waits_goes_on(store: Store, verb: str) -> None:
    told: list[object] = []
    answer = await VERBS[verb](store, await accept(store, a_new_job()), told.append)
    assert told == [answer]


@pytest.mark.parametrize("verb", VERBS)
async def test_the_answer_is_told_when_nobody_waits_any_more(store: Store, verb: str) -> None:
    """The jobs are on the queue, or ours to run: somebody has to know."""
    job_id = await accept(store, a_new_job())
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(VERBS[verb](store, job_id, told.set_result))
    waiting.cancel()
    async with asyncio.timeout(20):
        assert len(await told) == 1
    assert waiting.cancelled()
