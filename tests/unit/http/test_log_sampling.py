"""Some requests of unknown callers are logged in full, and all others are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ductile.http.application import LogRateLimiter, describe_counts

PATIENCE = 60.0
NEVER = 3600.0
WINDOW = 0.01


async def test_the_first_of_each_kind_is_logged_and_the_rest_is_counted() -> None:
    reported: list[tuple[Mapping[str, int], str | None]] = []
    sampler = LogRateLimiter(lambda *args: reported.append(args), seconds=NEVER)
    logged = [sampler.should_log(kind, f"peer-{number}") for number, kind in enumerate(("401", "404") * 100)]
    assert logged == [True, True] + [False] * 198
    assert reported == []
    sampler.close()
    assert reported == [({"401": 99, "404": 99}, "peer-199")]
    sampler.close()
    assert len(reported) == 1


async def test_counts_are_reported_until_a_window_is_empty() -> None:
    reported: asyncio.Queue[Mapping[str, int]] = asyncio.Queue()
    sampler = LogRateLimiter(lambda counts, _peer: reported.put_nowait(counts), seconds=WINDOW)
    async with asyncio.timeout(PATIENCE):
        assert sampler.should_log("401", None)
        sampler.should_log("401", None)
        assert await reported.get() == {"401": 1}
        while not sampler.should_log("401", None):  # windows with counts; an empty window ends the loop
            await reported.get()
            await asyncio.sleep(WINDOW)  # the sleep ends after the window
    sampler.close()


def test_counts_are_described_in_order() -> None:
    assert describe_counts({"404": 3, "401": 12}) == "12 x 401, 3 x 404"
