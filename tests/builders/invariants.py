"""Invariants of a store file at rest, however the process that wrote it ended."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import apsw

from ductile.core.jobs.model import EDGES
from ductile.store.model.maintenance import Invariant
from ductile.store.named_sql import load_queries
from ductile.store.sqlite.session import SqliteSession
from ductile.store.verbs import maintenance

#: Each query returns one row for each violation.
_RULES = {
    "a job's last transition tells its status": """
        SELECT id, status FROM job_queue WHERE status IS NOT
          (SELECT to_status FROM job_transitions WHERE job_id = job_queue.id ORDER BY seq DESC LIMIT 1)""",
    "transitions form a chain": """
        SELECT job_id, before, from_status FROM (
          SELECT job_id, from_status, lag(to_status) OVER (PARTITION BY job_id ORDER BY seq) AS before
          FROM job_transitions
        ) WHERE from_status IS NOT before""",
    "every transition is in the ledger": """
        SELECT job_transitions.job_id, job_transitions.seq FROM job_transitions
        LEFT JOIN ledger ON ledger.seq = job_transitions.seq AND ledger.kind = 'job.transition'
        WHERE ledger.seq IS NULL""",
    "an execution that ended has its row in the log, and one that runs has none": """
        SELECT job_transitions.job_id, job_transitions.execution FROM job_transitions
        JOIN job_queue ON job_queue.id = job_transitions.job_id
        WHERE job_transitions.to_status = 'running'
          AND (job_queue.status <> 'running' OR job_queue.execution <> job_transitions.execution)
          IS NOT EXISTS (
            SELECT 1 FROM job_log WHERE job_log.job_id = job_transitions.job_id
              AND job_log.execution = job_transitions.execution AND job_log.status <> 'superseded'
          )""",
    "executions are counted by claims": """
        SELECT id, execution FROM job_queue WHERE execution IS NOT (
          SELECT count(*) FROM job_transitions WHERE job_id = job_queue.id AND to_status = 'running'
        )""",
    "an attempt is never beyond the last": "SELECT id FROM job_queue WHERE attempt > max_attempts",
    "no child exists twice": """
        SELECT origin_job_id, origin_execution, origin_event_index, origin_target FROM job_queue
        WHERE origin_job_id IS NOT NULL GROUP BY 1, 2, 3, 4 HAVING count(*) > 1""",
    "what an event started has a producer that succeeded": """
        SELECT child.id FROM job_queue AS child JOIN job_queue AS parent ON parent.id = child.origin_job_id
        WHERE parent.status <> 'succeeded' AND child.submitted_by = 'route' AND child.run_id IS NULL""",
    "a step's producer has ended, or is its run": """
        SELECT child.id FROM job_queue AS child JOIN job_queue AS parent ON parent.id = child.origin_job_id
        WHERE child.run_id IS NOT NULL AND parent.id <> child.run_id
          AND (SELECT count(*) FROM job_transitions
               WHERE job_id = parent.id AND to_status IN ('succeeded', 'failed', 'dead')) = 0""",
    "a run lives while a step of it does, and no longer": """
        SELECT id, status FROM job_queue AS run WHERE plugin = 'pipeline'
          AND (status IN ('queued', 'running')) IS NOT EXISTS (
            SELECT 1 FROM job_queue AS step
            WHERE step.run_id = run.id AND step.status IN ('queued', 'running')
          )""",
    "every step is a member of its run": """
        SELECT step.id FROM job_queue AS step JOIN job_queue AS run ON run.id = step.run_id
        LEFT JOIN run_members ON run_members.job_id = step.id AND run_members.run_id = step.run_id
        WHERE run_members.job_id IS NULL""",
    "what is live in a scope are its live steps and the splits that its lines are in": """
        SELECT id, live FROM run_scopes AS scope WHERE live IS NOT (
          SELECT count(*) FROM run_members JOIN job_queue ON job_queue.id = run_members.job_id
          WHERE run_members.scope_id = scope.id AND job_queue.status IN ('queued', 'running')
        ) + (SELECT count(*) FROM run_scopes AS inner_scope
             WHERE inner_scope.parent_id = scope.id AND inner_scope.live > 0)""",
    "a scope is open as long as something in it is live, unless its join ran before": """
        SELECT id, state, live FROM run_scopes
        WHERE split_path IS NOT NULL AND (state = 'open' AND live = 0 OR state = 'broken' AND live > 0)""",
    "a line ends once": """
        SELECT run_leaves.job_id FROM run_leaves JOIN run_members USING (scope_id, branch, line_order)
        JOIN job_queue ON job_queue.id = run_members.job_id
        WHERE job_queue.status IN ('queued', 'running')""",
    "an event that is referred to exists": """
        SELECT id FROM job_queue
        WHERE source_event_id IS NOT NULL AND source_event_id NOT IN (SELECT id FROM events)""",
    "no key has two holders": """
        SELECT dedupe_key FROM job_queue
        WHERE dedupe_key IS NOT NULL AND (status = 'running' OR (status = 'queued' AND hold IS NULL))
        GROUP BY dedupe_key, plugin, command HAVING count(*) > 1""",
    "no job waits for a key without a holder": """
        SELECT id FROM job_queue AS waiting WHERE hold = 'key' AND NOT EXISTS (
          SELECT 1 FROM job_queue AS holder
          WHERE holder.dedupe_key = waiting.dedupe_key AND holder.plugin = waiting.plugin
            AND holder.command = waiting.command
            AND (holder.status = 'running' OR (holder.status = 'queued' AND holder.hold IS NULL))
        )""",
    "no job waits for one that has ended": """
        SELECT id FROM job_queue AS waiting WHERE hold = 'predecessor' AND NOT EXISTS (
          SELECT 1 FROM job_queue AS other
          WHERE other.id = waiting.after_job_id AND other.status IN ('queued', 'running')
        )""",
    "at most one suspect of a crash is active": """
        SELECT count(*) FROM job_queue
        WHERE suspect = 1 AND (status = 'running' OR (status = 'queued' AND hold IS NULL))
        HAVING count(*) > 1""",
    "a held suspect has an active one before it": """
        SELECT id FROM job_queue WHERE hold = 'suspect' AND NOT EXISTS (
          SELECT 1 FROM job_queue AS other
          WHERE other.suspect = 1
            AND (other.status = 'running' OR (other.status = 'queued' AND other.hold IS NULL))
        )""",
    "instants in the ledger never go back": """
        SELECT seq FROM (SELECT seq, at, lag(at) OVER (ORDER BY seq) AS before FROM ledger)
        WHERE at < before""",
    "deliveries of a job are numbered without gaps": """
        SELECT job_id FROM state_deliveries GROUP BY job_id
        HAVING max(sequence) <> count(DISTINCT sequence)""",
}


def violations(path: Path) -> list[str]:
    """Return every rule that the file breaks, with the first rows that break it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        broken = [
            f"{rule}: {rows[:3]}"
            for rule, sql in _RULES.items()
            if (rows := connection.execute(sql).fetchall())
        ]
        pairs = connection.execute("SELECT DISTINCT from_status, to_status FROM job_transitions").fetchall()
        broken += [f"not an edge: {pair}" for pair in pairs if pair not in EDGES]
        broken += _own_rules(connection)
        if (integrity := connection.pragma("integrity_check")) != "ok":
            broken.append(f"the file is damaged: {integrity}")
    finally:
        connection.close()
    return broken


def _own_rules(connection: apsw.Connection) -> list[str]:
    """Return the findings of `system selfcheck`. The rules above are independent of it."""
    queries = load_queries("ductile.store.sqlite")
    session = SqliteSession(connection, queries, Random(0), datetime.now(UTC))
    return [
        f"{rule}: {ids}" for rule in Invariant if (ids := maintenance.find_violations(session, rule, limit=3))
    ]
