-- Jobs, schedules and configurations since an instant, for `system digest`.

-- name: bad_endings
-- Jobs and pipeline runs that failed; not the steps of a run, which has failed with them. Health checks are elsewhere.
SELECT id, plugin, command, reason, completed_at, substr(last_error, 1, 500) FROM job_queue
WHERE completed_at IS NOT NULL AND run_id IS NULL AND status = :status AND completed_at >= :since
  AND NOT (submitted_by = 'core' AND command = 'health')
ORDER BY completed_at DESC LIMIT :limit

-- name: skipped_since
-- Runs of schedules that were skipped. The last row of a schedule is extended after it was written.
SELECT plugin, schedule_id, reason, nominal_at, until_at, count FROM occurrences
WHERE outcome = 'skipped' AND (
  seq IN (SELECT seq FROM occurrences WHERE created_at >= :since ORDER BY created_at DESC LIMIT :limit)
  OR (until_at >= :since AND seq IN (
    SELECT (
      SELECT seq FROM occurrences AS latest
      WHERE latest.plugin = entry.plugin AND latest.schedule_id = entry.schedule_id
      ORDER BY nominal_at DESC LIMIT 1
    ) FROM schedule_entries AS entry
  ))
)

-- name: waiting_groups
-- Queued jobs by plugin and hold, with the oldest of each, among the oldest :limit. Runs wait by their steps.
SELECT plugin, hold, count(*), min(id), min(created_at) FROM (
  SELECT plugin, hold, id, created_at FROM job_queue
  WHERE status <> 'succeeded' AND status = 'queued' ORDER BY seq LIMIT :limit
) AS oldest
WHERE hold IS NULL OR hold <> 'run'
GROUP BY plugin, hold ORDER BY count(*) DESC, plugin, hold

-- name: config_loads
-- Configurations without their content, newest first.
SELECT hash, origin, loaded_at, plugins FROM config_snapshots ORDER BY seq DESC LIMIT :limit
