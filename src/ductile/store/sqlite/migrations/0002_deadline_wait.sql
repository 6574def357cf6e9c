-- Seconds; what deadline_at was drawn from. A clock that is set back must not make a run's time longer.
ALTER TABLE pipeline_runs ADD COLUMN deadline_wait REAL;
