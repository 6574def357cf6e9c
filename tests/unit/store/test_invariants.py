"""Every invariant holds for a working store and is broken by damage of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from builders.jobs import Clock, a_new_job, a_route, emitted, failed, ok, some_policy, some_rng
from builders.pipelines import begin_run, split, steps_policy, uses
from builders.stores import accept, claim_all, claim_one, open_sqlite, run_next, settle
from ductile.core.jobs.model import StateSubscription, SubmittedBy
from ductile.store.model.maintenance import Invariant
from ductile.store.sqlite.store import SqliteStore

FLOW = steps_policy(split("both", uses("left"), uses("right", "q")), uses("last", "r"))

#: Damage of each kind to the store below. Constraints that would prevent it are switched off.
DAMAGE: dict[Invariant, str] = {
    Invariant.TRANSITIONS_CHAIN: """
        UPDATE job_transitions SET from_status = 'running'
        WHERE from_status = 'queued' AND to_status = 'running'""",
    Invariant.STATUS_IS_LAST_TRANSITION: "UPDATE job_queue SET status = 'dead' WHERE status = 'succeeded'",
    Invariant.EDGES_ARE_KNOWN: """
        UPDATE job_transitions SET to_status = 'succeeded'
        WHERE from_status = 'queued' AND to_status = 'running'""",
    Invariant.EXECUTIONS_ARE_CLAIMS: "UPDATE job_queue SET execution = execution + 1",
    Invariant.ENDED_EXECUTIONS_ARE_LOGGED: "DELETE FROM job_log",
    Invariant.LIVE_EXECUTIONS_ARE_NOT_LOGGED: """
        UPDATE job_log
        SET (job_id, execution) = (SELECT id, execution FROM job_queue WHERE status = 'running')
        WHERE seq = (SELECT min(seq) FROM job_log)""",
    Invariant.ATTEMPTS_WITHIN_LIMIT: "UPDATE job_queue SET attempt = max_attempts + 1",
    Invariant.CHILDREN_ARE_UNIQUE: """
        UPDATE job_queue
        SET origin_job_id = 'x', origin_execution = 1, origin_event_index = 0, origin_target = 't'""",
    Invariant.CHILDREN_FOLLOW_SUCCESS: """
        UPDATE job_queue SET status = 'failed'
        WHERE id IN (SELECT origin_job_id FROM job_queue) AND plugin = 'source'""",
    Invariant.EVENTS_EXIST: "DELETE FROM events",
    Invariant.CONTEXTS_EXIST: "UPDATE job_queue SET event_context_id = 'gone'",
    Invariant.KEY_HAS_ONE_HOLDER: "UPDATE job_queue SET hold = NULL WHERE hold = 'key'",
    Invariant.KEY_FOLLOWERS_HAVE_A_HOLDER: "UPDATE job_queue SET dedupe_key = 'else' WHERE hold = 'key'",
    Invariant.PREDECESSORS_ARE_LIVE: """
        UPDATE job_queue SET after_job_id = (SELECT id FROM job_queue WHERE status = 'succeeded')
        WHERE hold = 'predecessor'""",
    Invariant.ONE_SUSPECT_IS_ACTIVE: "UPDATE job_queue SET suspect = 1",
    Invariant.HELD_SUSPECTS_HAVE_AN_ACTIVE_ONE: """
        UPDATE job_queue SET hold = 'suspect', suspect = 1 WHERE hold = 'predecessor'""",
    Invariant.LIVE_RUNS_HAVE_LIVE_STEPS: "UPDATE job_queue SET run_id = 'else' WHERE run_id IS NOT NULL",
    Invariant.ENDED_RUNS_HAVE_NO_LIVE_STEPS: """
        UPDATE job_queue SET status = 'failed', completed_at = created_at WHERE plugin = 'pipeline'""",
    Invariant.RUNS_ARE_WHOLE: "DELETE FROM pipeline_versions",
    Invariant.SCOPES_COUNT_LIVE_LINES: "UPDATE run_scopes SET live = live + 1",
    Invariant.RUN_SIZES_ARE_RIGHT: "UPDATE pipeline_runs SET jobs = jobs + 1",
    Invariant.HALF_OPEN_BREAKERS_HAVE_A_PROBE: """
        INSERT INTO circuit_breakers (plugin, command, state, probe_job_id, updated_at)
        VALUES ('p', 'poll', 'half_open', (SELECT id FROM job_queue WHERE status = 'succeeded'), '')""",
    Invariant.DELIVERIES_ARE_COUNTED: "UPDATE job_queue SET callback_sequence = 0",
    Invariant.LEDGER_NEVER_GOES_BACK: "UPDATE ledger SET at = '2000' WHERE seq > 5",
    Invariant.TRANSITIONS_ARE_IN_THE_LEDGER: "UPDATE ledger SET kind = 'core.switch' WHERE seq > 1",
}


async def a_busy_store(path: Path) -> SqliteStore:
    """Return a store with a parent and its child, a failed job, a run inside a split, and all kinds of
    holds.
    """
    clock = Clock()
    store = open_sqlite(path, clock=clock, rng=some_rng())
    callback = StateSubscription(url="https://example.com/hook")
    await accept(store, a_new_job("source", callback=callback))
    routed = some_policy(a_route())
    (claim,) = await claim_all(store)
    clock.advance(seconds=1)
    await settle(store, claim.job, ok(emitted()), routed)
    await run_next(store, ok())
    await accept(store, a_new_job(submitted_by=SubmittedBy.SCHEDULER))
    clock.advance(seconds=1)
    await run_next(store, failed(permanent=True))
    await accept(store, a_new_job("other"))
    running = await claim_one(store)
    await accept(store, a_new_job("sink", dedupe_key="k"))
    await accept(store, a_new_job("sink", dedupe_key="k"))
    await accept(store, a_new_job("sink", after_job_id=running.id))
    await begin_run(store, FLOW)
    return store


async def broken_invariants(store: SqliteStore) -> dict[Invariant, tuple[str, ...]]:
    violations = {invariant: await store.find_violations(invariant, limit=5) for invariant in Invariant}
    return {invariant: ids for invariant, ids in violations.items() if ids}


@contextmanager
def unconstrained_connection(path: Path) -> Iterator[apsw.Connection]:
    """Yield a connection that ignores every constraint."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA ignore_check_constraints = ON").fetchall()
    for index in ("job_queue_key_holder", "job_queue_origin"):
        connection.execute(f"DROP INDEX {index}").fetchall()
    try:
        yield connection
    finally:
        connection.close()


