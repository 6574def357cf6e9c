-- SQLite's own syntax. These replace the shared queries and fragments of the same name, or add to them.

-- Index hints, for plans that the planner does not find.

-- fragment: use_job_log_execution
INDEXED BY job_log_execution

-- fragment: use_job_log_figures
INDEXED BY job_log_figures

-- fragment: use_job_queue_by_reason
INDEXED BY job_queue_by_reason

-- fragment: use_job_queue_by_status
INDEXED BY job_queue_by_status

-- fragment: use_job_queue_charged
INDEXED BY job_queue_charged

-- fragment: use_job_queue_dedupe
INDEXED BY job_queue_dedupe

-- fragment: use_job_queue_key_holder
INDEXED BY job_queue_key_holder

-- fragment: use_job_queue_ready
INDEXED BY job_queue_ready

-- Fields in the body of a state webhook.

-- fragment: body_plugin
json_extract(body, '$.plugin')

-- fragment: body_command
json_extract(body, '$.command')

-- fragment: body_pipeline
json_extract(body, '$.pipeline')

-- fragment: body_reason
json_extract(body, '$.reason')

-- name: live_jobs_of_plugins
-- :plugins is a JSON list.
SELECT plugin, status, count(*) FROM job_queue {use_job_queue_by_status}
WHERE status <> 'succeeded' AND status IN ('queued', 'running') AND plugin IN (SELECT value FROM json_each(:plugins))
GROUP BY plugin, status

-- name: shorten_waits
-- Retries that are further away than their planned wait, because the clock was set back.
UPDATE job_queue SET next_retry_at = strftime('%Y-%m-%dT%H:%M:%f', :now, '+' || retry_wait || ' seconds') || '000Z'
WHERE seq IN (
  SELECT seq FROM job_queue
  WHERE hold = 'retry'
    AND next_retry_at > strftime('%Y-%m-%dT%H:%M:%f', :now, '+' || (retry_wait + 1) || ' seconds') || '000Z'
  LIMIT :limit
)
RETURNING seq

-- name: shorten_deadlines
-- As `shorten_waits`, for the deadlines of runs.
UPDATE pipeline_runs SET deadline_at =
  strftime('%Y-%m-%dT%H:%M:%f', :now, '+' || coalesce(deadline_wait, 0) || ' seconds') || '000Z'
WHERE run_id IN (
  SELECT run_id FROM pipeline_runs
  WHERE deadline_at >
    strftime('%Y-%m-%dT%H:%M:%f', :now, '+' || (coalesce(deadline_wait, 0) + 1) || ' seconds') || '000Z'
  LIMIT :limit
)
RETURNING run_id

-- name: shorten_delivery_waits
-- As `shorten_waits`, for the outbox.
UPDATE state_deliveries SET next_attempt_at =
  strftime('%Y-%m-%dT%H:%M:%f', :now, '+' || coalesce(retry_wait, 0) || ' seconds') || '000Z'
WHERE seq IN (
  SELECT seq FROM state_deliveries
  WHERE status = 'pending' AND next_attempt_at >
    strftime('%Y-%m-%dT%H:%M:%f', :now, '+' || (coalesce(retry_wait, 0) + 1) || ' seconds') || '000Z'
  LIMIT :limit
)
RETURNING seq

-- fragment: words
'"' || replace(replace(:words, '"', '""'), ' ', '" "') || '"'

-- fragment: job_has_words
-- For words that many executions have: every job of a list is checked.
EXISTS (
  SELECT 1 FROM job_log AS said CROSS JOIN job_log_text ON job_log_text.rowid = said.seq
  WHERE said.job_id = job_queue.id
    AND job_log_text MATCH '"' || replace(replace(:common_words, '"', '""'), ' ', '" "') || '"'
)

-- name: jobs_with_words
-- For words that few executions have: the index finds the jobs.
SELECT {job_columns} FROM job_queue
WHERE id IN (
    SELECT job_log.job_id FROM job_log_text CROSS JOIN job_log ON job_log.seq = job_log_text.rowid
    WHERE job_log_text MATCH {words}
  ) AND {job_page}

-- name: total_with_words
SELECT count(*) FROM (
  SELECT 1 FROM job_queue
  WHERE id IN (
      SELECT job_log.job_id FROM job_log_text CROSS JOIN job_log ON job_log.seq = job_log_text.rowid
      WHERE job_log_text MATCH {words}
    ) AND {job_page}
)

-- name: executions_with_words
-- How many executions have the words, counted up to :limit.
SELECT count(*) FROM (SELECT 1 FROM job_log_text WHERE job_log_text MATCH {words} LIMIT :limit)

-- name: log_with_words
-- CROSS JOIN fixes the order: the index finds the rows, newest first, and the filters are checked on them.
SELECT {log_columns} FROM job_log_text CROSS JOIN job_log ON job_log.seq = job_log_text.rowid
WHERE job_log_text MATCH {words} AND job_log_text.rowid < :before AND {log_filters}
ORDER BY job_log_text.rowid DESC LIMIT :limit

-- name: index_text
INSERT INTO job_log_text (rowid, body) VALUES (:seq, :body)

-- name: empty_search_index
-- Removes everything, damaged or not.
INSERT INTO job_log_text (job_log_text) VALUES ('delete-all')

-- name: delete_log_text
DELETE FROM job_log_text WHERE rowid = :seq

-- name: queued_of_plugins
-- :plugins is a JSON list, of plugins to leave out if :keep. Runs are ended through their steps.
SELECT {job_columns} FROM job_queue
WHERE status <> 'succeeded' AND status = 'queued' AND hold IS DISTINCT FROM 'run'
  AND (:plugins IS NULL OR (plugin IN (SELECT value FROM json_each(:plugins))) <> :keep)
ORDER BY seq LIMIT :limit

-- name: forget_schedules
-- :kept is a JSON list of [plugin, schedule_id].
DELETE FROM schedule_entries
WHERE (plugin, schedule_id) NOT IN (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:kept)
)

-- fragment: prunable_jobs
-- Ended long enough ago, no step of a run, and without live descendants. The newest row stays, with its run if it
-- is a step: the next row is numbered by it.
SELECT seq, id, plugin, payload FROM job_queue AS candidate
WHERE status = :status AND completed_at < :before AND run_id IS NULL AND seq < (SELECT max(seq) FROM job_queue)
  AND id IS NOT (SELECT run_id FROM job_queue WHERE seq = (SELECT max(seq) FROM job_queue))
  AND NOT EXISTS (
    WITH RECURSIVE below (id, status) AS (
      SELECT child.id, child.status FROM job_queue AS child WHERE child.parent_job_id = candidate.id
      UNION
      SELECT child.id, child.status FROM below CROSS JOIN job_queue AS child ON child.parent_job_id = below.id
    )
    SELECT 1 FROM below WHERE status IN ('queued', 'running')
  )
ORDER BY completed_at LIMIT :limit

-- name: job_ids_ending
-- Reads all ids: no index helps.
SELECT id FROM job_queue WHERE substr(id, -length(:ending)) = :ending
UNION
SELECT job_id FROM job_log WHERE substr(job_id, -length(:ending)) = :ending
ORDER BY 1 LIMIT :limit

-- name: check_damage
-- Damage that SQLite finds in the file: one row `ok`, or a row for each fault.
PRAGMA quick_check(10)

-- name: schema_version
PRAGMA user_version
