-- Placement: jobs that wait because no live node may run them.

-- fragment: job_groups
-- Ready jobs by plugin, those that belong to a node also by that, and held ones with the oldest instant.
SELECT name AS plugin, NULL AS node, NULL AS held_since FROM plugins WHERE name IS NOT NULL
UNION ALL
SELECT DISTINCT plugin, node, NULL FROM job_queue WHERE status = 'queued' AND hold IS NULL AND node IS NOT NULL
UNION ALL
SELECT plugin, node, min(held_since) FROM job_queue WHERE hold = 'no_node' GROUP BY plugin, node

-- fragment: of_group
plugin = :plugin AND node IS NOT DISTINCT FROM :node

-- name: job_groups
{ready_plugins}
{job_groups}

-- name: hold_without_node
-- Jobs that no other job can wait for. The others are held one by one.
UPDATE job_queue SET hold = 'no_node', held_since = :at WHERE seq IN (
  SELECT seq FROM job_queue
  WHERE status = 'queued' AND hold IS NULL AND {of_group} AND dedupe_key IS NULL AND suspect = 0
  ORDER BY seq LIMIT :limit
)
RETURNING seq

-- name: ready_without_node
SELECT {job_columns} FROM job_queue WHERE status = 'queued' AND hold IS NULL AND {of_group} ORDER BY seq LIMIT :limit

-- name: hold_one_without_node
UPDATE job_queue SET hold = 'no_node', held_since = :at WHERE seq = :seq

-- name: release_with_node
UPDATE job_queue SET hold = NULL, held_since = NULL WHERE seq IN (
  SELECT seq FROM job_queue
  WHERE hold = 'no_node' AND {of_group} AND dedupe_key IS NULL AND suspect = 0 AND after_job_id IS NULL
  ORDER BY seq LIMIT :limit
)
RETURNING seq

-- name: held_without_node
SELECT {job_columns} FROM job_queue WHERE hold = 'no_node' AND {of_group} ORDER BY seq LIMIT :limit

-- name: jobs_without_node
SELECT plugin, node, count(*), min(held_since) FROM job_queue
WHERE hold = 'no_node' GROUP BY plugin, node ORDER BY count(*) DESC, plugin, node

-- name: overdue_without_node
SELECT id FROM job_queue
WHERE hold = 'no_node' AND {of_group} AND held_since <= :until ORDER BY held_since, seq LIMIT :limit
