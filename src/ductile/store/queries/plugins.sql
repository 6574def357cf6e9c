-- State, facts and circuit breakers of plugins.

-- name: plugin_state
SELECT state, claim_seq, updated_at FROM plugin_state WHERE plugin_name = :plugin

-- name: write_state
INSERT INTO plugin_state (plugin_name, state, claim_seq, updated_at) VALUES (:plugin, :state, :claim_seq, :at)
ON CONFLICT (plugin_name) DO UPDATE SET
  state = excluded.state,
  claim_seq = CASE WHEN excluded.claim_seq > plugin_state.claim_seq THEN excluded.claim_seq ELSE plugin_state.claim_seq END, updated_at = excluded.updated_at

-- name: insert_fact
INSERT INTO plugin_facts (plugin_name, fact_type, job_id, execution, command, fact_json, created_at)
VALUES (:plugin, :fact_type, :job_id, :execution, :command, :body, :at)

-- name: facts_of_plugin
SELECT id, plugin_name, fact_type, job_id, command, fact_json, created_at FROM plugin_facts
WHERE plugin_name = :plugin AND id < :before ORDER BY id DESC LIMIT :limit

-- fragment: breaker_columns
state, failure_count, opened_at, last_failure_at, last_job_id, probe_job_id

-- name: breaker
SELECT {breaker_columns} FROM circuit_breakers WHERE plugin = :plugin AND command = :command

-- name: write_breaker
INSERT INTO circuit_breakers
  (plugin, command, state, failure_count, opened_at, last_failure_at, last_job_id, probe_job_id, updated_at)
VALUES (:plugin, :command, :state, :failures, :opened_at, :last_failure_at, :last_job_id, :probe_job_id, :at)
ON CONFLICT (plugin, command) DO UPDATE SET
  state = excluded.state, failure_count = excluded.failure_count, opened_at = excluded.opened_at,
  last_failure_at = excluded.last_failure_at, last_job_id = excluded.last_job_id,
  probe_job_id = excluded.probe_job_id, updated_at = excluded.updated_at

-- name: insert_breaker_transition
INSERT INTO circuit_breaker_transitions
  (plugin, command, from_state, to_state, failure_count, reason, job_id, created_at)
VALUES (:plugin, :command, :from_state, :to_state, :failures, :reason, :job_id, :at)

-- name: all_breakers
SELECT plugin, command, {breaker_columns}, updated_at FROM circuit_breakers ORDER BY plugin, command

-- name: breaker_history
SELECT id, plugin, command, from_state, to_state, failure_count, reason, job_id, created_at
FROM circuit_breaker_transitions WHERE plugin = :plugin ORDER BY id DESC LIMIT :limit
