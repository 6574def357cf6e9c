-- Pipeline runs: graphs, scopes, members and token results.

-- name: insert_graph_if_absent
INSERT INTO pipeline_versions (fingerprint, name, graph, created_at) VALUES (:fingerprint, :pipeline, :graph, :at)
ON CONFLICT (fingerprint) DO NOTHING

-- name: graph_by_fingerprint
SELECT graph FROM pipeline_versions WHERE fingerprint = :fingerprint

-- name: insert_run
INSERT INTO pipeline_runs (run_id, pipeline, fingerprint, deadline_at, deadline_wait, created_at)
VALUES (:run_id, :pipeline, :fingerprint, :deadline_at, :deadline_wait, :at)

-- name: run_around_step
-- The run of a step, and the step's position in it, if the step is as it was read.
SELECT run.fingerprint, run.jobs, job.cancel_requested_at, job.hops, job.trace_id, job.source_event_id,
  member.scope_id, member.branch, member.line_order
FROM job_queue AS step JOIN run_members AS member ON member.job_id = step.id
  JOIN pipeline_runs AS run ON run.run_id = member.run_id
  JOIN job_queue AS job ON job.id = run.run_id
WHERE step.seq = :seq AND step.id = :id AND step.status = :status AND step.execution = :execution
  AND step.cancel_requested_at IS NOT DISTINCT FROM :cancel_requested_at

-- name: event_payload
SELECT payload FROM events WHERE id = :id

-- name: run_of_claim
SELECT run.fingerprint, job.status, job.callback_url IS NOT NULL
FROM pipeline_runs AS run JOIN job_queue AS job ON job.id = run.run_id WHERE run.run_id = :run_id

-- name: run_fingerprint
SELECT fingerprint FROM pipeline_runs WHERE run_id = :run_id

-- name: last_waiting_run
-- Runs with the same key run one after the other: a new one waits for the last of them.
SELECT id FROM job_queue AS run {use_job_queue_dedupe}
WHERE {same_key} AND status IN ('queued', 'running')
  AND id <> :id
  AND NOT EXISTS (SELECT 1 FROM job_queue AS step WHERE step.after_job_id = run.id AND step.hold = 'predecessor')
ORDER BY seq DESC LIMIT 1

-- name: waited_for
-- The run that the steps of this one wait for, if it is live.
SELECT earlier.id FROM job_queue AS step JOIN job_queue AS earlier ON earlier.id = step.after_job_id
WHERE step.run_id = :run_id AND step.status <> 'succeeded'
  AND (earlier.status = 'queued' OR earlier.status = 'running') LIMIT 1

-- name: awaited_by_steps
-- The run that live steps of this one wait for.
SELECT after_job_id FROM job_queue WHERE run_id = :run_id AND hold = 'predecessor' LIMIT 1

-- name: wait_for_another
-- A run never waits for itself.
UPDATE job_queue SET after_job_id = :other_id
WHERE after_job_id = :id AND hold = 'predecessor' AND run_id IS DISTINCT FROM :other_id

-- name: forget_predecessor
-- Clears this run, which had ended, as the predecessor of steps of live runs with the same key.
UPDATE job_queue SET after_job_id = NULL WHERE after_job_id = :id AND run_id IN (
  SELECT id FROM job_queue AS run {use_job_queue_dedupe} WHERE {same_key} AND status IN ('queued', 'running')
)

-- name: start_run
-- A run starts when the first of its steps is claimed.
UPDATE job_queue SET status = 'running', reason = 'claimed', execution = execution + 1, started_at = :at
WHERE id = :id AND status = 'queued' RETURNING {job_columns}

-- name: count_run_jobs
UPDATE pipeline_runs SET jobs = jobs + :more WHERE run_id = :run_id

-- name: clear_deadline
UPDATE pipeline_runs SET deadline_at = NULL WHERE run_id = :run_id AND deadline_at IS NOT NULL

-- name: overdue_runs
SELECT run_id FROM pipeline_runs WHERE deadline_at <= :now ORDER BY deadline_at LIMIT :limit

-- name: next_deadline
SELECT min(deadline_at) FROM pipeline_runs WHERE deadline_at IS NOT NULL

-- name: insert_scope
INSERT INTO run_scopes (
  id, run_id, split_path, parent_id, parent_branch, parent_order, live, state, entry_job_id, context_id
) VALUES (
  :id, :run_id, :split, :parent_id, :parent_branch, :parent_order, :live, 'open', :entry_job_id, :context_id
)

-- name: scope_by_id
SELECT parent_id, parent_branch, parent_order, id, live, split_path, entry_job_id, context_id, state
FROM run_scopes WHERE id = :id

-- name: set_live
UPDATE run_scopes SET live = :live WHERE id = :id

