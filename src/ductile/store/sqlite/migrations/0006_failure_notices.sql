-- Failures that the next notice to `service.on_failure` reports: a row for each command and reason, however many
-- there are.
CREATE TABLE failure_groups (
  plugin   TEXT NOT NULL,                          -- pipeline, for runs
  command  TEXT NOT NULL,
  reason   TEXT NOT NULL,
  count    INTEGER NOT NULL CHECK (count >= 1),
  first_at TEXT NOT NULL,
  last_at  TEXT NOT NULL,
  examples TEXT NOT NULL,                          -- a JSON list of the first few
  PRIMARY KEY (plugin, command, reason)
) STRICT, WITHOUT ROWID;
-- One row: the latest notice with the window that it began, and how its receiver does.
CREATE TABLE failure_notices (
  id        INTEGER PRIMARY KEY CHECK (id = 1),
  sent_at   TEXT NOT NULL,
  window_seconds REAL NOT NULL,
  job_id    TEXT,                                  -- null if the condition of its pipeline prevented it
  failed    INTEGER NOT NULL DEFAULT 0,            -- notices that failed in a row
  failed_id TEXT,                                  -- the latest of them
  error     TEXT
) STRICT;
