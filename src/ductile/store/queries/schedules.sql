-- Schedules and their occurrences.

-- fragment: schedule_columns
plugin, schedule_id, fingerprint, next_at, nominal_at, last_job_id, last_fired_at, paused_at, deferred_nominal_at,
deferred_due_at, defined_at

-- name: schedule
SELECT {schedule_columns} FROM schedule_entries WHERE plugin = :plugin AND schedule_id = :schedule_id

-- name: all_schedules
SELECT {schedule_columns} FROM schedule_entries ORDER BY plugin, schedule_id

-- name: put_schedule
-- An unchanged schedule keeps its next instant; one with a new definition starts again, but stays paused.
INSERT INTO schedule_entries
  (plugin, schedule_id, fingerprint, defined_at,
   next_at, nominal_at, last_job_id, last_fired_at, paused_at, updated_at)
VALUES (:plugin, :schedule_id, :fingerprint, :at,
   :next_at, :nominal_at, :last_job_id, :last_fired_at, :paused_at, :at)
ON CONFLICT (plugin, schedule_id) DO UPDATE SET
  fingerprint = excluded.fingerprint, next_at = excluded.next_at, nominal_at = excluded.nominal_at,
  defined_at = excluded.defined_at, updated_at = excluded.updated_at
WHERE schedule_entries.fingerprint <> excluded.fingerprint

-- name: advance_schedule
UPDATE schedule_entries SET
  next_at = :next_at, nominal_at = :nominal_at, last_job_id = coalesce(:last_job_id, last_job_id),
  last_fired_at = coalesce(:last_fired_at, last_fired_at), deferred_nominal_at = :deferred_nominal_at,
  deferred_due_at = :deferred_due_at, updated_at = :at
WHERE plugin = :plugin AND schedule_id = :schedule_id

-- name: schedule_of_latest_job
-- Only the end of the latest job decides the next instant.
SELECT schedule_id, next_at, nominal_at, paused_at FROM schedule_entries
WHERE plugin = :plugin AND schedule_id = :schedule_id AND last_job_id = :job_id

-- name: set_next_occurrence
UPDATE schedule_entries SET next_at = :next_at, nominal_at = :nominal_at, updated_at = :at
WHERE plugin = :plugin AND schedule_id = :schedule_id

-- name: pause_schedule
UPDATE schedule_entries SET paused_at = :paused_at, updated_at = :at
WHERE plugin = :plugin AND schedule_id = :schedule_id
RETURNING plugin

-- name: occurrence_exists
SELECT 1 FROM occurrences
WHERE plugin = :plugin AND schedule_id = :schedule_id AND nominal_at = :nominal_at

-- name: last_occurrence
SELECT seq, outcome, reason, until_at FROM occurrences
WHERE plugin = :plugin AND schedule_id = :schedule_id ORDER BY nominal_at DESC LIMIT 1

-- name: insert_occurrence
INSERT INTO occurrences
  (plugin, schedule_id, nominal_at, until_at, count, outcome, reason, job_id, late_ms, created_at)
VALUES (:plugin, :schedule_id, :nominal_at, :until_at, :count, :outcome, :reason, :job_id, :late_ms, :at)

-- name: extend_skip
UPDATE occurrences SET until_at = :until_at, count = count + :count WHERE seq = :seq

-- name: last_covered
-- The last instant covered by the rows up to this one. Rows do not overlap, so the nearest decides.
SELECT until_at FROM occurrences
WHERE plugin = :plugin AND schedule_id = :schedule_id AND nominal_at <= :nominal_at
ORDER BY nominal_at DESC LIMIT 1

-- name: occurrences_of_schedule
-- The status of a job that has left the queue is that of its last execution.
SELECT seq, plugin, schedule_id, nominal_at, outcome, until_at, count, reason, job_id, late_ms,
  coalesce(
    (SELECT status FROM job_queue WHERE job_queue.id = occurrences.job_id),
    (SELECT status FROM job_log WHERE job_log.job_id = occurrences.job_id AND status <> 'superseded'
     ORDER BY execution DESC LIMIT 1)
  ) AS job_status
FROM occurrences
WHERE plugin = :plugin AND schedule_id = :schedule_id AND seq < :before ORDER BY seq DESC LIMIT :limit
