-- Jobs: submitting, claiming, settling.

-- An adapter whose planner needs a hint overrides these.

-- fragment: use_job_log_execution

-- fragment: use_job_log_figures

-- fragment: use_job_queue_by_reason

-- fragment: use_job_queue_by_status

-- fragment: use_job_queue_charged

-- fragment: use_job_queue_dedupe

-- fragment: use_job_queue_key_holder

-- fragment: use_job_queue_ready

-- fragment: job_columns
id, seq, plugin, command, status, reason, hold, attempt, max_attempts, execution, submitted_by,
submitted_detail, dedupe_key, created_at, started_at, completed_at, next_retry_at, last_error, parent_job_id,
source_event_id, event_context_id, run_id, step_path, hops, trace_id, cancel_requested_at, owner, lease_until,
claim_seq, suspect, callback_url, callback_model, callback_events, artifacts, rerun_of, token, cost, node,
held_since

-- fragment: same_key
dedupe_key = :dedupe_key AND plugin = :plugin AND command = :command

-- fragment: job_page
-- Every list checks all filters; the lists differ in the index that they use.
seq < :before AND (:job_id IS NULL OR id = :job_id) AND (:run_id IS NULL OR run_id = :run_id)
AND (:parent_job_id IS NULL OR parent_job_id = :parent_job_id)
AND (:plugin IS NULL OR plugin = :plugin) AND (:status IS NULL OR status = :status)
AND (:command IS NULL OR command = :command) AND (:submitted_by IS NULL OR submitted_by = :submitted_by)
AND (:reason IS NULL OR reason = :reason) AND (:token IS NULL OR token = :token)
AND (:created_from IS NULL OR created_at >= :created_from) AND (:created_before IS NULL OR created_at < :created_before)
AND (:common_words IS NULL OR {job_has_words})
ORDER BY seq DESC LIMIT :limit

-- name: insert_job
-- Inserts nothing if a child with the same origin exists.
INSERT INTO job_queue (
  seq, id, plugin, command, payload, status, reason, hold, attempt, max_attempts, submitted_by, submitted_detail,
  dedupe_key, created_at, parent_job_id, source_event_id, event_context_id, run_id, step_path, hops, trace_id,
  origin_job_id, origin_execution, origin_event_index, origin_target, after_job_id, callback_url, callback_model,
  callback_events, rerun_of, token, charged, node
) VALUES (
  :seq, :id, :plugin, :command, :payload, 'queued', 'submitted', :hold, 1, :max_attempts, :submitted_by, :submitted_detail,
  :dedupe_key, :at, :parent_job_id, :source_event_id, :event_context_id, :run_id, :step_path, :hops, :trace_id,
  :origin_job_id, :origin_execution, :origin_event_index, :origin_target, :after_job_id, :callback_url, :callback_model,
  :callback_events, :rerun_of, :token, :charged, :node
)
ON CONFLICT (origin_job_id, origin_execution, origin_event_index, origin_target)
  WHERE origin_job_id IS NOT NULL DO NOTHING

-- name: insert_root_job
-- A job without parent and subscription, as most are: half as many columns to bind.
INSERT INTO job_queue (
  seq, id, plugin, command, payload, status, reason, hold, max_attempts, submitted_by, submitted_detail, dedupe_key,
  created_at, source_event_id, hops, trace_id, token
) VALUES (
  :seq, :id, :plugin, :command, :payload, 'queued', 'submitted', :hold, :max_attempts, :submitted_by,
  :submitted_detail, :dedupe_key, :at, :source_event_id, :hops, :trace_id, :token
)

-- name: child_by_origin
SELECT id FROM job_queue
WHERE origin_job_id = :origin_job_id AND origin_execution = :origin_execution
  AND origin_event_index = :origin_event_index AND origin_target = :origin_target

-- name: insert_transition
INSERT INTO job_transitions (job_id, seq, execution, from_status, to_status, reason, at)
VALUES (:job_id, :seq, :execution, :from_status, :to_status, :reason, :at)

