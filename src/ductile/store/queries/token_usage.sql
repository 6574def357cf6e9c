-- The usage of access tokens.

-- name: add_token_usage
-- Adds to the current period; an older one begins again at 0. Returns the sums.
INSERT INTO token_usage (token, target, period, started_at, jobs, cost)
VALUES (:token, :target, :period, :started_at, :jobs, :cost)
ON CONFLICT (token, target, period) DO UPDATE SET
  jobs = excluded.jobs + CASE WHEN token_usage.started_at = excluded.started_at THEN token_usage.jobs ELSE 0 END,
  cost = excluded.cost + CASE WHEN token_usage.started_at = excluded.started_at THEN token_usage.cost ELSE 0 END,
  started_at = excluded.started_at
RETURNING jobs, cost

-- name: token_usage
SELECT target, period, started_at, jobs, cost FROM token_usage WHERE token = :token

-- name: unfinished_of_token
-- Jobs of a token with limits that have not ended, by plugin and command.
SELECT plugin, command, count(*) FROM job_queue {use_job_queue_charged}
WHERE charged = 1 AND completed_at IS NULL AND token = :token
GROUP BY plugin, command
