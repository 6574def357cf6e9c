"""Every pair of verbs at the same time: afterwards the rows at rest violate no rule.

The store has a job of each kind, and both verbs of a pair use the same jobs. Their results depend on the
order and are not checked. On PostgreSQL the second verb of a pair runs in another process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from builders.stores import STORE_KINDS, StoreFactory, StoreKind
from builders.verb_worker import OtherProcess
from builders.verbs import VERBS, a_populated_store
from ductile.errors import StoreError


@pytest.fixture(scope="module")
def other_process() -> Iterator[OtherProcess]:
    with OtherProcess() as process:
        yield process


@pytest.mark.parametrize("kind", STORE_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("first", VERBS)
async def test_any_two_verbs_can_meet(
    first: str, kind: StoreKind, other_process: OtherProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each verb is one transaction, so no two of them leave a partial change."""
    later = list(VERBS)[list(VERBS).index(first) :]
    for second in later:
        factory = StoreFactory(kind=kind, directory=tmp_path_factory.mktemp("pair"))
        populated = await a_populated_store(factory)
        try:
            if kind.name == "postgres":
                await asyncio.to_thread(other_process.prepare, factory.directory, populated, second)
                await asyncio.gather(VERBS[first](populated), asyncio.to_thread(other_process.run))
            else:
                await asyncio.gather(VERBS[first](populated), VERBS[second](populated))
        except StoreError as error:  # pragma: no cover - only when a verb is broken
            pytest.fail(f"{first} and {second}: {error!r}")
        await factory.check_invariants(pruned="prune" in (first, second))


@pytest.mark.parametrize("kind", STORE_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("order", range(4))
async def test_all_verbs_can_meet(
    order: int, kind: StoreKind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All verbs run at once in several orders, and again before the first ones have ended."""
    factory = StoreFactory(kind=kind, directory=tmp_path_factory.mktemp("all"))
    populated = await a_populated_store(factory)
    verbs = list(VERBS.values())
    turned = verbs[order * 4 :] + verbs[: order * 4]
    await asyncio.gather(*(verb(populated) for verb in itertools.chain(turned, reversed(turned))))
    await factory.check_invariants(pruned=True)