-- name: insert_ledger
INSERT INTO ledger (seq, at, kind, job_id, run_id, data, token)
VALUES (:seq, :at, :kind, :job_id, :run_id, :data, :token)

-- name: token_of_job
SELECT token FROM job_queue WHERE id = :id

-- name: highest_in_ledger
SELECT max(seq) FROM ledger

-- name: highest_in_queue
SELECT max(seq) FROM job_queue

-- name: insert_event
INSERT INTO events (id, type, source, payload, headers, dedupe_key, producer_job_id, producer_index, created_at)
VALUES (:id, :type, :source, :payload, :headers, :dedupe_key, :producer_job_id, :producer_index, :at)

-- name: insert_context
INSERT INTO event_context (id, parent_id, run_id, pipeline, step_path, baggage, hops, created_at)
VALUES (:id, :parent_id, :run_id, :pipeline, :step_path, :baggage, :hops, :at)

-- name: live_match
-- A job with this key that has not ended, the running one first.
SELECT id FROM job_queue {use_job_queue_dedupe}
WHERE {same_key} AND status IN ('queued', 'running')
ORDER BY status DESC LIMIT 1

-- name: succeeded_match
-- The latest success with this key.
SELECT id, completed_at FROM job_queue
WHERE {same_key} AND status = 'succeeded'
ORDER BY completed_at DESC LIMIT 1

-- name: latest_with_key
-- The newest job with this key, in any state.
SELECT id FROM job_queue {use_job_queue_dedupe}
WHERE {same_key}
ORDER BY seq DESC LIMIT 1

-- name: key_holder
SELECT seq FROM job_queue {use_job_queue_key_holder}
WHERE {same_key}
  AND hold IS NULL AND (status = 'running' OR status = 'queued')

-- name: blocking_job
-- The job that a held one waits for: the holder of its key, its predecessor, or the suspect that is tried now.
SELECT CASE waiting.hold
  WHEN 'predecessor' THEN waiting.after_job_id
  WHEN 'key' THEN (
    SELECT id FROM job_queue AS holder {use_job_queue_key_holder}
    WHERE holder.dedupe_key = waiting.dedupe_key AND holder.plugin = waiting.plugin
      AND holder.command = waiting.command
      AND holder.hold IS NULL AND (holder.status = 'running' OR holder.status = 'queued'))
  WHEN 'suspect' THEN (
    SELECT id FROM job_queue AS active
    WHERE active.suspect = 1 AND active.seq <> waiting.seq
      AND (active.status = 'running' OR (active.status = 'queued' AND active.hold IS NULL)) LIMIT 1)
END
FROM job_queue AS waiting WHERE waiting.id = :id

-- name: first_key_follower
SELECT {job_columns} FROM job_queue
WHERE {same_key} AND hold = 'key'
ORDER BY seq LIMIT 1

-- name: live_status
SELECT status FROM job_queue WHERE id = :id AND status IN ('queued', 'running')

-- name: successors
SELECT {job_columns} FROM job_queue WHERE after_job_id = :id AND hold = 'predecessor' ORDER BY seq LIMIT :limit

-- name: active_suspect
SELECT seq FROM job_queue
WHERE suspect = 1 AND seq <> :seq AND (status = 'running' OR (status = 'queued' AND hold IS NULL)) LIMIT 1

-- name: first_held_suspect
SELECT {job_columns} FROM job_queue WHERE suspect = 1 AND hold = 'suspect' ORDER BY seq LIMIT 1

-- name: predecessor_of
SELECT after_job_id FROM job_queue WHERE seq = :seq

-- name: set_hold
-- `after_job_id` is cleared for good: the other job may be reopened, and then waits for this one.
UPDATE job_queue SET
  hold = :hold, after_job_id = CASE WHEN :hold = 'predecessor' THEN after_job_id END,
  next_retry_at = NULL, retry_wait = NULL, held_since = NULL
WHERE seq = :seq

