"""How many callers may wait at once: a slot is taken before anything is enqueued (SPEC 7.7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ductile.errors import TooBusyError


class Slots:
    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def take(self, limit: int) -> Iterator[None]:
        """Hold one of `limit` slots; if none is free, nothing is waited for."""
        if self._taken >= limit:
            raise TooBusyError(
                f"{limit} callers are waiting for synchronous runs, and no more may",
                hint="Try again soon, or send ?async=true and ask for the job later.",
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
