-- PostgreSQL's own syntax. These replace the shared queries and fragments of the same name, or add to them.

-- Fields in the body of a state webhook.

-- fragment: body_json
-- jsonb cannot hold NUL, which an error may have.
CAST(replace(body, '\u0000', '\ufffd') AS jsonb)

-- fragment: body_plugin
{body_json} ->> 'plugin'

-- fragment: body_command
{body_json} ->> 'command'

-- fragment: body_pipeline
{body_json} ->> 'pipeline'

-- fragment: body_reason
{body_json} ->> 'reason'

-- name: ready_heads
-- The oldest ready jobs of each plugin, as many as may be claimed, so that a claim needs one query.
{ready_plugins}
SELECT plugins.name, heads.seq FROM plugins CROSS JOIN LATERAL (
  SELECT seq FROM job_queue WHERE status = 'queued' AND hold IS NULL AND plugin = plugins.name {may_run_here}
  ORDER BY seq LIMIT :limit
) AS heads
WHERE plugins.name IS NOT NULL ORDER BY heads.seq

-- name: live_jobs_of_plugins
-- :plugins is a JSON list.
SELECT plugin, status, count(*) FROM job_queue
WHERE status <> 'succeeded' AND status IN ('queued', 'running')
  AND plugin IN (SELECT jsonb_array_elements_text(CAST(:plugins AS jsonb)))
GROUP BY plugin, status

