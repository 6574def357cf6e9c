"""Counts the requests that each webhook endpoint refused since the daemon started; keeps the last reason."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from ductile.operations.response import Timestamp, timestamp
from ductile.struct import Value, about


class RefusedRequests(Value):
    count: Annotated[int, about("Since the daemon started.")]
    last_at: Timestamp
    why: Annotated[str, about("Why the latest was refused; its sender was not told.")]


class WebhookRefusals:
    """Counts by endpoint, in memory. Only configured endpoints are counted, so they are few."""

    def __init__(self) -> None:
        self._by_name: dict[str, RefusedRequests] = {}

    def add(self, endpoint: str, why: str, at: datetime) -> None:
        known = self._by_name.get(endpoint)
        count = 1 if known is None else known.count + 1
        self._by_name[endpoint] = RefusedRequests(count=count, last_at=timestamp(at), why=why)

    def of(self, endpoint: str) -> RefusedRequests | None:
        return self._by_name.get(endpoint)
