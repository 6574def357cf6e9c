-- Sessions of the dashboard that were ended by signing out, until their cookies expire.
CREATE TABLE ended_sessions (
  id         TEXT COLLATE "C" PRIMARY KEY,
  expires_at TEXT COLLATE "C" NOT NULL
);
CREATE INDEX ended_sessions_by_expiry ON ended_sessions (expires_at);
