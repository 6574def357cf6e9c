-- The job that this one runs again.
ALTER TABLE job_queue ADD COLUMN rerun_of TEXT;
ALTER TABLE job_log ADD COLUMN rerun_of TEXT;