-- name: shorten_waits
-- Retries that are further away than their planned wait, because the clock was set back.
UPDATE job_queue SET next_retry_at =
  to_char(CAST(:now AS timestamptz) AT TIME ZONE 'UTC' + make_interval(secs => retry_wait), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
WHERE seq IN (
  SELECT seq FROM job_queue
  WHERE hold = 'retry' AND next_retry_at >
    to_char(CAST(:now AS timestamptz) AT TIME ZONE 'UTC' + make_interval(secs => retry_wait + 1), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
  LIMIT :limit
)
RETURNING seq

-- name: shorten_deadlines
-- As `shorten_waits`, for the deadlines of runs.
UPDATE pipeline_runs SET deadline_at = to_char(
  CAST(:now AS timestamptz) AT TIME ZONE 'UTC' + make_interval(secs => coalesce(deadline_wait, 0)), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
WHERE run_id IN (
  SELECT run_id FROM pipeline_runs
  WHERE deadline_at > to_char(
    CAST(:now AS timestamptz) AT TIME ZONE 'UTC' + make_interval(secs => coalesce(deadline_wait, 0) + 1), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
  LIMIT :limit
)
RETURNING run_id

-- name: shorten_delivery_waits
-- As `shorten_waits`, for the outbox.
UPDATE state_deliveries SET next_attempt_at = to_char(
  CAST(:now AS timestamptz) AT TIME ZONE 'UTC' + make_interval(secs => coalesce(retry_wait, 0)), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
WHERE seq IN (
  SELECT seq FROM state_deliveries
  WHERE status = 'pending' AND next_attempt_at > to_char(
    CAST(:now AS timestamptz) AT TIME ZONE 'UTC' + make_interval(secs => coalesce(retry_wait, 0) + 1), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
  LIMIT :limit
)
RETURNING seq

-- fragment: job_has_words
-- For words that many executions have: every job of a list is checked.
EXISTS (
  SELECT 1 FROM job_log AS said JOIN job_log_text ON job_log_text.seq = said.seq
  WHERE said.job_id = job_queue.id AND job_log_text.body @@ plainto_tsquery('simple', :common_words)
)

-- name: jobs_with_words
-- For words that few executions have: the index finds the jobs.
SELECT {job_columns} FROM job_queue
WHERE id IN (
    SELECT job_log.job_id FROM job_log_text JOIN job_log ON job_log.seq = job_log_text.seq
    WHERE job_log_text.body @@ plainto_tsquery('simple', :words)
  ) AND {job_page}

-- name: total_with_words
SELECT count(*) FROM (
  SELECT 1 FROM job_queue
  WHERE id IN (
      SELECT job_log.job_id FROM job_log_text JOIN job_log ON job_log.seq = job_log_text.seq
      WHERE job_log_text.body @@ plainto_tsquery('simple', :words)
    ) AND {job_page}
) AS found

-- name: executions_with_words
-- How many executions have the words, counted up to :limit.
SELECT count(*) FROM (
  SELECT 1 FROM job_log_text WHERE body @@ plainto_tsquery('simple', :words) LIMIT :limit
) AS found

-- name: log_with_words
SELECT {log_columns} FROM job_log
WHERE seq IN (SELECT job_log_text.seq FROM job_log_text WHERE body @@ plainto_tsquery('simple', :words))
  AND seq < :before AND {log_filters}
ORDER BY seq DESC LIMIT :limit

-- name: index_text
INSERT INTO job_log_text (seq, body) VALUES (:seq, to_tsvector('simple', :body))
ON CONFLICT (seq) DO NOTHING

-- name: empty_search_index
DELETE FROM job_log_text

-- name: delete_log_text
DELETE FROM job_log_text WHERE seq = :seq

-- name: queued_of_plugins
-- :plugins is a JSON list, of plugins to leave out if :keep. Runs are ended through their steps.
SELECT {job_columns} FROM job_queue
WHERE status <> 'succeeded' AND status = 'queued' AND hold IS DISTINCT FROM 'run'
  AND (CAST(:plugins AS text) IS NULL
    OR (plugin IN (SELECT jsonb_array_elements_text(CAST(:plugins AS jsonb)))) <> CAST(CAST(:keep AS integer) AS boolean))
ORDER BY seq LIMIT :limit

-- name: forget_schedules
-- :kept is a JSON list of [plugin, schedule_id].
DELETE FROM schedule_entries
WHERE (plugin, schedule_id) NOT IN (
  SELECT entry ->> 0, entry ->> 1 FROM jsonb_array_elements(CAST(:kept AS jsonb)) AS entry
)

-- fragment: prunable_jobs
-- Ended long enough ago, no step of a run, and without live descendants. The newest row stays, with its run if it
-- is a step: the next row is numbered by it.
SELECT seq, id, plugin, payload FROM job_queue AS candidate
WHERE status = :status AND completed_at < :before AND run_id IS NULL AND seq < (SELECT max(seq) FROM job_queue)
  AND id IS DISTINCT FROM (SELECT run_id FROM job_queue WHERE seq = (SELECT max(seq) FROM job_queue))
  AND NOT EXISTS (
    WITH RECURSIVE below (id, status) AS (
      SELECT child.id, child.status FROM job_queue AS child WHERE child.parent_job_id = candidate.id
      UNION
      SELECT child.id, child.status FROM below JOIN job_queue AS child ON child.parent_job_id = below.id
    )
    SELECT 1 FROM below WHERE status IN ('queued', 'running')
  )
ORDER BY completed_at LIMIT :limit

-- name: job_ids_ending
-- Reads all ids: no index helps.
SELECT id FROM job_queue WHERE right(id, length(:ending)) = :ending
UNION
SELECT job_id FROM job_log WHERE right(job_id, length(:ending)) = :ending
ORDER BY 1 LIMIT :limit

-- name: job_tree
-- A job and its descendants. The log replaces rows that retention removed.
WITH RECURSIVE tree (id) AS (
  SELECT CAST(:id AS text) COLLATE "C"
  UNION
  SELECT child.id FROM tree JOIN LATERAL (
    SELECT job_queue.id FROM job_queue WHERE job_queue.parent_job_id = tree.id
    UNION
    SELECT job_log.job_id FROM job_log WHERE job_log.parent_job_id = tree.id
  ) AS child ON true
)
SELECT id FROM tree LIMIT :limit

-- name: has_notice_above
-- Whether the job :id, or one that it follows from, is a failure notice.
WITH RECURSIVE above (parent_job_id, submitted_by, submitted_detail) AS (
  SELECT parent_job_id, submitted_by, submitted_detail FROM job_queue WHERE id = :id
  UNION
  SELECT job_queue.parent_job_id, job_queue.submitted_by, job_queue.submitted_detail
  FROM above JOIN job_queue ON job_queue.id = above.parent_job_id
)
SELECT 1 FROM above WHERE submitted_by = 'hook' AND submitted_detail = :detail LIMIT 1

-- name: store_size
-- Bytes of all tables and indexes of the store's schema.
SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = CAST('store_meta' AS regclass)) AND relkind = 'r'

-- Transactions of the writer.

-- name: prepare_writer
-- Plans are made once for each connection, perhaps while the tables are small, and used when they are large.
-- Reading whole tables is off, so that rows are always looked up by an index.
SELECT set_config('idle_in_transaction_session_timeout', :milliseconds, false),
  set_config('enable_seqscan', 'off', false)

-- name: lock_store
-- Held to the end of the transaction. The first number stands for Ductile, the second for the store's schema.
SELECT pg_advisory_xact_lock(17525, CAST(CAST('store_meta' AS regclass) AS oid)::int)

-- name: end_stuck_writers
-- Ends the connection that holds the lock of the store if its process has sent and read nothing for :seconds: it was
-- stopped or cut off in the middle of a batch of statements, where the limit for idle transactions does not apply.
SELECT pg_terminate_backend(activity.pid) FROM pg_locks JOIN pg_stat_activity AS activity ON activity.pid = pg_locks.pid
WHERE pg_locks.locktype = 'advisory' AND pg_locks.granted AND pg_locks.classid = 17525
  AND pg_locks.objid = CAST(CAST('store_meta' AS regclass) AS oid)
  AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND activity.wait_event_type = 'Client'
  AND activity.state_change < clock_timestamp() - make_interval(secs => :seconds)

-- name: transaction_start
-- The id of the transaction, the latest instant that was stored, and the highest numbers in use.
SELECT CAST(pg_current_xact_id() AS text), coalesce(latest.at, ''), coalesce(latest.seq, 0),
  coalesce((SELECT max(seq) FROM job_queue), 0)
FROM (SELECT 1) AS one LEFT JOIN (SELECT at, seq FROM ledger ORDER BY seq DESC LIMIT 1) AS latest ON true

-- name: jobs_to_settle
-- The columns that the end of a job is decided on, besides the job as it was claimed, and whether jobs wait for it.
SELECT seq, id, status, execution, cancel_requested_at, callback_url, (
  SELECT true FROM job_queue AS waiting WHERE waiting.after_job_id = job_queue.id AND waiting.hold = 'predecessor' LIMIT 1
)
FROM job_queue WHERE seq = ANY(CAST(:seqs AS bigint[]))

-- name: settle_jobs
-- As `settle_job`, for jobs that have not changed since they were read: the transaction excludes other writers.
UPDATE job_queue SET
  status = ended.status, reason = ended.reason, hold = ended.hold, attempt = ended.attempt,
  completed_at = ended.completed_at, next_retry_at = ended.next_retry_at, retry_wait = ended.retry_wait,
  last_error = ended.last_error, suspect = ended.suspect, artifacts = ended.artifacts, cost = ended.cost,
  owner = NULL, lease_until = NULL, held_since = NULL
FROM json_populate_recordset(CAST(NULL AS job_queue), CAST(:rows AS json)) AS ended
WHERE job_queue.seq = ended.seq AND job_queue.seq = ANY(CAST(:seqs AS bigint[]))

-- name: notify
SELECT pg_notify(:channel, :payload)

-- Who uses a store. The first number stands for Ductile, the second for the schema, which exists before its tables.

-- fragment: store_schema
coalesce(
  (SELECT CAST(relnamespace AS int) FROM pg_class WHERE oid = to_regclass('store_meta')),
  (SELECT CAST(oid AS int) FROM pg_namespace WHERE nspname = current_schema())
)

-- name: schema_of_store
SELECT {store_schema}

-- name: share_store
-- Held by every process that writes, as long as its connection lasts.
SELECT pg_try_advisory_lock_shared(17526, {store_schema})

-- name: take_store
-- For one process that copies the whole store.
SELECT pg_try_advisory_lock(17526, {store_schema})

-- name: unshare_store
SELECT pg_advisory_unlock_shared(17526, {store_schema})

-- name: release_store
SELECT pg_advisory_unlock(17526, {store_schema})

-- name: store_holders
-- The connections that `take_store` conflicts with.
SELECT activity.pid, coalesce(host(activity.client_addr), 'the machine of the server'), activity.application_name
FROM pg_locks JOIN pg_stat_activity AS activity ON activity.pid = pg_locks.pid
WHERE pg_locks.locktype = 'advisory' AND pg_locks.classid = 17526 AND pg_locks.objid = CAST({store_schema} AS oid)
  AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND activity.pid <> pg_backend_pid()
ORDER BY activity.backend_start LIMIT :limit

-- Copies of the whole store.

-- name: forget_own_meta
-- Of an empty store that takes over the rows of another one.
DELETE FROM store_meta WHERE key <> 'schema_version'

-- name: numbered_tables
-- Tables whose rows are numbered by a sequence: table, column and sequence.
SELECT CAST(owner.relname AS text), CAST(attname AS text),
  pg_get_serial_sequence(CAST(CAST(owner.oid AS regclass) AS text), CAST(attname AS text))
FROM pg_attribute JOIN pg_class AS owner ON owner.oid = attrelid
WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = CAST('store_meta' AS regclass))
  AND attidentity <> '' AND NOT attisdropped
ORDER BY 1

-- name: index_copied_log
-- As `index_log` does, within the server: the number of executions that were indexed, and the last of them.
WITH added AS (
  INSERT INTO job_log_text (seq, body)
  SELECT seq, to_tsvector('simple', left(concat_ws(
    chr(10), nullif(plugin, ''), nullif(command, ''), nullif(last_error, ''), nullif(stderr, ''), nullif(result, '')
  ), :characters))
  FROM job_log WHERE seq > :after ORDER BY seq LIMIT :limit
  RETURNING seq
)
SELECT count(*), coalesce(max(seq), 0) FROM added

-- Nodes. Each is judged by the clock of the server.

-- fragment: is_live
ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => :dead_after)

-- fragment: orphaned
status <> 'succeeded' AND status = 'running' AND plugin <> 'pipeline'
  AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.owner = job_queue.owner AND nodes.ended_at IS NULL)

-- fragment: may_run_here
AND (node IS NULL OR node = :node)

-- name: running_jobs
-- Of nodes that have ended, or of a daemon that never joined, but not of the owners in the JSON list :live_owners.
SELECT {job_columns} FROM job_queue
WHERE {orphaned} AND coalesce(owner, '') NOT IN (SELECT jsonb_array_elements_text(CAST(:live_owners AS jsonb)))
ORDER BY seq LIMIT :limit

-- name: claim_jobs
-- As `claim_job` on one machine, for several jobs, but not for a node that has ended. The status is compared in a
-- way that no index serves: the planner would rather read every queued job than look up a few by their number.
UPDATE job_queue SET
  status = 'running', reason = 'claimed', execution = execution + 1, started_at = :at, owner = :owner,
  lease_until = :lease_until,
  claim_seq = (CAST(:numbers AS bigint[]))[array_position(CAST(:seqs AS bigint[]), seq)]
WHERE seq = ANY(CAST(:seqs AS bigint[])) AND (status = 'queued') IS TRUE
  AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.owner = :owner AND nodes.ended_at IS NOT NULL)
RETURNING {job_columns}, payload, (SELECT state FROM plugin_state WHERE plugin_name = job_queue.plugin)

-- name: join_node
-- A node that was ended may come back when none of its jobs is running any more.
INSERT INTO nodes (owner, name, host, machine, version, config, workers, plugins, started_at, heartbeat_at)
VALUES (:owner, :name, :host, :machine, :version, :config, :workers, :plugins, clock_timestamp(), clock_timestamp())
ON CONFLICT (owner) DO UPDATE SET
  started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at, ended_at = NULL,
  config = excluded.config, workers = excluded.workers, plugins = excluded.plugins
WHERE nodes.ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM job_queue WHERE status <> 'succeeded' AND status = 'running' AND owner = nodes.owner)

