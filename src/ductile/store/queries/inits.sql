-- Results of `init`, for each version of a plugin and its configuration.

-- name: init_record
SELECT status, tries, job_id, error FROM plugin_inits
WHERE plugin = :plugin AND fingerprint = :fingerprint AND config_hash = :config_hash

-- name: inits
SELECT plugin, fingerprint, config_hash, status, job_id, error, updated_at FROM plugin_inits
ORDER BY plugin, updated_at

-- name: put_init
INSERT INTO plugin_inits (plugin, fingerprint, config_hash, status, tries, job_id, error, updated_at)
VALUES (:plugin, :fingerprint, :config_hash, :status, :tries, :job_id, :error, :at)
ON CONFLICT (plugin, fingerprint, config_hash) DO UPDATE SET
  status = excluded.status, tries = excluded.tries, job_id = excluded.job_id, error = excluded.error,
  updated_at = excluded.updated_at

-- name: finish_init
UPDATE plugin_inits SET status = :status, error = :error, updated_at = :at WHERE job_id = :job_id
