"""What the engine's loops do while the store is full or locked: wait a moment and ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from ductile.engine.clock import Clock
from ductile.errors import StoreBusyError, StoreFullError

#: The store cannot take a write now; the same write may succeed later.
STORE_UNAVAILABLE = (StoreFullError, StoreBusyError)
STORE_RETRY_INTERVAL = timedelta(seconds=1)

Result = TypeVar("Result")


async def retry_until_available(clock: Clock, ask: Callable[[], Awaitable[Result]]) -> Result:
    """Return what `ask` returns, asking again each second while the store is full or locked."""
    never = asyncio.Event()
    while True:
        try:
            return await ask()
        except STORE_UNAVAILABLE:
            await clock.wait(clock.now() + STORE_RETRY_INTERVAL, never)
