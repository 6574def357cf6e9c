-- The ledger, configurations, and retention.

-- name: ledger_after
SELECT seq, at, kind, job_id, run_id, data, token FROM ledger WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: ledger_of_token_after
SELECT seq, at, kind, job_id, run_id, data, token FROM ledger
WHERE token = :token AND seq > :after ORDER BY seq LIMIT :limit

-- name: newest_ledger
SELECT seq, at, kind, job_id, run_id, data, token FROM ledger ORDER BY seq DESC LIMIT :limit

-- name: newest_ledger_of_token
SELECT seq, at, kind, job_id, run_id, data, token FROM ledger WHERE token = :token ORDER BY seq DESC LIMIT :limit

-- name: ledger_range
SELECT coalesce((SELECT min(seq) FROM ledger), 0), coalesce((SELECT max(seq) FROM ledger), 0)

-- name: latest_instant
SELECT at FROM ledger ORDER BY seq DESC LIMIT 1

-- name: insert_config
INSERT INTO config_snapshots (hash, origin, content, plugins, loaded_at, command, author, files)
VALUES (:hash, :origin, :content, :plugins, :at, :command, :author, :files)

-- name: newest_config
SELECT hash FROM config_snapshots ORDER BY seq DESC LIMIT 1

-- name: config_history
SELECT seq, hash, origin, content, loaded_at, plugins, command, author, files FROM config_snapshots ORDER BY seq DESC LIMIT :limit

-- name: get_meta
SELECT value FROM store_meta WHERE key = :key

-- name: insert_meta_if_absent
INSERT INTO store_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING

-- name: delete_meta
DELETE FROM store_meta WHERE key = :key

-- name: put_meta
INSERT INTO store_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: prunable_jobs
{prunable_jobs}

-- name: count_jobs
-- Including the steps that are removed with a run.
SELECT count(*) + coalesce(sum((SELECT count(*) FROM job_queue AS step WHERE step.run_id = due.id)), 0)
FROM ({prunable_jobs}) AS due

-- name: steps_to_prune
SELECT seq, id, payload FROM job_queue WHERE run_id = :run_id ORDER BY seq LIMIT :limit

-- name: keep_payload
-- The payload moves to the log.
UPDATE job_log SET payload = :payload
WHERE job_id = :job_id AND seq = (SELECT max(seq) FROM job_log WHERE job_id = :job_id AND status <> 'superseded')

-- name: delete_job
DELETE FROM job_queue WHERE seq = :seq

-- name: delete_run
DELETE FROM pipeline_runs WHERE run_id = :run_id

-- name: delete_run_scopes
DELETE FROM run_scopes WHERE run_id = :run_id

-- name: delete_run_members
DELETE FROM run_members WHERE run_id = :run_id

-- name: delete_run_token_results
DELETE FROM run_leaves WHERE run_id = :run_id

-- fragment: prunable_log
-- Rows are written in order of time, so only the oldest are read; likewise for facts and the ledger.
SELECT seq, job_id FROM (SELECT seq, job_id, completed_at FROM job_log ORDER BY seq LIMIT :limit) AS oldest
WHERE completed_at < :before AND seq < (SELECT max(seq) FROM job_log)

-- name: prunable_log
{prunable_log}

-- name: count_job_log
SELECT count(*) FROM ({prunable_log}) AS due

-- name: delete_log
DELETE FROM job_log WHERE seq = :seq

-- name: delete_transitions
-- Removed with the last row of their job.
DELETE FROM job_transitions WHERE job_id = :job_id
  AND NOT EXISTS (SELECT 1 FROM job_queue WHERE id = :job_id)
  AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_log.job_id = :job_id)

-- fragment: old_events
-- An event is kept as long as a job or an execution refers to it.
  SELECT id FROM events AS candidate
  WHERE created_at < :before
    AND NOT EXISTS (SELECT 1 FROM job_queue WHERE job_queue.source_event_id = candidate.id)
    AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_log.source_event_id = candidate.id)
    AND NOT EXISTS (SELECT 1 FROM run_leaves WHERE run_leaves.event_id = candidate.id)
  ORDER BY created_at LIMIT :limit

-- name: prune_events
DELETE FROM events WHERE id IN ({old_events}) RETURNING 1

