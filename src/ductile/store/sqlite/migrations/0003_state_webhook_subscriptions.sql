-- State webhooks: several URLs for one job, chosen states, and receivers that are gone.
ALTER TABLE job_queue ADD COLUMN callback_events TEXT;  -- the chosen states, with commas between; null: all
ALTER TABLE job_queue ADD COLUMN callback_at TEXT;      -- the instant of the latest event
-- URLs that duplicates of a job brought, beside the one in its own row.
CREATE TABLE state_subscriptions (
  job_id TEXT NOT NULL,
  url    TEXT NOT NULL,
  events TEXT,                                     -- as callback_events
  PRIMARY KEY (job_id, url)
) STRICT, WITHOUT ROWID;
-- Made anew, because SQLite cannot change a constraint: an event has a row for each URL, and may be gone.
CREATE TABLE state_deliveries_3 (
  seq             INTEGER PRIMARY KEY AUTOINCREMENT,
  id              TEXT NOT NULL UNIQUE,            -- sent as webhook-id, the same in every attempt
  job_id          TEXT NOT NULL,
  sequence        INTEGER NOT NULL,                -- of this job's events, from 1
  state           TEXT NOT NULL CHECK (state IN ('queued', 'loading', 'working', 'done', 'failed')),
  url             TEXT NOT NULL,
  receiver        TEXT NOT NULL,                   -- scheme, host and port
  body            TEXT NOT NULL,                   -- frozen when it was made
  status          TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'dropped', 'gone')),
  attempts        INTEGER NOT NULL DEFAULT 0,      -- counted before sending, from 0 again when it is re-sent
  tried           INTEGER NOT NULL DEFAULT 0 CHECK (tried IN (0, 1)),  -- later events wait until it is
  next_attempt_at TEXT,
  retry_wait      REAL,                            -- seconds; what next_attempt_at was drawn from
  last_status     INTEGER,
  last_error      TEXT,
  created_at      TEXT NOT NULL,
  completed_at    TEXT,
  UNIQUE (job_id, url, sequence),
  CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
  CHECK ((status = 'pending') = (completed_at IS NULL))
) STRICT;
INSERT INTO state_deliveries_3 (
  seq, id, job_id, sequence, state, url, receiver, body, status, attempts, tried, next_attempt_at, retry_wait,
  last_status, last_error, created_at, completed_at
) SELECT
  seq, id, job_id, sequence, state, url, receiver, body, status, attempts, tried, next_attempt_at, retry_wait,
  last_status, last_error, created_at, completed_at
FROM state_deliveries;
-- Numbers go on where they were, also if the newest rows have been removed.
DELETE FROM sqlite_sequence WHERE name = 'state_deliveries_3';
INSERT INTO sqlite_sequence (name, seq) SELECT 'state_deliveries_3', seq FROM sqlite_sequence WHERE name = 'state_deliveries';
DROP TABLE state_deliveries;
ALTER TABLE state_deliveries_3 RENAME TO state_deliveries;
CREATE INDEX state_deliveries_due ON state_deliveries (next_attempt_at) WHERE status = 'pending';
CREATE INDEX state_deliveries_of_receiver ON state_deliveries (receiver, next_attempt_at) WHERE status = 'pending';
CREATE INDEX state_deliveries_completed ON state_deliveries (completed_at) WHERE completed_at IS NOT NULL;
-- The plugins of a configuration: {name: {version, fingerprint, config}}, so that `job explain` can tell which of
-- them changed between two runs. Null in rows that were written before.
ALTER TABLE config_snapshots ADD COLUMN plugins TEXT;
-- Names as documented for readers of the file with SQL.
ALTER TABLE job_log RENAME COLUMN error TO last_error;
ALTER TABLE plugin_facts RENAME COLUMN seq TO id;
ALTER TABLE plugin_facts ADD COLUMN seq INTEGER GENERATED ALWAYS AS (id) VIRTUAL;
ALTER TABLE circuit_breaker_transitions RENAME COLUMN seq TO id;

-- A store that was made while version 2 was still being written lacks a part of it.
DROP INDEX IF EXISTS job_queue_ended;
CREATE INDEX IF NOT EXISTS job_queue_prunable ON job_queue (status, completed_at)
  WHERE completed_at IS NOT NULL AND run_id IS NULL;
UPDATE job_queue SET run_id = NULL
WHERE run_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM job_queue AS run WHERE run.id = job_queue.run_id);

-- Explicit keys are one namespace: those of events join those of callers. A live job stays as it is where a caller's
-- job with the same key is live too, since one job at a time may hold a key; that other one answers for it.
UPDATE job_queue SET dedupe_key = 'key:' || substr(dedupe_key, 7) WHERE seq IN (
  SELECT candidate.seq FROM job_queue AS candidate
  WHERE candidate.dedupe_key GLOB 'event:*' AND (candidate.completed_at IS NOT NULL OR NOT EXISTS (
    SELECT 1 FROM job_queue AS other
    WHERE other.dedupe_key = 'key:' || substr(candidate.dedupe_key, 7) AND other.plugin = candidate.plugin
      AND other.command = candidate.command AND other.completed_at IS NULL
  ))
);
-- The occurrence of a schedule that waits for the poll guard: what it was due for, and when it was to start.
ALTER TABLE schedule_entries ADD COLUMN deferred_nominal_at TEXT;
ALTER TABLE schedule_entries ADD COLUMN deferred_due_at TEXT;
