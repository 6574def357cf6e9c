-- Seconds; what deadline_at was drawn from. A clock that is set back must not make a run's time longer.
ALTER TABLE pipeline_runs ADD COLUMN deadline_wait REAL;

-- Steps are removed with their run. A sweep must not read through those of runs that are kept, day after day.
DROP INDEX job_queue_ended;
CREATE INDEX job_queue_prunable ON job_queue (status, completed_at) WHERE completed_at IS NOT NULL AND run_id IS NULL;
-- Steps that outlived their run, which until now could go first: they are on their own.
UPDATE job_queue SET run_id = NULL
WHERE run_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM job_queue AS run WHERE run.id = job_queue.run_id);
