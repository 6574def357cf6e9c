-- The log of executions.

-- fragment: log_columns
seq, id, job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status, job_reason,
exit_code, signal, last_error, duration_ms, submitted_by, submitted_detail, dedupe_key, created_at, started_at,
completed_at, parent_job_id, source_event_id, event_context_id, run_id, step_path, trace_id, artifacts, output,
coalesce(octet_length(stderr), 0), stderr_truncated, rerun_of, token, cost, node

-- fragment: log_filters
(:job_id IS NULL OR job_id = :job_id) AND (:plugin IS NULL OR plugin = :plugin)
AND (:status IS NULL OR status = :status) AND (:reason IS NULL OR reason = :reason)
AND (:token IS NULL OR token = :token)
AND (:command IS NULL OR command = :command) AND (:submitted_by IS NULL OR submitted_by = :submitted_by)
AND (:completed_from IS NULL OR completed_at >= :completed_from)
AND (:completed_before IS NULL OR completed_at < :completed_before)
AND (:exclude_internal = 0 OR command NOT IN ('health', 'init'))

-- name: executions_of_job
SELECT {log_columns}, result, stderr, payload FROM job_log WHERE job_id = :job_id ORDER BY execution, seq

-- name: last_execution
SELECT {log_columns}, result, stderr, payload FROM job_log
WHERE job_id = :job_id AND status <> 'superseded' ORDER BY execution DESC LIMIT 1

-- name: cost_of_logged_job
SELECT sum(cost) FROM job_log WHERE job_id = :job_id

-- name: log_newest
SELECT {log_columns} FROM job_log
WHERE seq < :before AND {log_filters}
ORDER BY seq DESC LIMIT :limit

-- name: log_of_status
SELECT {log_columns} FROM job_log
WHERE status <> 'succeeded' AND status = :status AND seq < :before AND {log_filters}
ORDER BY seq DESC LIMIT :limit

-- name: log_of_plugin
SELECT {log_columns} FROM job_log
WHERE plugin = :plugin AND seq < :before AND {log_filters}
ORDER BY seq DESC LIMIT :limit

-- name: log_of_token
SELECT {log_columns} FROM job_log
WHERE token = :token AND seq < :before AND {log_filters}
ORDER BY seq DESC LIMIT :limit

-- name: log_of_job
SELECT {log_columns} FROM job_log {use_job_log_execution}
WHERE job_id = :job_id AND seq < :before AND {log_filters}
ORDER BY seq DESC LIMIT :limit

-- fragment: sample_columns
plugin, status, attempt, execution, duration_ms, created_at, started_at, octet_length(stderr),
exit_code IS NOT NULL OR signal IS NOT NULL

-- name: execution_samples
-- Read from an index that has all of it. Bounded by rows as well as by time: a busy month may have millions.
SELECT {sample_columns}
FROM job_log {use_job_log_figures}
WHERE completed_at >= :since AND (:plugin IS NULL OR plugin = :plugin)
ORDER BY completed_at DESC LIMIT :limit

-- name: span_samples
-- The newest executions of a span.
SELECT {sample_columns} FROM job_log {use_job_log_figures}
WHERE completed_at >= :since AND completed_at < :until
ORDER BY completed_at DESC LIMIT :limit

-- name: span_counts
-- Executions and failures by plugin, among the newest :limit of a span.
SELECT plugin, count(*), count(*) FILTER (WHERE status = 'failed' OR status = 'timed_out') FROM (
  SELECT plugin, status FROM job_log {use_job_log_figures}
  WHERE completed_at >= :since AND completed_at < :until
  ORDER BY completed_at DESC LIMIT :limit
) AS newest
GROUP BY plugin ORDER BY plugin

-- name: first_execution_since
-- Numbers grow with time, so those of two instants tell how many executions are between them.
SELECT seq FROM job_log {use_job_log_figures} WHERE completed_at >= :since ORDER BY completed_at LIMIT 1

-- name: newest_execution
SELECT coalesce(max(seq), 0) FROM job_log

-- name: unindexed_log
SELECT seq, plugin, command, last_error, stderr, result FROM job_log WHERE seq > :after ORDER BY seq LIMIT :limit