-- name: count_events
SELECT count(*) FROM ({old_events}) AS due

-- fragment: old_contexts
  SELECT id FROM event_context AS candidate
  WHERE created_at < :before
    AND NOT EXISTS (SELECT 1 FROM job_queue WHERE job_queue.event_context_id = candidate.id)
    AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_log.event_context_id = candidate.id)
    AND NOT EXISTS (SELECT 1 FROM run_scopes WHERE run_scopes.context_id = candidate.id)
  ORDER BY created_at LIMIT :limit

-- name: prune_contexts
DELETE FROM event_context WHERE id IN ({old_contexts}) RETURNING 1

-- name: count_contexts
SELECT count(*) FROM ({old_contexts}) AS due

-- fragment: old_versions
-- A graph that no run follows. A new run inserts it again.
  SELECT fingerprint FROM pipeline_versions AS candidate
  WHERE created_at < :before
    AND NOT EXISTS (SELECT 1 FROM pipeline_runs WHERE pipeline_runs.fingerprint = candidate.fingerprint)
  LIMIT :limit

-- name: prune_versions
DELETE FROM pipeline_versions WHERE fingerprint IN ({old_versions}) RETURNING 1

-- name: count_versions
SELECT count(*) FROM ({old_versions}) AS due

-- fragment: old_breaker_transitions
  SELECT id FROM circuit_breaker_transitions WHERE created_at < :before ORDER BY created_at LIMIT :limit

-- name: prune_breaker_transitions
DELETE FROM circuit_breaker_transitions WHERE id IN ({old_breaker_transitions}) RETURNING 1

-- name: count_breaker_transitions
SELECT count(*) FROM ({old_breaker_transitions}) AS due

-- fragment: old_occurrences
  SELECT seq FROM occurrences WHERE created_at < :before ORDER BY created_at LIMIT :limit

-- name: prune_occurrences
DELETE FROM occurrences WHERE seq IN ({old_occurrences}) RETURNING 1

-- name: count_occurrences
SELECT count(*) FROM ({old_occurrences}) AS due

-- fragment: old_deliveries
  SELECT seq FROM state_deliveries WHERE completed_at < :before ORDER BY completed_at LIMIT :limit

-- name: prune_deliveries
DELETE FROM state_deliveries WHERE seq IN ({old_deliveries}) RETURNING 1

-- name: count_deliveries
SELECT count(*) FROM ({old_deliveries}) AS due

-- fragment: old_configs
-- A configuration is kept until the one after it is old: by then the log has no job that ran under the first.
  SELECT seq FROM (SELECT seq FROM config_snapshots ORDER BY seq LIMIT :limit) AS candidate
  WHERE (SELECT loaded_at FROM config_snapshots AS next WHERE next.seq > candidate.seq ORDER BY next.seq LIMIT 1) < :before

-- name: prune_configs
DELETE FROM config_snapshots WHERE seq IN ({old_configs}) RETURNING 1

-- name: count_configs
SELECT count(*) FROM ({old_configs}) AS due

-- fragment: old_facts
  SELECT id FROM (SELECT id, created_at FROM plugin_facts ORDER BY id LIMIT :limit) AS oldest WHERE created_at < :before

-- name: prune_facts
DELETE FROM plugin_facts WHERE id IN ({old_facts}) RETURNING 1

-- name: count_facts
SELECT count(*) FROM ({old_facts}) AS due

-- fragment: old_ledger
  SELECT seq FROM (SELECT seq, at FROM ledger ORDER BY seq LIMIT :limit) AS oldest
  WHERE (at < :before OR seq <= (SELECT max(seq) FROM ledger) - :rows) AND seq < (SELECT max(seq) FROM ledger)

-- name: prune_ledger
DELETE FROM ledger WHERE seq IN ({old_ledger}) RETURNING 1

-- name: count_ledger
SELECT count(*) FROM ({old_ledger}) AS due

-- name: insert_ended_session
INSERT INTO ended_sessions (id, expires_at) VALUES (:id, :expires_at) ON CONFLICT (id) DO NOTHING

-- name: delete_expired_sessions
DELETE FROM ended_sessions WHERE expires_at <= :now

-- name: ended_sessions
SELECT id FROM ended_sessions WHERE expires_at > :now