-- name: running_counts
-- The running jobs of each plugin, and how many of them are of this owner.
SELECT plugin, count(*), count(*) FILTER (WHERE owner = :owner) FROM job_queue
WHERE status <> 'succeeded' AND status = 'running' AND plugin <> 'pipeline' GROUP BY plugin

-- fragment: may_run_here
-- For stores that several nodes share. `:node` is the node that claims.

-- fragment: ready_plugins
-- The plugins with ready jobs: one index seek for each, however deep the queue.
WITH RECURSIVE plugins (name) AS (
  SELECT min(plugin) FROM job_queue WHERE status = 'queued' AND hold IS NULL
  UNION ALL
  SELECT (SELECT min(plugin) FROM job_queue WHERE status = 'queued' AND hold IS NULL AND plugin > plugins.name)
  FROM plugins WHERE plugins.name IS NOT NULL
)

-- name: ready_heads
-- The oldest ready job of each plugin.
{ready_plugins}
SELECT name, (
  SELECT min(seq) FROM job_queue {use_job_queue_ready}
  WHERE status = 'queued' AND hold IS NULL AND plugin = plugins.name {may_run_here}
)
FROM plugins WHERE name IS NOT NULL

-- name: next_head
SELECT min(seq) FROM job_queue {use_job_queue_ready}
WHERE status = 'queued' AND hold IS NULL AND plugin = :plugin AND seq > :seq {may_run_here}

-- name: ready_job
SELECT seq FROM job_queue WHERE id = :id AND status = 'queued' AND hold IS NULL

-- name: claim_job
-- The claim's number is that of its ledger entry. Returns the claimed job, and its plugin's state.
UPDATE job_queue SET
  status = 'running', reason = 'claimed', execution = execution + 1, started_at = :at, owner = :owner,
  lease_until = :lease_until, claim_seq = :claim_seq
WHERE seq = :seq AND status = 'queued'
RETURNING {job_columns}, payload, (SELECT state FROM plugin_state WHERE plugin_name = job_queue.plugin)

-- name: job_by_id
SELECT {job_columns} FROM job_queue WHERE id = :id

-- name: settle_job
-- Changes the job only if it is as it was when its end was decided. Returns whether jobs wait for it.
UPDATE job_queue SET
  status = :status, reason = :reason, hold = :hold, attempt = :attempt, completed_at = :completed_at,
  next_retry_at = :next_retry_at, retry_wait = :retry_wait, last_error = :last_error, suspect = :suspect,
  artifacts = :artifacts, cost = :cost, owner = NULL, lease_until = NULL, held_since = NULL
WHERE seq = :seq AND id = :id AND status = :from_status AND execution = :execution
  AND cancel_requested_at IS NOT DISTINCT FROM :cancel_requested_at AND callback_url IS NOT DISTINCT FROM :callback_url
RETURNING EXISTS (
  SELECT 1 FROM job_queue AS waiting WHERE waiting.after_job_id = job_queue.id AND waiting.hold = 'predecessor'
)

-- name: reopen_job
UPDATE job_queue SET
  status = 'queued', reason = 'manual_retry', hold = :hold, attempt = 1, completed_at = NULL,
  cancel_requested_at = NULL, suspect = 0
WHERE seq = :seq AND status = :from_status

-- name: charge_job
UPDATE job_queue SET charged = 1 WHERE seq = :seq AND token = :token

-- name: request_cancel
UPDATE job_queue SET cancel_requested_at = coalesce(cancel_requested_at, :at) WHERE seq = :seq

-- name: insert_log
INSERT INTO job_log (
  job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status, job_reason, result,
  stderr, exit_code, signal, last_error, duration_ms, submitted_by, submitted_detail, dedupe_key, created_at, started_at,
  completed_at, parent_job_id, source_event_id, event_context_id, run_id, step_path, trace_id, artifacts, output,
  stderr_truncated, rerun_of, token, cost, node
) VALUES (
  :job_id, :execution, :attempt, :max_attempts, :plugin, :command, :status, :reason, :job_status, :job_reason,
  :result, :stderr, :exit_code, :signal, :error, :duration_ms, :submitted_by, :submitted_detail, :dedupe_key,
  :created_at, :started_at, :at, :parent_job_id, :source_event_id, :event_context_id, :run_id, :step_path, :trace_id,
  :artifacts, :output, :stderr_truncated, :rerun_of, :token, :cost, :node
)
ON CONFLICT DO NOTHING

