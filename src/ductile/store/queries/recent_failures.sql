-- Failures since an instant, for `system doctor`.

-- name: failures_by_command
-- Jobs that failed since an instant, without those that an operator ended. Health checks are reported elsewhere.
SELECT plugin, command, count(*), max(id) FROM job_queue
WHERE status IN ('failed', 'dead') AND completed_at >= :since
  AND reason NOT IN ('cancelled', 'purged', 'plugin_removed')
  AND NOT (submitted_by = 'core' AND command = 'health')
GROUP BY plugin, command ORDER BY count(*) DESC, plugin, command LIMIT :limit

-- name: removals_by_command
-- Jobs that ended since an instant because their plugin was removed or disabled, with the latest that can be
-- retried; for a step that is its run.
SELECT plugin, command, count(*), max(coalesce(run_id, id)) FROM job_queue
WHERE status = 'dead' AND completed_at >= :since AND reason = 'plugin_removed'
GROUP BY plugin, command ORDER BY count(*) DESC, plugin, command LIMIT :limit

-- name: failing_receivers
-- Receivers of state webhooks that refused deliveries, with the error of the latest of them.
SELECT receiver, pending, dropped, (SELECT last_error FROM state_deliveries WHERE id = latest) FROM (
  SELECT receiver, count(*) FILTER (WHERE status = 'pending') AS pending,
    count(*) FILTER (WHERE status = 'dropped') AS dropped, max(id) AS latest
  FROM state_deliveries
  WHERE (status = 'pending' AND (last_status IS NOT NULL OR last_error IS NOT NULL))
    OR (status = 'dropped' AND completed_at >= :since)
  GROUP BY receiver
) AS receivers ORDER BY receiver LIMIT :limit
