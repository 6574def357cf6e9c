-- Sessions of the dashboard that were ended by signing out, until their cookies expire.
CREATE TABLE ended_sessions (
  id         TEXT PRIMARY KEY,
  expires_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ended_sessions_by_expiry ON ended_sessions (expires_at);
