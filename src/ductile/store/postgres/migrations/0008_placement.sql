-- The node that alone may run a job, and since when a job has waited because no live node may run it.
ALTER TABLE job_queue ADD COLUMN node TEXT COLLATE "C";
ALTER TABLE job_queue ADD COLUMN held_since TEXT COLLATE "C";
ALTER TABLE job_log ADD COLUMN node TEXT COLLATE "C";
ALTER TABLE job_queue DROP CONSTRAINT job_queue_hold_check;
ALTER TABLE job_queue ADD CONSTRAINT job_queue_hold_check CHECK (
  hold = 'retry' OR hold = 'key' OR hold = 'predecessor' OR hold = 'suspect' OR hold = 'run' OR hold = 'no_node');
CREATE INDEX job_queue_without_node ON job_queue (plugin, node, held_since) WHERE hold = 'no_node';
CREATE INDEX job_queue_ready_on_node ON job_queue (plugin, node, seq)
  WHERE status = 'queued' AND hold IS NULL AND node IS NOT NULL;
