-- The access token of the job that an entry or a delivery is about, so that its own are found by an index.
ALTER TABLE ledger ADD COLUMN token TEXT COLLATE "C";
UPDATE ledger SET token = (SELECT job_queue.token FROM job_queue WHERE job_queue.id = ledger.job_id)
WHERE job_id IN (SELECT id FROM job_queue WHERE token IS NOT NULL);
CREATE INDEX ledger_by_token ON ledger (token, seq) WHERE token IS NOT NULL;
ALTER TABLE state_deliveries ADD COLUMN token TEXT COLLATE "C";
UPDATE state_deliveries SET token = (SELECT job_queue.token FROM job_queue WHERE job_queue.id = state_deliveries.job_id)
WHERE job_id IN (SELECT id FROM job_queue WHERE token IS NOT NULL);
CREATE INDEX state_deliveries_by_token ON state_deliveries (token, seq) WHERE token IS NOT NULL;
