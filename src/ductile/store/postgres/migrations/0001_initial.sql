CREATE TABLE store_meta (
  key   TEXT COLLATE "C" PRIMARY KEY,
  value TEXT COLLATE "C" NOT NULL
);
CREATE TABLE job_queue (
  seq                 BIGINT PRIMARY KEY,
  id                  TEXT COLLATE "C" NOT NULL UNIQUE,
  plugin              TEXT COLLATE "C" NOT NULL,
  command             TEXT COLLATE "C" NOT NULL,
  payload             TEXT COLLATE "C",
  status              TEXT COLLATE "C" NOT NULL CHECK (
                        status = 'queued' OR status = 'running' OR status = 'succeeded' OR status = 'failed'
                        OR status = 'dead'),
  reason              TEXT COLLATE "C" NOT NULL,
  hold                TEXT COLLATE "C" CHECK (
                        hold = 'retry' OR hold = 'key' OR hold = 'predecessor' OR hold = 'suspect' OR hold = 'run'),
  attempt             BIGINT NOT NULL DEFAULT 1 CHECK (attempt >= 1),
  max_attempts        BIGINT NOT NULL CHECK (max_attempts >= 1),
  execution           BIGINT NOT NULL DEFAULT 0,
  submitted_by        TEXT COLLATE "C" NOT NULL CHECK (
                        submitted_by = 'scheduler' OR submitted_by = 'webhook' OR submitted_by = 'route'
                        OR submitted_by = 'cli' OR submitted_by = 'api' OR submitted_by = 'hook'
                        OR submitted_by = 'mcp' OR submitted_by = 'core'),
  submitted_detail    TEXT COLLATE "C",
  dedupe_key          TEXT COLLATE "C",
  created_at          TEXT COLLATE "C" NOT NULL,
  started_at          TEXT COLLATE "C",
  completed_at        TEXT COLLATE "C",
  next_retry_at       TEXT COLLATE "C",
  retry_wait          DOUBLE PRECISION,
  last_error          TEXT COLLATE "C",
  parent_job_id       TEXT COLLATE "C",
  source_event_id     TEXT COLLATE "C",
  event_context_id    TEXT COLLATE "C",
  run_id              TEXT COLLATE "C",
  step_path           TEXT COLLATE "C",
  hops                BIGINT NOT NULL DEFAULT 0,
  trace_id            TEXT COLLATE "C",
  origin_job_id       TEXT COLLATE "C",
  origin_execution    BIGINT,
  origin_event_index  BIGINT,
  origin_target       TEXT COLLATE "C",
  after_job_id        TEXT COLLATE "C",
  cancel_requested_at TEXT COLLATE "C",
  owner               TEXT COLLATE "C",
  lease_until         TEXT COLLATE "C",
  claim_seq           BIGINT NOT NULL DEFAULT 0,
  suspect             BIGINT NOT NULL DEFAULT 0 CHECK (suspect = 0 OR suspect = 1),
  callback_url        TEXT COLLATE "C",
  callback_model      TEXT COLLATE "C",
  callback_state      TEXT COLLATE "C",
  callback_sequence   BIGINT NOT NULL DEFAULT 0,
  artifacts           TEXT COLLATE "C", callback_events TEXT COLLATE "C", callback_at TEXT COLLATE "C",
  CHECK (hold IS NULL OR status = 'queued' OR (hold = 'run' AND status = 'running')),
  CHECK ((hold IS NOT DISTINCT FROM 'retry') = (next_retry_at IS NOT NULL)),
  CHECK ((completed_at IS NOT NULL) = (status = 'succeeded' OR status = 'failed' OR status = 'dead')),
  CHECK (status <> 'running' OR started_at IS NOT NULL)
);
CREATE INDEX job_queue_ready ON job_queue (plugin, seq) WHERE status = 'queued' AND hold IS NULL;
CREATE INDEX job_queue_waiting ON job_queue (next_retry_at) WHERE hold = 'retry';
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
CREATE INDEX job_queue_by_status ON job_queue (status, seq, plugin, command) WHERE status <> 'succeeded';
CREATE TABLE job_transitions (
  job_id      TEXT COLLATE "C" NOT NULL,
  seq         BIGINT NOT NULL,
  execution   BIGINT NOT NULL,
  from_status TEXT COLLATE "C",
  to_status   TEXT COLLATE "C" NOT NULL,
  reason      TEXT COLLATE "C" NOT NULL,
  at          TEXT COLLATE "C" NOT NULL,
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
);
CREATE TABLE job_log (
  seq              BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  id               TEXT COLLATE "C" GENERATED ALWAYS AS
                     (job_id || '-' || CAST(execution AS TEXT) || CASE status WHEN 'superseded' THEN '-late' ELSE '' END) STORED,
  job_id           TEXT COLLATE "C" NOT NULL,
  execution        BIGINT NOT NULL,
  attempt          BIGINT NOT NULL,
  max_attempts     BIGINT NOT NULL,
  plugin           TEXT COLLATE "C" NOT NULL,
  command          TEXT COLLATE "C" NOT NULL,
  status           TEXT COLLATE "C" NOT NULL CHECK (
                     status = 'succeeded' OR status = 'failed' OR status = 'timed_out' OR status = 'cancelled'
                     OR status = 'interrupted' OR status = 'orphaned' OR status = 'superseded'),
  reason           TEXT COLLATE "C" NOT NULL,
  job_status       TEXT COLLATE "C" NOT NULL,
  job_reason       TEXT COLLATE "C" NOT NULL,
  result           TEXT COLLATE "C",
  stderr           TEXT COLLATE "C",
  exit_code        BIGINT,
  signal           BIGINT,
  last_error            TEXT COLLATE "C",
  duration_ms      DOUBLE PRECISION NOT NULL DEFAULT 0,
  submitted_by     TEXT COLLATE "C" NOT NULL,
  submitted_detail TEXT COLLATE "C",
  dedupe_key       TEXT COLLATE "C",
  created_at       TEXT COLLATE "C" NOT NULL,
  started_at       TEXT COLLATE "C",
  completed_at     TEXT COLLATE "C" NOT NULL,
  parent_job_id    TEXT COLLATE "C",
  source_event_id  TEXT COLLATE "C",
  event_context_id TEXT COLLATE "C",
  run_id           TEXT COLLATE "C",
  step_path        TEXT COLLATE "C",
  trace_id         TEXT COLLATE "C",
  artifacts        TEXT COLLATE "C",
  payload          TEXT COLLATE "C",
  output TEXT COLLATE "C" NOT NULL DEFAULT 'protocol' CHECK (output IN ('protocol', 'text', 'json')), stderr_truncated BIGINT NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX job_log_execution ON job_log (job_id, execution, (status = 'superseded'));
CREATE INDEX job_log_by_plugin ON job_log (plugin, seq);
CREATE INDEX job_log_failures ON job_log (status, seq) WHERE status <> 'succeeded';
CREATE INDEX job_log_parent ON job_log (parent_job_id, seq) WHERE parent_job_id IS NOT NULL;
CREATE INDEX job_log_run ON job_log (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX job_log_event ON job_log (source_event_id) WHERE source_event_id IS NOT NULL;
CREATE INDEX job_log_context ON job_log (event_context_id) WHERE event_context_id IS NOT NULL;
CREATE TABLE job_log_text (
  seq  BIGINT PRIMARY KEY,
  body TSVECTOR NOT NULL
);
CREATE INDEX job_log_text_body ON job_log_text USING gin (body);
CREATE TABLE events (
  id              TEXT COLLATE "C" PRIMARY KEY,
  type            TEXT COLLATE "C" NOT NULL,
  source          TEXT COLLATE "C" NOT NULL,
  payload         TEXT COLLATE "C" NOT NULL,
  headers         TEXT COLLATE "C",
  dedupe_key      TEXT COLLATE "C",
  producer_job_id TEXT COLLATE "C",
  producer_index  BIGINT,
  created_at      TEXT COLLATE "C" NOT NULL
);
CREATE INDEX events_created ON events (created_at);
CREATE INDEX events_producer ON events (producer_job_id, producer_index) WHERE producer_job_id IS NOT NULL;
CREATE TABLE plugin_facts (
  id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  plugin_name TEXT COLLATE "C" NOT NULL,
  fact_type   TEXT COLLATE "C" NOT NULL,
  job_id      TEXT COLLATE "C",
  execution   BIGINT,
  command     TEXT COLLATE "C",
  fact_json   TEXT COLLATE "C" NOT NULL,
  created_at  TEXT COLLATE "C" NOT NULL
);
CREATE INDEX plugin_facts_plugin ON plugin_facts (plugin_name, id);
CREATE TABLE plugin_state (
  plugin_name TEXT COLLATE "C" PRIMARY KEY,
  state       TEXT COLLATE "C" NOT NULL DEFAULT '{}',
  claim_seq   BIGINT NOT NULL DEFAULT 0,
  updated_at  TEXT COLLATE "C" NOT NULL
);
CREATE TABLE plugin_inits (
  plugin      TEXT COLLATE "C" NOT NULL,
  fingerprint TEXT COLLATE "C" NOT NULL,
  config_hash TEXT COLLATE "C" NOT NULL,
  status      TEXT COLLATE "C" NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed')),
  tries       BIGINT NOT NULL DEFAULT 0,
  job_id      TEXT COLLATE "C",
  error       TEXT COLLATE "C",
  updated_at  TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (plugin, fingerprint, config_hash)
);
CREATE TABLE pipeline_versions (
  fingerprint TEXT COLLATE "C" PRIMARY KEY,
  name        TEXT COLLATE "C" NOT NULL,
  graph       TEXT COLLATE "C" NOT NULL,
  created_at  TEXT COLLATE "C" NOT NULL
);
CREATE TABLE pipeline_runs (
  run_id      TEXT COLLATE "C" PRIMARY KEY,
  pipeline    TEXT COLLATE "C" NOT NULL,
  fingerprint TEXT COLLATE "C" NOT NULL,
  deadline_at TEXT COLLATE "C",
  jobs        BIGINT NOT NULL DEFAULT 0,
  created_at  TEXT COLLATE "C" NOT NULL,
  deadline_wait DOUBLE PRECISION);
CREATE INDEX pipeline_runs_deadline ON pipeline_runs (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX pipeline_runs_version ON pipeline_runs (fingerprint);
CREATE TABLE run_scopes (
  id            TEXT COLLATE "C" PRIMARY KEY,
  run_id        TEXT COLLATE "C" NOT NULL,
  split_path    TEXT COLLATE "C",
  parent_id     TEXT COLLATE "C",
  parent_branch BIGINT,
  parent_order  TEXT COLLATE "C",
  live          BIGINT NOT NULL CHECK (live >= 0),
  state         TEXT COLLATE "C" NOT NULL CHECK (state IN ('open', 'joined', 'broken')),
  entry_job_id  TEXT COLLATE "C",
  context_id    TEXT COLLATE "C"
);
CREATE INDEX run_scopes_run ON run_scopes (run_id);
CREATE INDEX run_scopes_context ON run_scopes (context_id) WHERE context_id IS NOT NULL;
CREATE TABLE run_members (
  job_id     TEXT COLLATE "C" PRIMARY KEY,
  run_id     TEXT COLLATE "C" NOT NULL,
  scope_id   TEXT COLLATE "C" NOT NULL,
  branch     BIGINT NOT NULL,
  line_order TEXT COLLATE "C" NOT NULL
);
CREATE INDEX run_members_run ON run_members (run_id);
CREATE TABLE run_leaves (
  scope_id   TEXT COLLATE "C" NOT NULL,
  branch     BIGINT NOT NULL,
  line_order TEXT COLLATE "C" NOT NULL,
  run_id     TEXT COLLATE "C" NOT NULL,
  position   BIGINT NOT NULL,
  step_path  TEXT COLLATE "C" NOT NULL,
  status     TEXT COLLATE "C" NOT NULL CHECK (status IN ('succeeded', 'failed', 'skipped')),
  job_id     TEXT COLLATE "C",
  event_id   TEXT COLLATE "C",
  error      TEXT COLLATE "C",
  PRIMARY KEY (scope_id, branch, line_order)
);
CREATE INDEX run_leaves_run ON run_leaves (run_id);
CREATE INDEX run_leaves_event ON run_leaves (event_id) WHERE event_id IS NOT NULL;
CREATE TABLE event_context (
  id         TEXT COLLATE "C" PRIMARY KEY,
  parent_id  TEXT COLLATE "C",
  run_id     TEXT COLLATE "C",
  pipeline   TEXT COLLATE "C",
  step_path  TEXT COLLATE "C",
  baggage    TEXT COLLATE "C" NOT NULL,
  hops       BIGINT NOT NULL DEFAULT 0,
  created_at TEXT COLLATE "C" NOT NULL
);
CREATE INDEX event_context_run ON event_context (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX event_context_created ON event_context (created_at);
CREATE TABLE schedule_entries (
  plugin       TEXT COLLATE "C" NOT NULL,
  schedule_id  TEXT COLLATE "C" NOT NULL,
  fingerprint  TEXT COLLATE "C" NOT NULL,
  defined_at   TEXT COLLATE "C" NOT NULL,
  next_at      TEXT COLLATE "C",
  nominal_at   TEXT COLLATE "C",
  last_job_id  TEXT COLLATE "C",
  last_fired_at TEXT COLLATE "C",
  paused_at    TEXT COLLATE "C",
  updated_at   TEXT COLLATE "C" NOT NULL, deferred_nominal_at TEXT COLLATE "C", deferred_due_at TEXT COLLATE "C",
  PRIMARY KEY (plugin, schedule_id)
);
CREATE INDEX schedule_entries_due ON schedule_entries (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;
CREATE TABLE occurrences (
  seq         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  plugin      TEXT COLLATE "C" NOT NULL,
  schedule_id TEXT COLLATE "C" NOT NULL,
  nominal_at  TEXT COLLATE "C" NOT NULL,
  until_at    TEXT COLLATE "C" NOT NULL,
  count       BIGINT NOT NULL DEFAULT 1 CHECK (count >= 1),
  outcome     TEXT COLLATE "C" NOT NULL CHECK (outcome IN ('ran', 'late', 'skipped')),
  reason      TEXT COLLATE "C",
  job_id      TEXT COLLATE "C",
  late_ms     BIGINT,
  created_at  TEXT COLLATE "C" NOT NULL,
  UNIQUE (plugin, schedule_id, nominal_at),
  CHECK ((outcome = 'skipped') = (job_id IS NULL))
);
CREATE INDEX occurrences_newest ON occurrences (plugin, schedule_id, seq);
CREATE INDEX occurrences_created ON occurrences (created_at);
CREATE TABLE circuit_breakers (
  plugin          TEXT COLLATE "C" NOT NULL,
  command         TEXT COLLATE "C" NOT NULL,
  state           TEXT COLLATE "C" NOT NULL CHECK (state IN ('closed', 'open', 'half_open')),
  failure_count   BIGINT NOT NULL DEFAULT 0,
  opened_at       TEXT COLLATE "C",
  last_failure_at TEXT COLLATE "C",
  last_job_id     TEXT COLLATE "C",
  probe_job_id    TEXT COLLATE "C",
  updated_at      TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (plugin, command)
);
CREATE TABLE circuit_breaker_transitions (
  id           BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  plugin        TEXT COLLATE "C" NOT NULL,
  command       TEXT COLLATE "C" NOT NULL,
  from_state    TEXT COLLATE "C" CHECK (from_state IN ('closed', 'open', 'half_open')),
  to_state      TEXT COLLATE "C" NOT NULL CHECK (to_state IN ('closed', 'open', 'half_open')),
  failure_count BIGINT NOT NULL DEFAULT 0,
  reason        TEXT COLLATE "C" NOT NULL CHECK (reason IN
                  ('failure_threshold', 'success', 'cooldown_elapsed', 'manual_reset', 'probe_without_verdict')),
  job_id        TEXT COLLATE "C",
  created_at    TEXT COLLATE "C" NOT NULL
);
CREATE INDEX circuit_breaker_transitions_plugin ON circuit_breaker_transitions (plugin, id);
CREATE INDEX circuit_breaker_transitions_created ON circuit_breaker_transitions (created_at);
CREATE TABLE ledger (
  seq    BIGINT PRIMARY KEY,
  at     TEXT COLLATE "C" NOT NULL,
  kind   TEXT COLLATE "C" NOT NULL,
  job_id TEXT COLLATE "C",
  run_id TEXT COLLATE "C",
  data   TEXT COLLATE "C" NOT NULL
);
CREATE INDEX ledger_job ON ledger (job_id, seq) WHERE job_id IS NOT NULL AND kind <> 'job.transition';
CREATE TABLE config_snapshots (
  seq       BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  hash      TEXT COLLATE "C" NOT NULL,
  origin    TEXT COLLATE "C" NOT NULL CHECK (origin IN ('start', 'reload', 'run')),
  content   TEXT COLLATE "C" NOT NULL,
  loaded_at TEXT COLLATE "C" NOT NULL,
  plugins TEXT);
CREATE INDEX job_queue_prunable ON job_queue (status, completed_at) WHERE completed_at IS NOT NULL AND run_id IS NULL;
CREATE TABLE state_subscriptions (
  job_id TEXT COLLATE "C" NOT NULL,
  url    TEXT COLLATE "C" NOT NULL,
  events TEXT COLLATE "C",
  PRIMARY KEY (job_id, url)
);
CREATE TABLE state_deliveries (
  seq             BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  id              TEXT COLLATE "C" NOT NULL UNIQUE,
  job_id          TEXT COLLATE "C" NOT NULL,
  sequence        BIGINT NOT NULL,
  state           TEXT COLLATE "C" NOT NULL CHECK (state IN ('queued', 'loading', 'working', 'done', 'failed')),
  url             TEXT COLLATE "C" NOT NULL,
  receiver        TEXT COLLATE "C" NOT NULL,
  body            TEXT COLLATE "C" NOT NULL,
  status          TEXT COLLATE "C" NOT NULL CHECK (status IN ('pending', 'delivered', 'dropped', 'gone')),
  attempts        BIGINT NOT NULL DEFAULT 0,
  tried           BIGINT NOT NULL DEFAULT 0 CHECK (tried IN (0, 1)),
  next_attempt_at TEXT COLLATE "C",
  retry_wait      DOUBLE PRECISION,
  last_status     BIGINT,
  last_error      TEXT COLLATE "C",
  created_at      TEXT COLLATE "C" NOT NULL,
  completed_at    TEXT COLLATE "C",
  UNIQUE (job_id, url, sequence),
  CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
  CHECK ((status = 'pending') = (completed_at IS NULL))
);
CREATE INDEX state_deliveries_due ON state_deliveries (next_attempt_at) WHERE status = 'pending';
CREATE INDEX state_deliveries_of_receiver ON state_deliveries (receiver, next_attempt_at) WHERE status = 'pending';
CREATE INDEX state_deliveries_completed ON state_deliveries (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX job_queue_by_reason ON job_queue (reason, seq)
  WHERE reason <> 'submitted' AND reason <> 'claimed' AND reason <> 'completed';
CREATE INDEX job_log_figures ON job_log (
  completed_at, plugin, command, status, execution, attempt, duration_ms, created_at, started_at, (octet_length(stderr)),
  exit_code, signal
);
CREATE INDEX state_deliveries_undelivered ON state_deliveries (status, seq)
  WHERE status = 'dropped' OR status = 'gone';
CREATE TABLE failure_groups (
  plugin   TEXT COLLATE "C" NOT NULL,
  command  TEXT COLLATE "C" NOT NULL,
  reason   TEXT COLLATE "C" NOT NULL,
  count    BIGINT NOT NULL CHECK (count >= 1),
  first_at TEXT COLLATE "C" NOT NULL,
  last_at  TEXT COLLATE "C" NOT NULL,
  examples TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (plugin, command, reason)
);
CREATE TABLE failure_notices (
  id        BIGINT PRIMARY KEY CHECK (id = 1),
  sent_at   TEXT COLLATE "C" NOT NULL,
  window_seconds DOUBLE PRECISION NOT NULL,
  job_id    TEXT COLLATE "C",
  failed    BIGINT NOT NULL DEFAULT 0,
  failed_id TEXT COLLATE "C",
  error     TEXT COLLATE "C"
);
