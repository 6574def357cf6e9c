-- Invariants (`Invariant` in store/model): each query returns the ids of rows that break one, none in a sound store.
-- They run on request, on a reader, and may read whole tables.

-- name: check_transitions_chain
SELECT DISTINCT job_id FROM (
  SELECT job_id, from_status, lag(to_status) OVER (PARTITION BY job_id ORDER BY seq) AS before FROM job_transitions
) AS change WHERE from_status IS DISTINCT FROM before LIMIT :limit

-- name: check_status_is_last_transition
SELECT id FROM job_queue AS job WHERE status IS DISTINCT FROM
  (SELECT to_status FROM job_transitions WHERE job_id = job.id ORDER BY seq DESC LIMIT 1)
LIMIT :limit

-- name: check_edges_are_known
-- The pairs that occur; the core knows which of them are edges.
SELECT from_status, to_status, min(job_id) FROM job_transitions GROUP BY from_status, to_status

-- name: check_executions_are_claims
SELECT id FROM job_queue AS job WHERE execution IS DISTINCT FROM
  (SELECT count(*) FROM job_transitions WHERE job_id = job.id AND to_status = 'running')
LIMIT :limit

-- name: check_ended_executions_are_logged
-- Retention removes the oldest rows of the log first, and never the newest: executions that ended after the
-- oldest remaining row must be there.
SELECT DISTINCT ended.job_id FROM job_transitions AS ended
WHERE ended.from_status = 'running'
  AND ended.at > coalesce((SELECT completed_at FROM job_log ORDER BY seq LIMIT 1), '')
  AND NOT EXISTS (
    SELECT 1 FROM job_log
    WHERE job_log.job_id = ended.job_id AND job_log.execution = ended.execution AND job_log.status <> 'superseded'
  )
LIMIT :limit

-- name: check_live_executions_are_not_logged
SELECT id FROM job_queue AS job WHERE status = 'running' AND EXISTS (
  SELECT 1 FROM job_log
  WHERE job_log.job_id = job.id AND job_log.execution = job.execution AND job_log.status <> 'superseded'
)
LIMIT :limit

-- name: check_attempts_within_limit
SELECT id FROM job_queue WHERE attempt > max_attempts LIMIT :limit

-- name: check_children_are_unique
SELECT min(id) FROM job_queue WHERE origin_job_id IS NOT NULL
GROUP BY origin_job_id, origin_execution, origin_event_index, origin_target HAVING count(*) > 1 LIMIT :limit

-- name: check_children_follow_success
-- Only children outside of runs: a failed branch can start the step after its split, and hooks follow failures
-- as well.
SELECT child.id FROM job_queue AS child JOIN job_queue AS parent ON parent.id = child.origin_job_id
WHERE child.origin_job_id IS NOT NULL AND child.submitted_by <> 'hook' AND child.run_id IS NULL
  AND parent.status <> 'succeeded'
LIMIT :limit

-- name: check_events_exist
SELECT id FROM job_queue AS job WHERE source_event_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.id = job.source_event_id)
LIMIT :limit

-- name: check_contexts_exist
SELECT id FROM job_queue AS job WHERE event_context_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM event_context WHERE event_context.id = job.event_context_id)
LIMIT :limit

-- name: check_key_has_one_holder
SELECT min(id) FROM job_queue
WHERE dedupe_key IS NOT NULL AND hold IS NULL AND (status = 'running' OR status = 'queued')
GROUP BY dedupe_key, plugin, command HAVING count(*) > 1 LIMIT :limit

-- name: check_key_followers_have_a_holder
SELECT id FROM job_queue AS waiting WHERE hold = 'key' AND NOT EXISTS (
  SELECT 1 FROM job_queue AS holder
  WHERE holder.dedupe_key = waiting.dedupe_key AND holder.plugin = waiting.plugin
    AND holder.command = waiting.command
    AND holder.hold IS NULL AND (holder.status = 'running' OR holder.status = 'queued')
)
LIMIT :limit

-- name: check_predecessors_are_live
SELECT id FROM job_queue AS waiting WHERE hold = 'predecessor' AND NOT EXISTS (
  SELECT 1 FROM job_queue AS other
  WHERE other.id = waiting.after_job_id AND (other.status = 'queued' OR other.status = 'running')
)
LIMIT :limit

