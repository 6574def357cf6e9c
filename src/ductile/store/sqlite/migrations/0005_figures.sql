-- Jobs by reason. Rows that are in order are left out: the index costs nothing until a job fails, waits or is ended.
CREATE INDEX job_queue_by_reason ON job_queue (reason, seq)
  WHERE reason <> 'submitted' AND reason <> 'claimed' AND reason <> 'completed';
-- Everything that statistics read of an execution, in the order of time, so that large outputs beside it are not read.
CREATE INDEX job_log_figures ON job_log (
  completed_at, plugin, command, status, execution, attempt, duration_ms, created_at, started_at, octet_length(stderr),
  exit_code, signal
);
-- State webhooks that did not arrive, among the many that did.
CREATE INDEX state_deliveries_undelivered ON state_deliveries (status, seq)
  WHERE status = 'dropped' OR status = 'gone';
