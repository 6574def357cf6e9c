-- The access token that a job was started with, or the job that it follows from.
ALTER TABLE job_queue ADD COLUMN token TEXT;
ALTER TABLE job_log ADD COLUMN token TEXT;
CREATE INDEX job_queue_by_token ON job_queue (token, seq) WHERE token IS NOT NULL;
CREATE INDEX job_log_by_token ON job_log (token, seq) WHERE token IS NOT NULL;
-- What plugins reported as their cost: of all executions of a job, and of one.
ALTER TABLE job_queue ADD COLUMN cost REAL;
ALTER TABLE job_log ADD COLUMN cost REAL;
-- Jobs that count against the limits of their token. Others have no entry in the index.
ALTER TABLE job_queue ADD COLUMN charged INTEGER NOT NULL DEFAULT 0;
CREATE INDEX job_queue_charged ON job_queue (token, plugin, command) WHERE charged = 1 AND completed_at IS NULL;
-- How much of its limits a token has used in the current hour and day.
CREATE TABLE token_usage (
  token      TEXT NOT NULL,
  target     TEXT NOT NULL,                        -- a plugin or pipeline:NAME that has limits of its own; '' for all
  period     TEXT NOT NULL CHECK (period IN ('hour', 'day')),
  started_at TEXT NOT NULL,                        -- an older period counts for nothing
  jobs       INTEGER NOT NULL DEFAULT 0,
  cost       REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (token, target, period)
) STRICT, WITHOUT ROWID;
