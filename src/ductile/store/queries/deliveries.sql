-- The outbox of state webhooks.

-- fragment: delivery_columns
seq, id, job_id, sequence, state, url, receiver, body, status, attempts, next_attempt_at, last_status, last_error,
created_at, completed_at

-- name: callback_of_job
-- The job's latest event, and its first subscription.
SELECT callback_state, callback_sequence, callback_at, callback_url, callback_model, callback_events
FROM job_queue WHERE id = :job_id

-- name: further_subscriptions
-- Subscriptions of duplicates, beside the one in the job's own row.
SELECT url, events FROM state_subscriptions WHERE job_id = :job_id ORDER BY url

-- name: subscription
SELECT events FROM state_subscriptions WHERE job_id = :job_id AND url = :url

-- name: put_subscription
INSERT INTO state_subscriptions (job_id, url, events) VALUES (:job_id, :url, :events)
ON CONFLICT (job_id, url) DO UPDATE SET events = excluded.events

-- name: delete_subscriptions
DELETE FROM state_subscriptions WHERE job_id = :job_id

-- name: set_callback
UPDATE job_queue SET callback_url = :callback_url, callback_model = :callback_model, callback_events = :callback_events
WHERE id = :job_id

-- name: next_callback
-- Number the next event, and store its state and instant.
UPDATE job_queue SET callback_sequence = callback_sequence + 1, callback_state = :state, callback_at = :at
WHERE id = :job_id RETURNING callback_sequence

-- name: insert_delivery
INSERT INTO state_deliveries (
  id, job_id, sequence, state, url, receiver, body, status, next_attempt_at, created_at, token
) VALUES (:id, :job_id, :sequence, :state, :url, :receiver, :body, 'pending', :due_at, :at, :token)

-- name: due_receivers
-- Receivers with a due delivery, the longest waiting first. The index is read receiver by receiver, so the
-- number of rows of a dead one does not matter.
WITH RECURSIVE receivers (receiver) AS (
  SELECT min(receiver) FROM state_deliveries WHERE status = 'pending'
  UNION ALL
  SELECT (
    SELECT min(later.receiver) FROM state_deliveries AS later
    WHERE later.status = 'pending' AND later.receiver > receivers.receiver
  )
  FROM receivers WHERE receivers.receiver IS NOT NULL
),
heads (receiver, due_at) AS (
  SELECT receivers.receiver, (
    SELECT min(head.next_attempt_at) FROM state_deliveries AS head
    WHERE head.status = 'pending' AND head.receiver = receivers.receiver
  )
  FROM receivers WHERE receivers.receiver IS NOT NULL
)
SELECT receiver FROM heads WHERE due_at <= :now ORDER BY due_at, receiver

-- name: due_deliveries
-- First attempts are sent in order for each job and URL: one waits while the first attempt of an earlier one is
-- pending or in flight.
SELECT {delivery_columns} FROM state_deliveries AS due
WHERE status = 'pending' AND receiver = :receiver AND next_attempt_at <= :now
  AND NOT EXISTS (
    SELECT 1 FROM state_deliveries AS earlier
    WHERE earlier.job_id = due.job_id AND earlier.url = due.url AND earlier.sequence < due.sequence
      AND earlier.tried = 0 AND earlier.status = 'pending'
  )
ORDER BY next_attempt_at, seq LIMIT :limit

-- name: next_delivery_at
-- Deliveries that are due already wait for capacity, not for time.
SELECT min(next_attempt_at) FROM state_deliveries WHERE status = 'pending' AND next_attempt_at > :now

-- name: count_attempt
UPDATE state_deliveries SET attempts = attempts + 1, next_attempt_at = :retry_at, retry_wait = :retry_wait
WHERE seq = :seq

-- name: delivery_by_id
SELECT {delivery_columns} FROM state_deliveries WHERE id = :id

-- name: report_delivery
-- After an attempt that does not count, later events still wait for the first one.
UPDATE state_deliveries SET
  status = :status, attempts = attempts - 1 + :counts, tried = CASE WHEN :counts > tried THEN :counts ELSE tried END,
  next_attempt_at = :next_attempt_at, retry_wait = :retry_wait, completed_at = :completed_at,
  last_status = :last_status, last_error = :last_error
WHERE seq = :seq

-- name: resend_delivery
-- The delivery has fresh attempts, and later events do not wait for it again.
UPDATE state_deliveries SET
  status = 'pending', attempts = 0, next_attempt_at = :at, retry_wait = NULL, completed_at = NULL
WHERE id = :id AND status <> 'pending' RETURNING seq

-- fragment: delivery_page
-- Plugin, command, pipeline and reason are in the body of a delivery. The text :query is searched in the last error.
seq < :before AND (:token IS NULL OR token = :token) AND (:job_id IS NULL OR job_id = :job_id) AND (:status IS NULL OR status = :status)
AND (:created_from IS NULL OR created_at >= :created_from) AND (:created_before IS NULL OR created_at < :created_before)
AND (:plugin IS NULL OR {body_plugin} = :plugin) AND (:command IS NULL OR {body_command} = :command)
AND (:pipeline IS NULL OR {body_pipeline} = :pipeline) AND (:reason IS NULL OR {body_reason} = :reason)
AND (:query IS NULL OR lower(last_error) LIKE :query ESCAPE '\')
ORDER BY seq DESC LIMIT :limit

-- name: deliveries
SELECT {delivery_columns} FROM state_deliveries WHERE {delivery_page}

-- name: deliveries_of_job
SELECT {delivery_columns} FROM state_deliveries WHERE job_id = :job_id AND {delivery_page}

-- name: deliveries_of_token
SELECT {delivery_columns} FROM state_deliveries WHERE token = :token AND {delivery_page}

-- name: deliveries_undelivered
SELECT {delivery_columns} FROM state_deliveries
WHERE (status = 'dropped' OR status = 'gone') AND status = :status AND {delivery_page}

-- name: count_deliveries_found
SELECT count(*) FROM (SELECT 1 FROM state_deliveries WHERE {delivery_page}) AS found

-- name: count_deliveries_of_token
SELECT count(*) FROM (SELECT 1 FROM state_deliveries WHERE token = :token AND {delivery_page}) AS found

-- name: count_deliveries_undelivered
SELECT count(*) FROM (
  SELECT 1 FROM state_deliveries
  WHERE (status = 'dropped' OR status = 'gone') AND status = :status AND {delivery_page}
) AS found

-- name: lost_deliveries
-- State webhooks that were given up since an instant, by receiver, with the latest of each.
SELECT receiver, dropped, gone, latest, (SELECT last_error FROM state_deliveries WHERE id = latest) FROM (
  SELECT receiver, count(*) FILTER (WHERE status = 'dropped') AS dropped,
    count(*) FILTER (WHERE status = 'gone') AS gone, max(id) AS latest, count(*) AS lost
  FROM state_deliveries
  WHERE completed_at IS NOT NULL AND completed_at >= :since AND status <> 'delivered'
  GROUP BY receiver
) AS receivers ORDER BY lost DESC, receiver LIMIT :limit
