-- The daemons that share this store. `owner` is the process that owns running jobs; `plugins` is a JSON list.
CREATE TABLE nodes (
  owner text COLLATE "C" PRIMARY KEY,
  name text NOT NULL,
  host text NOT NULL,
  machine text NOT NULL,
  version text NOT NULL,
  config text NOT NULL,
  workers integer NOT NULL,
  plugins text NOT NULL,
  started_at timestamptz NOT NULL,
  heartbeat_at timestamptz NOT NULL,
  ended_at timestamptz
);
CREATE UNIQUE INDEX nodes_live ON nodes (name) WHERE ended_at IS NULL;