-- name: renew_node
{ready_plugins}, renewed AS (
  UPDATE nodes SET heartbeat_at = clock_timestamp(), config = :config, workers = :workers, plugins = :plugins
  WHERE owner = :owner AND ended_at IS NULL
  RETURNING owner, started_at
)
SELECT
  NOT EXISTS (
    SELECT 1 FROM nodes WHERE nodes.owner <> renewed.owner AND {is_live}
      AND (nodes.started_at, nodes.owner) < (renewed.started_at, renewed.owner)),
  coalesce((
    SELECT extract(epoch FROM clock_timestamp() - min(heartbeat_at)) FROM nodes
    WHERE nodes.owner <> renewed.owner AND ended_at IS NULL), 0)::float,
  EXISTS (SELECT 1 FROM job_queue WHERE {orphaned}),
  ARRAY(
    SELECT id FROM job_queue
    WHERE status <> 'succeeded' AND status = 'running' AND owner = :owner AND cancel_requested_at IS NOT NULL LIMIT 100),
  extract(epoch FROM clock_timestamp())::float,
  (SELECT CAST(jsonb_agg(jsonb_build_array(name, CAST(plugins AS jsonb))) AS text) FROM nodes WHERE ended_at IS NULL),
  (SELECT CAST(jsonb_agg(jsonb_build_array(plugin, node, held_since)) AS text) FROM ({job_groups}) AS job_group)
FROM renewed

-- name: end_silent_nodes
UPDATE nodes SET ended_at = clock_timestamp() WHERE ended_at IS NULL AND NOT ({is_live}) RETURNING name

-- name: end_node
UPDATE nodes SET ended_at = clock_timestamp() WHERE owner = :owner AND ended_at IS NULL

-- name: forget_nodes
DELETE FROM nodes WHERE ended_at < clock_timestamp() - interval '1 day'

-- name: live_nodes
SELECT owner, name, host, machine, version, config, workers, plugins, started_at, heartbeat_at,
  extract(epoch FROM clock_timestamp() - heartbeat_at)::float,
  (SELECT count(*) FROM job_queue
   WHERE status <> 'succeeded' AND status = 'running' AND plugin <> 'pipeline' AND job_queue.owner = nodes.owner),
  {is_live}
FROM nodes WHERE ended_at IS NULL ORDER BY started_at, owner
