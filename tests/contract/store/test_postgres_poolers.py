"""A pooler in transaction mode between the daemon and its server is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.jobs import Clock, some_rng
from builders.poolers import Pooler
from builders.postgres import start_pooler, store_url
from ductile.errors import StoreFailedError
from ductile.store.postgres.store import open_postgres_store


@contextmanager
def a_pooler(directory: Path, *, session_mode: bool) -> Iterator[Pooler]:
    pooler = start_pooler(directory, session_mode=session_mode)
    try:
        yield pooler
    finally:
        pooler.close()


def test_a_pooler_in_transaction_mode_is_refused(tmp_path: Path) -> None:
    store_url(tmp_path)
    with a_pooler(tmp_path, session_mode=False), pytest.raises(StoreFailedError) as refused:
        open_postgres_store(store_url(tmp_path, proxied=True), clock=Clock(), rng=some_rng())
    assert "pooler in transaction mode" in refused.value.message
    assert "pool_mode=session" in str(refused.value.hint)
