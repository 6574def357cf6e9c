-- How the stdout of an execution (the column result) is read: a response, or what a script printed.
ALTER TABLE job_log ADD COLUMN output TEXT NOT NULL DEFAULT 'protocol' CHECK (output IN ('protocol', 'text', 'json'));
