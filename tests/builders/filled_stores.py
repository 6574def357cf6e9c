"""A store with rows in every table, among them text that databases like to change."""

from __future__ import annotations

from typing import Any

from builders.jobs import a_new_job, a_route, emitted, failed, ok, some_policy
from builders.pipelines import begin_run, claims_by_step, split, steps_policy, uses
from builders.stores import StoreFactory, accept, claim_all, run_next, settle, stored, submit, whole_ledger
from ductile.core.jobs.model import StateSubscription
from ductile.core.policy import FactRule
from ductile.store.model.jobs import InitKey
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.model.records import JobFilter, LogFilter
from ductile.store.port import Store

#: NUL, the noncharacter that escapes it on PostgreSQL, separators of COPY, and letters of several lengths.
ODD_TEXT = "a\x00b \ufdd0 \ufdd00 \ufdd01 \\N \\. tab\t line\n return\r 'quote\" é 漢 😀 \u2028 \x7f"

#: Rows that no verb above writes. The next number of a fact is above that of every row.
_ROWS = """
INSERT INTO schedule_entries (plugin, schedule_id, fingerprint, defined_at, next_at, updated_at)
VALUES ('source', 'hourly', 'f', '2026-02-08T10:00:00.000000Z', '2026-02-08T11:00:00.000000Z', '2026');
INSERT INTO occurrences (plugin, schedule_id, nominal_at, until_at, outcome, reason, late_ms, created_at)
VALUES ('source', 'hourly', '2026-02-08T09', '2026-02-08T09', 'skipped', 'running', 12, '2026');
INSERT INTO circuit_breakers (plugin, command, state, failure_count, updated_at)
VALUES ('source', 'poll', 'open', 3, '2026-02-08T10:00:00.000000Z');
INSERT INTO circuit_breaker_transitions (plugin, command, to_state, failure_count, reason, created_at)
VALUES ('source', 'poll', 'open', 3, 'failure_threshold', '2026-02-08T10:00:00.000000Z');
INSERT INTO failure_groups VALUES ('source', 'poll', 'plugin_error', 2, '2026', '2026', '[]');
INSERT INTO failure_notices (id, sent_at, window_seconds) VALUES (1, '2026', 0.1);
INSERT INTO state_subscriptions (job_id, url) VALUES ('gone', 'https://second.invalid/');
INSERT INTO plugin_facts (id, plugin_name, fact_type, fact_json, created_at)
VALUES (900, 'x', 'y', '{}', '2026');
DELETE FROM plugin_facts WHERE id = 900;
"""


async def fill(factory: StoreFactory) -> None:
    """Fill a store of SQLite through its verbs and with a few rows of SQL, and close it."""
    store = await factory.open()
    policy = some_policy(a_route(), facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    reported = a_new_job("source", "poll", callback=StateSubscription(url="http://receiver.invalid/"))
    await accept(store, reported)
    await run_next(
        store, ok(emitted(payload={"text": ODD_TEXT}), state={"n": 2**70, "text": ODD_TEXT}), policy
    )
    await claim_all(store)
    await accept(store, a_new_job(payload={"deep": [1.5, None, ODD_TEXT]}, dedupe_key="key:a"))
    await run_next(store, failed(error=ODD_TEXT, stdout=f"needle {ODD_TEXT}", stderr="é 漢 😀"), policy)
    await submit(store, a_new_job(dedupe_key="key:a"))
    await begin_run_with_split(store)
    await store.begin_init(
        InitKey(plugin="source", fingerprint="f", config_hash="c"), a_new_job("source", "init")
    )
    await store.record_config("h", ConfigOrigin.START, {"a": ODD_TEXT})
    await store.index_log()
    await factory.close()
    factory.kind.run_sql(factory.directory, _ROWS)


async def begin_run_with_split(store: Store) -> None:
    """Begin a run whose first branch has ended and whose second branch runs."""
    policy = steps_policy(uses("a", baggage={"x": "payload.x"}), split("s", uses("b"), uses("c")), uses("d"))
    await begin_run(store, policy, {"x": 1})
    for _ in range(2):
        claims = await claims_by_step(store)
        await settle(store, claims[min(claims)].job, ok(result={"said": "done"}), policy)


async def read_everything(store: Store) -> list[Any]:
    """Return everything that the reading verbs return."""
    jobs = (await store.list_jobs(JobFilter(), limit=200)).rows
    return [
        store.store_id,
        [await stored(store, job.id) for job in jobs],
        [await store.list_transitions(job.id) for job in jobs],
        [await store.list_executions(job.id) for job in jobs],
        [await store.get_event(job.source_event_id) for job in jobs if job.source_event_id],
        [await store.get_run(job.id) for job in jobs],
        (await store.list_log(LogFilter(query="needle"), limit=9)).rows,
        await store.plugin_state("source"),
        (await store.list_facts("source", limit=9)).rows,
        (await store.list_deliveries(limit=9)).rows,
        await store.list_breakers(),
        await store.config_history(limit=9),
        await store.queue_counts(),
        await whole_ledger(store),
    ]