def test_every_invariant_is_documented_and_tried() -> None:
    assert set(Invariant) == set(DAMAGE)
    assert all(rule.description for rule in Invariant)


async def test_a_sound_store_breaks_none(tmp_path: Path) -> None:
    """The store has jobs in every status."""
    store = await a_busy_store(tmp_path / "state.db")
    assert await broken_invariants(store) == {}
    assert (await store.stats()).damage == ()
    await store.close()


@pytest.mark.parametrize("invariant", DAMAGE)
async def test_damage_is_found(tmp_path: Path, invariant: Invariant) -> None:
    """Each invariant can fail, and names the rows that break it."""
    path = tmp_path / "state.db"
    store = await a_busy_store(path)
    with unconstrained_connection(path) as connection:
        connection.execute(DAMAGE[invariant]).fetchall()
        assert connection.changes(), "the damage did no damage"
    assert (await broken_invariants(store)).get(invariant)
    await store.close()


async def test_no_more_offenders_are_named_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await a_busy_store(path)
    with unconstrained_connection(path) as connection:
        connection.execute(DAMAGE[Invariant.ATTEMPTS_WITHIN_LIMIT]).fetchall()
    assert len(await store.find_violations(Invariant.ATTEMPTS_WITHIN_LIMIT, limit=2)) == 2
    await store.close()
