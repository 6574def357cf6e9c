-- Failure notices: failures that wait to be reported, and the latest notice.

-- name: failure_group
SELECT count, first_at, examples FROM failure_groups
WHERE plugin = :plugin AND command = :command AND reason = :reason

-- name: put_failure_group
INSERT INTO failure_groups (plugin, command, reason, count, first_at, last_at, examples)
VALUES (:plugin, :command, :reason, 1, :at, :at, :examples)
ON CONFLICT (plugin, command, reason) DO UPDATE SET
  count = failure_groups.count + 1, last_at = excluded.last_at, examples = excluded.examples

-- name: failure_groups
SELECT plugin, command, reason, count, first_at, last_at, examples FROM failure_groups
ORDER BY plugin, command, reason

-- name: first_failure_at
SELECT min(first_at) FROM failure_groups

-- name: delete_failure_groups
DELETE FROM failure_groups

-- name: has_notice_above
-- Whether the job :id, or one that it follows from, is a failure notice.
WITH RECURSIVE above (parent_job_id, submitted_by, submitted_detail) AS (
  SELECT parent_job_id, submitted_by, submitted_detail FROM job_queue WHERE id = :id
  UNION
  SELECT job_queue.parent_job_id, job_queue.submitted_by, job_queue.submitted_detail
  FROM above CROSS JOIN job_queue ON job_queue.id = above.parent_job_id
)
SELECT 1 FROM above WHERE submitted_by = 'hook' AND submitted_detail = :detail LIMIT 1

-- name: failure_notice
SELECT sent_at, window_seconds, job_id, failed, failed_id, error FROM failure_notices WHERE id = 1

-- name: put_failure_notice
INSERT INTO failure_notices (id, sent_at, window_seconds, job_id) VALUES (1, :at, :window_seconds, :job_id)
ON CONFLICT (id) DO UPDATE SET sent_at = excluded.sent_at, window_seconds = excluded.window_seconds, job_id = excluded.job_id

-- name: notice_failed
UPDATE failure_notices SET failed = failed + 1, failed_id = :job_id, error = :error WHERE id = 1

-- name: notice_succeeded
UPDATE failure_notices SET failed = 0, failed_id = NULL, error = NULL WHERE id = 1 AND failed > 0
