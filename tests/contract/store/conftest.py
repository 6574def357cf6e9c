"""The store under test: each kind of database in turn, empty, with a clock of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builders.jobs import Clock
from builders.stores import STORE_KINDS, StoreFactory
from ductile.store.port import Store


@pytest.fixture(params=STORE_KINDS, ids=lambda kind: kind.name)
async def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreFactory]:
    """Return a factory of stores, and check the rules for rows at rest after the test."""
    factory = StoreFactory(kind=request.param, directory=tmp_path)
    yield factory
    await factory.check_invariants(pruned=hasattr(request.module, "PRUNES"))
    await factory.close()


@pytest.fixture
async def store(store_factory: StoreFactory) -> Store:
    return await store_factory.open()


@pytest.fixture
def clock(store_factory: StoreFactory) -> Clock:
    return store_factory.clock