-- name: log_status
SELECT status FROM job_log WHERE job_id = :job_id AND execution = :execution AND status <> 'superseded'

-- name: job_was_logged
SELECT 1 FROM job_log WHERE job_id = :job_id LIMIT 1

-- name: due_waiting
SELECT {job_columns} FROM job_queue
WHERE hold = 'retry' AND next_retry_at <= :now ORDER BY next_retry_at, seq LIMIT :limit

-- name: next_due
SELECT min(next_retry_at) FROM job_queue WHERE hold = 'retry'

-- name: running_jobs
SELECT {job_columns} FROM job_queue
WHERE status <> 'succeeded' AND status = 'running' AND plugin <> 'pipeline' ORDER BY seq LIMIT :limit

-- name: job_with_payload
SELECT {job_columns}, payload FROM job_queue WHERE id = :id

-- name: payload_of_event
SELECT payload FROM events WHERE id = :id

-- name: job_tree
-- A job and its descendants. The log replaces rows that retention removed.
WITH RECURSIVE tree (id) AS (
  SELECT :id
  UNION
  SELECT job_queue.id FROM job_queue JOIN tree ON job_queue.parent_job_id = tree.id
  UNION
  SELECT job_log.job_id FROM job_log JOIN tree ON job_log.parent_job_id = tree.id
)
SELECT id FROM tree LIMIT :limit

-- name: jobs_newest
SELECT {job_columns} FROM job_queue WHERE {job_page}

-- name: job_of_id
SELECT {job_columns} FROM job_queue WHERE id = :job_id AND {job_page}

-- name: jobs_of_status
-- For every status but succeeded. Most rows have that one, and `jobs_newest` finds them fastest.
SELECT {job_columns} FROM job_queue WHERE status <> 'succeeded' AND status = :status AND {job_page}

-- name: jobs_of_reason
-- The index leaves out rows without a problem: those that were just submitted or claimed, or have completed.
SELECT {job_columns} FROM job_queue {use_job_queue_by_reason}
WHERE reason <> 'submitted' AND reason <> 'claimed' AND reason <> 'completed' AND reason = :reason AND {job_page}

-- name: jobs_of_plugin
SELECT {job_columns} FROM job_queue WHERE plugin = :plugin AND {job_page}

-- name: jobs_of_token
SELECT {job_columns} FROM job_queue WHERE token = :token AND {job_page}

-- name: jobs_of_parent
SELECT {job_columns} FROM job_queue WHERE parent_job_id = :parent_job_id AND {job_page}

-- name: jobs_of_run
SELECT {job_columns} FROM job_queue WHERE run_id = :run_id AND {job_page}

-- name: total_newest
-- How many jobs each list has, counted up to :limit.
SELECT count(*) FROM (SELECT 1 FROM job_queue WHERE {job_page}) AS found

-- name: total_of_id
SELECT count(*) FROM (SELECT 1 FROM job_queue WHERE id = :job_id AND {job_page}) AS found

-- name: total_of_status
SELECT count(*) FROM (
  SELECT 1 FROM job_queue WHERE status <> 'succeeded' AND status = :status AND {job_page}
) AS found

-- name: total_of_reason
SELECT count(*) FROM (
  SELECT 1 FROM job_queue {use_job_queue_by_reason}
  WHERE reason <> 'submitted' AND reason <> 'claimed' AND reason <> 'completed' AND reason = :reason AND {job_page}
) AS found

-- name: total_of_plugin
SELECT count(*) FROM (SELECT 1 FROM job_queue WHERE plugin = :plugin AND {job_page}) AS found

-- name: total_of_token
SELECT count(*) FROM (SELECT 1 FROM job_queue WHERE token = :token AND {job_page}) AS found