-- name: check_one_suspect_is_active
SELECT id FROM job_queue
WHERE suspect = 1 AND (status = 'running' OR (status = 'queued' AND hold IS NULL))
ORDER BY seq LIMIT :limit OFFSET 1

-- name: check_held_suspects_have_an_active_one
SELECT id FROM job_queue WHERE hold = 'suspect' AND NOT EXISTS (
  SELECT 1 FROM job_queue AS other
  WHERE other.suspect = 1 AND (other.status = 'running' OR (other.status = 'queued' AND other.hold IS NULL))
)
LIMIT :limit

-- name: check_live_runs_have_live_steps
SELECT id FROM job_queue AS run
WHERE plugin = 'pipeline' AND (status = 'queued' OR status = 'running') AND NOT EXISTS (
  SELECT 1 FROM job_queue AS member
  WHERE member.run_id = run.id AND (member.status = 'queued' OR member.status = 'running')
)
LIMIT :limit

-- name: check_ended_runs_have_no_live_steps
SELECT member.id FROM job_queue AS member JOIN job_queue AS run ON run.id = member.run_id
WHERE (member.status = 'queued' OR member.status = 'running') AND run.id <> member.id
  AND run.plugin = 'pipeline' AND run.completed_at IS NOT NULL
LIMIT :limit

-- name: check_runs_are_whole
SELECT id FROM job_queue AS job WHERE plugin = 'pipeline' AND NOT EXISTS (
  SELECT 1 FROM pipeline_runs AS run
  JOIN pipeline_versions AS version ON version.fingerprint = run.fingerprint
  JOIN run_scopes AS scope ON scope.run_id = run.run_id AND scope.split_path IS NULL
  WHERE run.run_id = job.id
)
LIMIT :limit

-- name: check_scopes_count_live_lines
-- A live token is a step that has not ended, or a split with a live token.
SELECT scope.run_id || ' ' || coalesce(scope.split_path, '') FROM run_scopes AS scope WHERE scope.live <> (
  SELECT count(*) FROM run_members AS member JOIN job_queue AS job ON job.id = member.job_id
  WHERE member.run_id = scope.run_id AND member.scope_id = scope.id
    AND (job.status = 'queued' OR job.status = 'running')
) + (
  SELECT count(*) FROM run_scopes AS inner_scope
  WHERE inner_scope.run_id = scope.run_id AND inner_scope.parent_id = scope.id AND inner_scope.live > 0
)
LIMIT :limit

-- name: check_run_sizes_are_right
SELECT run_id FROM pipeline_runs AS run
WHERE jobs > :most OR jobs <> (SELECT count(*) FROM run_members WHERE run_members.run_id = run.run_id)
LIMIT :limit

-- name: check_half_open_breakers_have_a_probe
SELECT plugin || ' ' || command FROM circuit_breakers AS breaker WHERE state = 'half_open' AND NOT EXISTS (
  SELECT 1 FROM job_queue
  WHERE id = breaker.probe_job_id AND (status = 'queued' OR status = 'running')
)
LIMIT :limit

-- name: check_deliveries_are_counted
SELECT delivery.id FROM state_deliveries AS delivery JOIN job_queue AS job ON job.id = delivery.job_id
WHERE delivery.sequence < 1 OR delivery.sequence > job.callback_sequence
LIMIT :limit

-- name: check_ledger_never_goes_back
SELECT seq FROM (SELECT seq, at, lag(at) OVER (ORDER BY seq) AS before FROM ledger) AS entry WHERE at < before LIMIT :limit

-- name: check_transitions_are_in_the_ledger
-- Retention removes the oldest entries of the ledger first, and never the newest.
SELECT DISTINCT change.job_id FROM job_transitions AS change
WHERE change.seq >= coalesce((SELECT min(seq) FROM ledger), 0) AND NOT EXISTS (
  SELECT 1 FROM ledger
  WHERE ledger.seq = change.seq AND ledger.kind = 'job.transition' AND ledger.job_id = change.job_id
)
LIMIT :limit
