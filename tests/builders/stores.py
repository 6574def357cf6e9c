"""A store with an injected clock and random source, and short names for what tests do with it.

All functions use `ductile.store.port.Store`; only `SQLITE` and `POSTGRES` use an adapter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import psycopg

from builders.invariants import violations
from builders.jobs import Clock, some_policy, some_rng
from builders.postgres import store_url
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Job, NewJob, Outcome
from ductile.core.policy import Policy
from ductile.store.model.jobs import Accepted, ClaimedJob, EnqueueResult, Settled, Submission
from ductile.store.model.maintenance import Invariant
from ductile.store.model.records import LedgerRow
from ductile.store.port import Store
from ductile.store.postgres.store import open_postgres_store
from ductile.store.sqlite.connection import open_writer
from ductile.store.sqlite.migrate import migrate
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store

#: Rules that compare rows which are kept for different times.
_BROKEN_BY_RETENTION = (
    "every transition is in the ledger",
    "an execution that ended has its row in the log",
    "deliveries of a job are numbered",
)

LEASE = timedelta(minutes=1)
ROOMY = Caps(workers=1000)
POLICY = some_policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """A database that must keep the contract."""

    name: str
    open: Callable[[Path, Clock, int], Awaitable[Store]]
    #: Returns the violated rules for rows of a store at rest.
    violations: Callable[[Path], list[str]]
    #: Runs a statement on a store at rest, without its verbs.
    run_sql: Callable[[Path, str], list[tuple[Any, ...]]]


@cache
def _migrated_file() -> bytes:
    """Return the content of a migrated file without rows and without the id of a store."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "state.db"
        connection = open_writer(path)
        migrate(connection, path)
        connection.close()
        return path.read_bytes()


def open_sqlite(path: Path, *, clock: Callable[[], datetime], rng: Random) -> SqliteStore:
    """Open the store as the daemon does. A new store is a copy of a migrated file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_migrated_file())
        path.chmod(0o600)
    return open_sqlite_store(path, clock=clock, rng=rng)


async def _open_sqlite(directory: Path, clock: Clock, seed: int) -> Store:
    return open_sqlite(directory / "state.db", clock=clock, rng=some_rng(seed))


def _sqlite_violations(directory: Path) -> list[str]:
    return violations(directory / "state.db")


def _run_in_sqlite(directory: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(directory / "state.db"))
    try:
        return list(connection.execute(statement).fetchall())
    finally:
        connection.close()


def _run_in_postgres(directory: Path, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(store_url(directory), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def _open_postgres(directory: Path, clock: Clock, seed: int) -> Store:
    return open_postgres_store(store_url(directory), clock=clock, rng=some_rng(seed))


SQLITE = StoreKind(name="sqlite", open=_open_sqlite, violations=_sqlite_violations, run_sql=_run_in_sqlite)
POSTGRES = StoreKind(name="postgres", open=_open_postgres, violations=lambda _: [], run_sql=_run_in_postgres)
STORE_KINDS = (SQLITE, POSTGRES)


@dataclass(slots=True)
class StoreFactory:
    """Opens the store under test any number of times on the same data, and closes it."""

    kind: StoreKind
    directory: Path
    clock: Clock = field(default_factory=Clock)
    opened: list[Store] = field(default_factory=list)

    async def open(self) -> Store:
        store = await self.kind.open(self.directory, self.clock, len(self.opened) + 1)
        self.opened.append(store)
        return store

    async def reopen(self) -> Store:
        """Close the store and open it again, as after a restart."""
        await self.close()
        return await self.open()

    async def close(self) -> None:
        for store in self.opened:
            await store.close()
        self.opened.clear()

    async def _own_violations(self) -> dict[str, tuple[str, ...]]:
        store = await self.open()
        violations = {name: await store.find_violations(name, limit=5) for name in Invariant}
        return {name: ids for name, ids in violations.items() if ids}

    async def check_invariants(self, *, pruned: bool = False) -> None:
        """Close the store and check its rows. With `pruned`, rules that retention breaks are left out.

        The store's own checks must find nothing in either case.
        """
        own = await self._own_violations()
        await self.close()
        assert own == {}
        broken = self.kind.violations(self.directory)
        if pruned:
            broken = [rule for rule in broken if not rule.startswith(_BROKEN_BY_RETENTION)]
        assert broken == []


async def submit(store: Store, *jobs: NewJob, **submission: Any) -> tuple[EnqueueResult, ...]:
    return await store.enqueue(Submission(jobs=jobs, **submission))


async def accept(store: Store, job: NewJob) -> str:
    """Enqueue a job that must be accepted, and return its id."""
    (result,) = await submit(store, job)
    assert isinstance(result, Accepted), result
    return result.job_id


async def claim_all(
    store: Store, *, caps: Caps = ROOMY, limit: int = 1000, owner: str = "me"
) -> list[ClaimedJob]:
    return list(await store.claim(owner=owner, caps=caps, limit=limit, lease=LEASE))


async def claim_one(store: Store) -> Job:
    """Claim the next job; the test fails if there is none."""
    (claim,) = await claim_all(store, limit=1)
    return claim.job


async def settle(store: Store, job: Job, outcome: Outcome, policy: Policy = POLICY) -> Settled:
    """Settle a job that must still be running with this execution."""
    result = await store.settle(job, outcome, policy)
    assert isinstance(result, Settled), result
    return result


async def run_next(store: Store, outcome: Outcome, policy: Policy = POLICY) -> Settled:
    return await settle(store, await claim_one(store), outcome, policy)


async def stored(store: Store, job_id: str) -> Job:
    job = await store.get_job(job_id)
    assert job is not None
    return job


async def whole_ledger(store: Store, *, after: int = 0) -> list[LedgerRow]:
    return list(await store.list_ledger(after=after, limit=100_000))


async def path_of(store: Store, job_id: str) -> list[str]:
    """Return the transitions of a job as `from>to:reason`."""
    return [
        f"{row.transition.from_status or ''}>{row.transition.to_status}:{row.transition.reason}"
        for row in await store.list_transitions(job_id)
    ]