-- name: total_of_parent
SELECT count(*) FROM (SELECT 1 FROM job_queue WHERE parent_job_id = :parent_job_id AND {job_page}) AS found

-- name: total_of_run
SELECT count(*) FROM (SELECT 1 FROM job_queue WHERE run_id = :run_id AND {job_page}) AS found

-- name: short_payload
-- The payload of a job, or else of its event, unless it is longer than :max_length; and its length.
SELECT CASE WHEN length(payload) <= :max_length THEN payload END, length(payload)
FROM (
  SELECT coalesce(payload, (SELECT payload FROM events WHERE events.id = job_queue.source_event_id)) AS payload
  FROM job_queue WHERE id = :id
) AS own

-- name: transitions_of_job
SELECT seq, execution, from_status, to_status, reason, at FROM job_transitions WHERE job_id = :job_id ORDER BY seq

-- name: counts
-- Queued, of these ready, of these pipeline runs (which need no worker), and running.
SELECT
  (SELECT count(*) FROM job_queue WHERE status <> 'succeeded' AND status = 'queued'),
  (SELECT count(*) FROM job_queue WHERE status = 'queued' AND hold IS NULL),
  (SELECT count(*) FROM job_queue WHERE status <> 'succeeded' AND status = 'queued' AND plugin = 'pipeline'),
  (SELECT count(*) FROM job_queue WHERE status <> 'succeeded' AND status = 'running' AND plugin <> 'pipeline')

-- name: depths
SELECT plugin,
  count(*) FILTER (WHERE status = 'queued' AND hold IS NULL),
  count(*) FILTER (WHERE status = 'queued' AND hold IS NOT NULL),
  count(*) FILTER (WHERE status = 'running'),
  min(CASE WHEN status = 'queued' AND hold IS NULL THEN created_at END)
FROM job_queue WHERE status <> 'succeeded' AND status IN ('queued', 'running')
GROUP BY plugin ORDER BY plugin

-- name: live_runs_by_graph
-- Live runs by their graph.
SELECT run.fingerprint, count(*) FROM job_queue AS job {use_job_queue_by_status}
JOIN pipeline_runs AS run ON run.run_id = job.id
WHERE job.status <> 'succeeded' AND job.status IN ('queued', 'running') AND job.plugin = 'pipeline'
GROUP BY run.fingerprint

-- name: outstanding
SELECT count(*) FROM job_queue {use_job_queue_by_status}
WHERE status <> 'succeeded' AND status IN ('queued', 'running') AND plugin = :plugin AND command = :command

-- name: event_by_id
SELECT id, type, source, payload, headers, dedupe_key, created_at FROM events WHERE id = :id

-- name: context_by_id
SELECT id, baggage, parent_id, run_id, pipeline, step_path, hops FROM event_context WHERE id = :id

-- name: job_ids_beginning_of_token
-- Reads all ids of a token: few, or as many as it has started.
SELECT id FROM job_queue WHERE token = :token AND substr(id, 1, length(:beginning)) = :beginning
UNION
SELECT job_id FROM job_log WHERE token = :token AND substr(job_id, 1, length(:beginning)) = :beginning
ORDER BY 1 LIMIT :limit

-- name: job_ids_ending_of_token
SELECT id FROM job_queue WHERE token = :token AND substr(id, length(id) - length(:ending) + 1) = :ending
UNION
SELECT job_id FROM job_log WHERE token = :token AND substr(job_id, length(job_id) - length(:ending) + 1) = :ending
ORDER BY 1 LIMIT :limit

-- name: job_ids_between
-- Each half has its own limit: a short prefix matches weeks of jobs.
SELECT id FROM (SELECT id FROM job_queue WHERE id >= :low AND id < :high ORDER BY id LIMIT :limit) AS queued
UNION
SELECT job_id FROM (
  SELECT DISTINCT job_id FROM job_log WHERE job_id >= :low AND job_id < :high ORDER BY job_id LIMIT :limit
) AS logged
ORDER BY 1 LIMIT :limit
