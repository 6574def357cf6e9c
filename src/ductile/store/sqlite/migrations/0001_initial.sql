-- The whole store from the first day on, SQLite dialect.
--
-- Conventions: instants are fixed-width UTC text, so that text order is time order; JSON is text;
-- rows that are listed or claimed in order have a `seq`, because clocks repeat and sequences do not.
-- What every job writes is CHECKed with OR and CASE: for an IN list SQLite builds a table at each statement.
-- The three numbered tables that every job writes to do without AUTOINCREMENT, which costs a write of its own for
-- each row; their numbers never come back all the same, since retention leaves the newest row alone.
-- No foreign keys between tables that are pruned at different times: a log row outlives its queue row.

CREATE TABLE store_meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------------------------------- the queue

CREATE TABLE job_queue (
  seq                 INTEGER PRIMARY KEY,
  id                  TEXT NOT NULL UNIQUE,
  plugin              TEXT NOT NULL,
  command             TEXT NOT NULL,
  payload             TEXT,                        -- null: the payload is its event's
  status              TEXT NOT NULL CHECK (
                        status = 'queued' OR status = 'running' OR status = 'succeeded' OR status = 'failed'
                        OR status = 'dead'),
  reason              TEXT NOT NULL,
  hold                TEXT CHECK (
                        hold = 'retry' OR hold = 'key' OR hold = 'predecessor' OR hold = 'suspect' OR hold = 'run'),
  attempt             INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1),
  max_attempts        INTEGER NOT NULL CHECK (max_attempts >= 1),
  execution           INTEGER NOT NULL DEFAULT 0,  -- counts claims and is never reset: the fence
  submitted_by        TEXT NOT NULL CHECK (
                        submitted_by = 'scheduler' OR submitted_by = 'webhook' OR submitted_by = 'route'
                        OR submitted_by = 'cli' OR submitted_by = 'api' OR submitted_by = 'hook'
                        OR submitted_by = 'mcp' OR submitted_by = 'core'),
  submitted_detail    TEXT,
  dedupe_key          TEXT,
  created_at          TEXT NOT NULL,
  started_at          TEXT,
  completed_at        TEXT,
  next_retry_at       TEXT,
  retry_wait          REAL,                        -- seconds; what next_retry_at was drawn from
  last_error          TEXT,
  parent_job_id       TEXT,
  source_event_id     TEXT,
  event_context_id    TEXT,
  run_id              TEXT,
  step_path           TEXT,
  hops                INTEGER NOT NULL DEFAULT 0,
  trace_id            TEXT,
  origin_job_id       TEXT,
  origin_execution    INTEGER,
  origin_event_index  INTEGER,
  origin_target       TEXT,
  after_job_id        TEXT,
  cancel_requested_at TEXT,
  owner               TEXT,
  lease_until         TEXT,
  claim_seq           INTEGER NOT NULL DEFAULT 0,
  suspect             INTEGER NOT NULL DEFAULT 0 CHECK (suspect = 0 OR suspect = 1),
  callback_url        TEXT,
  callback_model      TEXT,
  callback_state      TEXT,                        -- the last state that was told
  callback_sequence   INTEGER NOT NULL DEFAULT 0,
  artifacts           TEXT,
  CHECK (hold IS NULL OR status = 'queued' OR (hold = 'run' AND status = 'running')),
  CHECK ((hold IS 'retry') = (next_retry_at IS NOT NULL)),
  CHECK ((completed_at IS NOT NULL) = (status = 'succeeded' OR status = 'failed' OR status = 'dead')),
  CHECK (status <> 'running' OR started_at IS NOT NULL)
) STRICT;

-- Claiming looks at the head of each plugin here, never at rows that cannot start.
CREATE INDEX job_queue_ready ON job_queue (plugin, seq) WHERE status = 'queued' AND hold IS NULL;
CREATE INDEX job_queue_waiting ON job_queue (next_retry_at) WHERE hold = 'retry';
-- One job of a key is ready or running at a time; the index is the guard, not only the lookup. Runs are left
-- out: the first steps of the later run wait for the earlier run instead.
CREATE UNIQUE INDEX job_queue_key_holder ON job_queue (dedupe_key, plugin, command)
  WHERE dedupe_key IS NOT NULL AND hold IS NULL AND (status = 'running' OR status = 'queued');
