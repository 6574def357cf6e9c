-- The node that alone may run a job, and since when a job has waited because no live node may run it. Only a store
-- that several nodes share has such jobs; this one can have been copied from it.
ALTER TABLE job_queue ADD COLUMN node TEXT;
ALTER TABLE job_queue ADD COLUMN held_since TEXT;
ALTER TABLE job_log ADD COLUMN node TEXT;
CREATE INDEX job_queue_without_node ON job_queue (plugin, node, held_since) WHERE hold = 'no_node';
CREATE INDEX job_queue_ready_on_node ON job_queue (plugin, node, seq)
  WHERE status = 'queued' AND hold IS NULL AND node IS NOT NULL;
-- SQLite cannot alter a CHECK. Editing its text is the way that its documentation gives for that.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'OR hold = ''run'')', 'OR hold = ''run'' OR hold = ''no_node'')')
WHERE type = 'table' AND name = 'job_queue';
PRAGMA writable_schema = RESET;
