-- Whether an execution printed more on stderr than is kept.
ALTER TABLE job_log ADD COLUMN stderr_truncated INTEGER NOT NULL DEFAULT 0;