CREATE INDEX job_queue_key_followers ON job_queue (dedupe_key, plugin, command, seq) WHERE hold = 'key';
CREATE INDEX job_queue_after ON job_queue (after_job_id) WHERE hold = 'predecessor';
CREATE INDEX job_queue_suspects ON job_queue (seq) WHERE suspect = 1;
CREATE INDEX job_queue_dedupe ON job_queue (dedupe_key, plugin, command, status, completed_at)
  WHERE dedupe_key IS NOT NULL;
CREATE UNIQUE INDEX job_queue_origin
  ON job_queue (origin_job_id, origin_execution, origin_event_index, origin_target)
  WHERE origin_job_id IS NOT NULL;
CREATE INDEX job_queue_parent ON job_queue (parent_job_id, seq) WHERE parent_job_id IS NOT NULL;
CREATE INDEX job_queue_run ON job_queue (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX job_queue_event ON job_queue (source_event_id) WHERE source_event_id IS NOT NULL;
CREATE INDEX job_queue_context ON job_queue (event_context_id) WHERE event_context_id IS NOT NULL;
CREATE INDEX job_queue_by_plugin ON job_queue (plugin, seq);
-- Most rows have succeeded; a list or a count of any other status must not read through them.
CREATE INDEX job_queue_by_status ON job_queue (status, seq, plugin, command) WHERE status <> 'succeeded';
CREATE INDEX job_queue_ended ON job_queue (status, completed_at) WHERE completed_at IS NOT NULL;

-- Every edge that was taken; no other can be written down (ductile.core.jobs.EDGES). A job's row changes its
-- status only together with such a row, and only from the status that this names.
CREATE TABLE job_transitions (
  job_id      TEXT NOT NULL,
  seq         INTEGER NOT NULL,                    -- that of its ledger entry
  execution   INTEGER NOT NULL,
  from_status TEXT,
  to_status   TEXT NOT NULL,
  reason      TEXT NOT NULL,
  at          TEXT NOT NULL,
  CHECK (CASE
    WHEN from_status IS NULL THEN to_status = 'queued'
    WHEN from_status = 'queued' THEN to_status = 'running' OR to_status = 'failed' OR to_status = 'dead'
    WHEN from_status = 'running' THEN to_status = 'succeeded' OR to_status = 'failed' OR to_status = 'timed_out'
      OR to_status = 'queued' OR to_status = 'dead'
    WHEN from_status = 'failed' THEN to_status = 'queued' OR to_status = 'dead'
    WHEN from_status = 'timed_out' THEN to_status = 'queued' OR to_status = 'dead'
    WHEN from_status = 'dead' THEN to_status = 'queued'
    ELSE FALSE
  END),
  PRIMARY KEY (job_id, seq)
) STRICT, WITHOUT ROWID;

-- One row for each execution, with all that it left behind.
CREATE TABLE job_log (
  seq              INTEGER PRIMARY KEY,
  id               TEXT GENERATED ALWAYS AS
                     (job_id || '-' || execution || CASE status WHEN 'superseded' THEN '-late' ELSE '' END) VIRTUAL,
  job_id           TEXT NOT NULL,
  execution        INTEGER NOT NULL,
  attempt          INTEGER NOT NULL,
  max_attempts     INTEGER NOT NULL,
  plugin           TEXT NOT NULL,
  command          TEXT NOT NULL,
  status           TEXT NOT NULL CHECK (
                     status = 'succeeded' OR status = 'failed' OR status = 'timed_out' OR status = 'cancelled'
                     OR status = 'interrupted' OR status = 'orphaned' OR status = 'superseded'),
  reason           TEXT NOT NULL,
  job_status       TEXT NOT NULL,                  -- what the job itself became
  job_reason       TEXT NOT NULL,
  result           TEXT,                           -- what it printed, verbatim
  stderr           TEXT,
  exit_code        INTEGER,
  signal           INTEGER,
  error            TEXT,
  duration_ms      REAL NOT NULL DEFAULT 0,
  submitted_by     TEXT NOT NULL,
  submitted_detail TEXT,
  dedupe_key       TEXT,
  created_at       TEXT NOT NULL,
  started_at       TEXT,
  completed_at     TEXT NOT NULL,
  parent_job_id    TEXT,
  source_event_id  TEXT,
  event_context_id TEXT,
  run_id           TEXT,
  step_path        TEXT,
  trace_id         TEXT,
  artifacts        TEXT,
  payload          TEXT                            -- filled in when retention takes the queue row
) STRICT;
CREATE UNIQUE INDEX job_log_execution ON job_log (job_id, execution, (status = 'superseded'));
CREATE INDEX job_log_by_plugin ON job_log (plugin, seq);
CREATE INDEX job_log_failures ON job_log (status, seq) WHERE status <> 'succeeded';
CREATE INDEX job_log_parent ON job_log (parent_job_id, seq) WHERE parent_job_id IS NOT NULL;
CREATE INDEX job_log_run ON job_log (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX job_log_event ON job_log (source_event_id) WHERE source_event_id IS NOT NULL;
CREATE INDEX job_log_context ON job_log (event_context_id) WHERE event_context_id IS NOT NULL;

-- Full text over the log. It keeps no copy of the text, only what is needed to find it. Rows are indexed
-- in the background, in order; store_meta.searchable_until is the last one that has been.
CREATE VIRTUAL TABLE job_log_text USING fts5 (
  body, content = '', contentless_delete = 1, tokenize = 'unicode61'
);

-- ----------------------------------------------------------------------------- events, state, facts

CREATE TABLE events (
  id              TEXT PRIMARY KEY,
  type            TEXT NOT NULL,
  source          TEXT NOT NULL,
  payload         TEXT NOT NULL,                   -- stored once, however many jobs it starts
  headers         TEXT,
  dedupe_key      TEXT,
  producer_job_id TEXT,
  producer_index  INTEGER,
  created_at      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX events_created ON events (created_at);
CREATE INDEX events_producer ON events (producer_job_id, producer_index) WHERE producer_job_id IS NOT NULL;

CREATE TABLE plugin_facts (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,
  plugin_name TEXT NOT NULL,
  fact_type   TEXT NOT NULL,
  job_id      TEXT,
  execution   INTEGER,
  command     TEXT,
  fact_json   TEXT NOT NULL,
  created_at  TEXT NOT NULL
) STRICT;
CREATE INDEX plugin_facts_plugin ON plugin_facts (plugin_name, seq);

CREATE TABLE plugin_state (
  plugin_name TEXT PRIMARY KEY,
  state       TEXT NOT NULL DEFAULT '{}',
  claim_seq   INTEGER NOT NULL DEFAULT 0,          -- of the job that wrote it last
  updated_at  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What `init` came to, for each version of a plugin and its configuration.
CREATE TABLE plugin_inits (
  plugin      TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  config_hash TEXT NOT NULL,
  status      TEXT NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed')),
  tries       INTEGER NOT NULL DEFAULT 0,
  job_id      TEXT,
  error       TEXT,
  updated_at  TEXT NOT NULL,
  PRIMARY KEY (plugin, fingerprint, config_hash)
) STRICT, WITHOUT ROWID;

-- ------------------------------------------------------------------------------------ pipeline runs

CREATE TABLE pipeline_versions (
  fingerprint TEXT PRIMARY KEY,
  name        TEXT NOT NULL,
  graph       TEXT NOT NULL,
  created_at  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE pipeline_runs (
  run_id      TEXT PRIMARY KEY,                    -- the id of the run's own job
  pipeline    TEXT NOT NULL,
  fingerprint TEXT NOT NULL,                       -- of the graph it began with and keeps
  deadline_at TEXT,                                -- on_timeout: cancel
  jobs        INTEGER NOT NULL DEFAULT 0,
  created_at  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX pipeline_runs_deadline ON pipeline_runs (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX pipeline_runs_version ON pipeline_runs (fingerprint);

-- A scope is opened for the run and for each split that a token enters; at `live` 0 it is joined, or breaks.
CREATE TABLE run_scopes (
  id            TEXT PRIMARY KEY,
  run_id        TEXT NOT NULL,
  split_path    TEXT,                              -- null for the run itself
  parent_id     TEXT,                              -- with the next two: where the line goes on that entered
  parent_branch INTEGER,
  parent_order  TEXT,
  live          INTEGER NOT NULL CHECK (live >= 0),
  state         TEXT NOT NULL CHECK (state IN ('open', 'joined', 'broken')),
  entry_job_id  TEXT,
  context_id    TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX run_scopes_run ON run_scopes (run_id);
CREATE INDEX run_scopes_context ON run_scopes (context_id) WHERE context_id IS NOT NULL;

-- Where in its run each step is.
CREATE TABLE run_members (
  job_id     TEXT PRIMARY KEY,
  run_id     TEXT NOT NULL,
  scope_id   TEXT NOT NULL,
  branch     INTEGER NOT NULL,
  line_order TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX run_members_run ON run_members (run_id);

-- How each token ended: the input of the join, and of the end of the run.
CREATE TABLE run_leaves (
  scope_id   TEXT NOT NULL,
  branch     INTEGER NOT NULL,
  line_order TEXT NOT NULL,
  run_id     TEXT NOT NULL,
  position   INTEGER NOT NULL,                     -- of the step in the pipeline
  step_path  TEXT NOT NULL,
  status     TEXT NOT NULL CHECK (status IN ('succeeded', 'failed', 'skipped')),
  job_id     TEXT,
  event_id   TEXT,
  error      TEXT,
  PRIMARY KEY (scope_id, branch, line_order)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_leaves_run ON run_leaves (run_id);
CREATE INDEX run_leaves_event ON run_leaves (event_id) WHERE event_id IS NOT NULL;

CREATE TABLE event_context (
  id         TEXT PRIMARY KEY,
  parent_id  TEXT,
  run_id     TEXT,
  pipeline   TEXT,
  step_path  TEXT,
  baggage    TEXT NOT NULL,                        -- everything claimed so far, accumulated
  hops       INTEGER NOT NULL DEFAULT 0,
  created_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX event_context_run ON event_context (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX event_context_created ON event_context (created_at);

-- -------------------------------------------------------------------------- schedules and breakers

CREATE TABLE schedule_entries (
  plugin       TEXT NOT NULL,
  schedule_id  TEXT NOT NULL,
  fingerprint  TEXT NOT NULL,                      -- of its definition: an edited `at` fires again
  defined_at   TEXT NOT NULL,                      -- since when it is defined so: its history is held to this
  next_at      TEXT,                               -- when it starts, jitter included
  nominal_at   TEXT,                               -- what it is due for
  last_job_id  TEXT,
  last_fired_at TEXT,
  paused_at    TEXT,
  updated_at   TEXT NOT NULL,
  PRIMARY KEY (plugin, schedule_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_entries_due ON schedule_entries (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;

CREATE TABLE occurrences (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,
  plugin      TEXT NOT NULL,
  schedule_id TEXT NOT NULL,
  nominal_at  TEXT NOT NULL,
  until_at    TEXT NOT NULL,                       -- the last one, where a row stands for several
  count       INTEGER NOT NULL DEFAULT 1 CHECK (count >= 1),
  outcome     TEXT NOT NULL CHECK (outcome IN ('ran', 'late', 'skipped')),
  reason      TEXT,
  job_id      TEXT,
  late_ms     INTEGER,
  created_at  TEXT NOT NULL,
  UNIQUE (plugin, schedule_id, nominal_at),
  CHECK ((outcome = 'skipped') = (job_id IS NULL))
) STRICT;
CREATE INDEX occurrences_newest ON occurrences (plugin, schedule_id, seq);
CREATE INDEX occurrences_created ON occurrences (created_at);

CREATE TABLE circuit_breakers (
  plugin          TEXT NOT NULL,
  command         TEXT NOT NULL,
  state           TEXT NOT NULL CHECK (state IN ('closed', 'open', 'half_open')),
  failure_count   INTEGER NOT NULL DEFAULT 0,
  opened_at       TEXT,
  last_failure_at TEXT,
  last_job_id     TEXT,
  probe_job_id    TEXT,
  updated_at      TEXT NOT NULL,
  PRIMARY KEY (plugin, command)
) STRICT, WITHOUT ROWID;

CREATE TABLE circuit_breaker_transitions (
  seq           INTEGER PRIMARY KEY AUTOINCREMENT,
  plugin        TEXT NOT NULL,
  command       TEXT NOT NULL,
  from_state    TEXT CHECK (from_state IN ('closed', 'open', 'half_open')),
  to_state      TEXT NOT NULL CHECK (to_state IN ('closed', 'open', 'half_open')),
  failure_count INTEGER NOT NULL DEFAULT 0,
  reason        TEXT NOT NULL CHECK (reason IN
                  ('failure_threshold', 'success', 'cooldown_elapsed', 'manual_reset', 'probe_without_verdict')),
  job_id        TEXT,
  created_at    TEXT NOT NULL
) STRICT;
CREATE INDEX circuit_breaker_transitions_plugin ON circuit_breaker_transitions (plugin, seq);
CREATE INDEX circuit_breaker_transitions_created ON circuit_breaker_transitions (created_at);

-- ---------------------------------------------------------------------------- ledger and deliveries

CREATE TABLE ledger (
  seq    INTEGER PRIMARY KEY,
  at     TEXT NOT NULL,
  kind   TEXT NOT NULL,
  job_id TEXT,
  run_id TEXT,
  data   TEXT NOT NULL
) STRICT;
-- A job's transitions are found in job_transitions; this finds what else happened to it.
CREATE INDEX ledger_job ON ledger (job_id, seq) WHERE job_id IS NOT NULL AND kind <> 'job.transition';

CREATE TABLE config_snapshots (
  seq       INTEGER PRIMARY KEY AUTOINCREMENT,
  hash      TEXT NOT NULL,
  origin    TEXT NOT NULL CHECK (origin IN ('start', 'reload', 'run')),
  content   TEXT NOT NULL,                         -- redacted
  loaded_at TEXT NOT NULL
) STRICT;

CREATE TABLE state_deliveries (
  seq             INTEGER PRIMARY KEY AUTOINCREMENT,
  id              TEXT NOT NULL UNIQUE,            -- sent as webhook-id, the same in every attempt
  job_id          TEXT NOT NULL,
  sequence        INTEGER NOT NULL,                -- of this job's events, from 1
  state           TEXT NOT NULL CHECK (state IN ('queued', 'loading', 'working', 'done', 'failed')),
  url             TEXT NOT NULL,
  receiver        TEXT NOT NULL,                   -- scheme, host and port: whose slowness is nobody else's
  body            TEXT NOT NULL,                   -- frozen when it was made
  status          TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'dropped')),
  attempts        INTEGER NOT NULL DEFAULT 0,      -- counted before sending, from 0 again when it is re-sent
  tried           INTEGER NOT NULL DEFAULT 0 CHECK (tried IN (0, 1)),  -- later events wait until it is
  next_attempt_at TEXT,
  retry_wait      REAL,                            -- seconds; what next_attempt_at was drawn from
  last_status     INTEGER,
  last_error      TEXT,
  created_at      TEXT NOT NULL,
  completed_at    TEXT,
  UNIQUE (job_id, sequence),
  CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
  CHECK ((status = 'pending') = (completed_at IS NULL))
) STRICT;
CREATE INDEX state_deliveries_due ON state_deliveries (next_attempt_at) WHERE status = 'pending';
CREATE INDEX state_deliveries_of_receiver ON state_deliveries (receiver, next_attempt_at) WHERE status = 'pending';
CREATE INDEX state_deliveries_completed ON state_deliveries (completed_at) WHERE completed_at IS NOT NULL;