-- name: set_scope_state
UPDATE run_scopes SET state = :state WHERE id = :id

-- name: insert_member
INSERT INTO run_members (job_id, run_id, scope_id, branch, line_order)
VALUES (:job_id, :run_id, :scope_id, :branch, :line_order)

-- name: member_by_id
SELECT scope_id, branch, line_order FROM run_members WHERE job_id = :job_id

-- name: insert_token_result
INSERT INTO run_leaves (
  scope_id, branch, line_order, run_id, position, step_path, status, job_id, event_id, error
) VALUES (
  :scope_id, :branch, :line_order, :run_id, :step_position, :step_path, :status, :job_id, :event_id, :error
)

-- name: delete_token_result
DELETE FROM run_leaves WHERE scope_id = :scope_id AND branch = :branch AND line_order = :line_order

-- name: token_results_of_scope
SELECT result.branch, result.line_order, result.position, result.step_path, result.status, result.job_id,
  result.event_id, result.error, event.payload
FROM run_leaves AS result LEFT JOIN events AS event ON event.id = result.event_id
WHERE result.scope_id = :scope_id

-- name: token_results_of_run
-- Token results, each with the split and the state of its scope.
SELECT result.scope_id, result.branch, result.line_order, result.position, result.step_path, result.status,
  result.job_id, result.event_id, result.error, scope.split_path, scope.state
FROM run_leaves AS result JOIN run_scopes AS scope ON scope.id = result.scope_id
WHERE result.run_id = :run_id

-- name: last_output
SELECT result, output, stderr, exit_code, signal, stderr_truncated FROM job_log
WHERE job_id = :job_id AND status <> 'superseded' ORDER BY execution DESC LIMIT 1

-- name: artifacts_of_members
SELECT step_path, artifacts FROM job_queue WHERE run_id = :run_id AND artifacts IS NOT NULL ORDER BY seq

-- name: request_cancel_of_members
UPDATE job_queue SET cancel_requested_at = coalesce(cancel_requested_at, :at)
WHERE run_id = :run_id AND status IN ('queued', 'running')

-- name: live_members
SELECT {job_columns} FROM job_queue
WHERE run_id = :run_id AND status = :status ORDER BY seq LIMIT :limit

-- name: cancelled_in_queue
-- Queued steps of a cancelled run: the daemon died before it ended them.
SELECT {job_columns} FROM job_queue
WHERE status <> 'succeeded' AND status = 'queued' AND cancel_requested_at IS NOT NULL AND hold IS DISTINCT FROM 'run'
ORDER BY seq LIMIT :limit

-- name: stalled_runs
-- Runs without a live step; there must be none.
SELECT {job_columns} FROM job_queue AS candidate
WHERE status <> 'succeeded' AND (status = 'queued' OR status = 'running') AND plugin = 'pipeline'
  AND NOT EXISTS (
    SELECT 1 FROM job_queue AS member
    WHERE member.run_id = candidate.id AND (member.status = 'queued' OR member.status = 'running')
  )
ORDER BY seq LIMIT :limit

-- name: retryable_members
SELECT {job_columns} FROM job_queue
WHERE run_id = :run_id AND status IN ('failed', 'dead')
  AND reason NOT IN ('bad_template', 'bad_baggage', 'bad_condition')
ORDER BY seq

-- name: members_stopped_by_cancel
-- Steps that succeeded while their run was being cancelled, which ended their token.
SELECT {job_columns} FROM job_queue AS member
WHERE member.run_id = :run_id AND member.status = 'succeeded' AND EXISTS (
  SELECT 1 FROM run_leaves AS result
  WHERE result.run_id = :run_id AND result.job_id = member.id AND result.status = 'failed' AND result.step_path = member.step_path
)
ORDER BY seq

-- name: events_of_job
SELECT id, type, source, payload, headers, dedupe_key, producer_index FROM events
WHERE producer_job_id = :job_id ORDER BY producer_index

-- name: set_predecessor
UPDATE job_queue SET after_job_id = :after_job_id WHERE seq = :seq

-- name: members_at_step
SELECT {job_columns} FROM job_queue WHERE run_id = :run_id AND step_path = :step_path ORDER BY seq

-- name: log_of_run
-- Every execution of every step, with its output, oldest first.
SELECT {log_columns}, result, stderr, payload FROM job_log
WHERE run_id = :run_id AND status <> 'superseded' ORDER BY seq LIMIT :limit

-- name: ledger_of_job
-- Ledger entries of a job other than transitions.
SELECT seq, at, kind, job_id, run_id, data, token FROM ledger
WHERE job_id = :job_id AND kind <> 'job.transition' ORDER BY seq LIMIT :limit

-- name: members_of_run
SELECT {job_columns} FROM job_queue WHERE run_id = :run_id ORDER BY seq LIMIT :limit
