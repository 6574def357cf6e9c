# ruff: noqa: E501
# fmt: off
"""The options of commands by operation. Written by `make docs` from the requests: do not edit."""

from __future__ import annotations

from ductile.cli.spec import Option

OPTIONS = {
    "event.send": (
        Option("--payload JSON", "its payload: a JSON object, @FILE, or - for standard input", "payload", "json"),
        Option("--dedupe-key KEY", "start nothing if a job with this key has succeeded within its TTL", "dedupe_key"),
        Option("--type TYPE", "the event's type", "type"),
    ),
    "job.cancel": (
        Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "job.explain": (Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),),
    "job.list": (
        Option("--job-id ID", "only this job", "job_id"),
        Option("--plugin NAME", "only jobs of this plugin", "plugin"),
        Option("--command NAME", "only jobs of this command", "command"),
        Option("--submitted-by BY", "only jobs submitted by this source: scheduler, webhook, route, cli, api, hook, mcp or core", "submitted_by"),
        Option("--from TIME", "created at or after this time, such as 2026-02-08T10:00:00Z or 2026-02-08", "from"),
        Option("--to TIME", "created before this time", "to"),
        Option("--query QUERY", "only jobs whose result, error or stderr has all of these words", "query"),
        Option("--status STATUS", "only jobs in this state: queued, running, succeeded, failed, timed_out, dead, pending, completed, ok or error", "status"),
        Option("--parent PARENT", "only jobs started by this job", "parent"),
        Option("--run RUN", "only steps of this pipeline run; the name of a pipeline means its latest", "run"),
        Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer"),
        Option("--cursor CURSOR", "continue after the previous page: its `next_cursor`", "cursor"),
    ),
    "job.logs": (Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),),
    "job.retry": (
        Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "job.show": (
        Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),
        Option("--result RESULT", "`only`: answer with the `result` and nothing else", "result"),
    ),
    "job.tree": (Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),),
    "job.wait": (
        Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),
        Option("--timeout DURATION", "how long to wait, such as 5m", "timeout"),
    ),
    "ledger.tail": (
        Option("-n, --limit NUMBER", "entries to return, from 1 to 1000 (default 50)", "limit", "integer"),
        Option("--after NUMBER", "entries after this `seq`; the latest without it, from 0 to 4611686018427387904", "after", "integer"),
    ),
    "log.list": (
        Option("--job-id ID", "only executions of this job", "job_id"),
        Option("--plugin NAME", "only executions of this plugin", "plugin"),
        Option("--command NAME", "only executions of this command", "command"),
        Option("--submitted-by BY", "only jobs of this source: scheduler, webhook, route, cli, api, hook, mcp or core", "submitted_by"),
        Option("--from TIME", "ended at or after this time", "from"),
        Option("--to TIME", "ended before this time", "to"),
        Option("--query QUERY", "only those whose result, error or stderr has all of these words", "query"),
        Option("--status STATUS", "only executions with this outcome: succeeded, failed, timed_out, cancelled, interrupted, orphaned, superseded, completed, ok, error or pending", "status"),
        Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer"),
        Option("--cursor CURSOR", "continue after the previous page: its `next_cursor`", "cursor"),
    ),
    "pipeline.explain": (Option("--job-id ID", "the job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a pipeline) or `last:failed`", "job_id"),),
    "pipeline.run": (
        Option("--payload JSON", "its payload: a JSON object, @FILE, or - for standard input", "payload", "json"),
        Option("--dedupe-key KEY", "start nothing if a job with this key has succeeded within its TTL", "dedupe_key"),
        Option("--dedupe-ttl TTL", "how long the key counts, such as 1h, or in seconds; queued and running jobs are duplicates then, too", "dedupe_ttl"),
        Option("--state-webhook-url URL", "called when the state changes; for a duplicate, by the existing job", "state_webhook_url"),
        Option("--state-webhook-events EVENTS", "the states that are sent; all of them if it is absent (separated by commas)", "state_webhook_events", "list"),
        Option("--pipeline PIPELINE", "the pipeline", "pipeline"),
    ),
    "plugin.facts": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--reveal", "show values that look like secrets", "reveal"),
        Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer"),
        Option("--cursor CURSOR", "continue after the previous page: its `next_cursor`", "cursor"),
    ),
    "plugin.run": (
        Option("--payload JSON", "its payload: a JSON object, @FILE, or - for standard input", "payload", "json"),
        Option("--dedupe-key KEY", "start nothing if a job with this key has succeeded within its TTL", "dedupe_key"),
        Option("--dedupe-ttl TTL", "how long the key counts, such as 1h, or in seconds; queued and running jobs are duplicates then, too", "dedupe_ttl"),
        Option("--state-webhook-url URL", "called when the state changes; for a duplicate, by the existing job", "state_webhook_url"),
        Option("--state-webhook-events EVENTS", "the states that are sent; all of them if it is absent (separated by commas)", "state_webhook_events", "list"),
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--command NAME", "its command; `poll` if it has one, else `handle`", "command"),
    ),
    "plugin.state": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--reveal", "show values that look like secrets", "reveal"),
    ),
    "queue.list": (
        Option("--plugin NAME", "only jobs of this plugin", "plugin"),
        Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer"),
    ),
    "queue.purge": (
        Option("--plugin NAME", "only jobs of this plugin", "plugin"),
        Option("--all", "jobs of every plugin", "all"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "schedule.explain": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--schedule SCHEDULE", "its schedule; may be left out if there is only one, or for `default`", "schedule"),
    ),
    "schedule.history": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--schedule SCHEDULE", "its schedule; may be left out if there is only one, or for `default`", "schedule"),
        Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer"),
        Option("--cursor CURSOR", "continue after the previous page: its `next_cursor`", "cursor"),
    ),
    "schedule.list": (Option("--plugin NAME", "only schedules of this plugin", "plugin"),),
    "schedule.next": (
        Option("--plugin NAME", "only schedules of this plugin", "plugin"),
        Option("--schedule SCHEDULE", "only this schedule", "schedule"),
        Option("-n, --count NUMBER", "how many runs, from 1 to 1000 (default 10)", "count", "integer"),
    ),
    "schedule.pause": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--schedule SCHEDULE", "its schedule; may be left out if there is only one, or for `default`", "schedule"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "schedule.resume": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--schedule SCHEDULE", "its schedule; may be left out if there is only one, or for `default`", "schedule"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "schedule.run": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--schedule SCHEDULE", "its schedule; may be left out if there is only one, or for `default`", "schedule"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "system.breaker": (Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),),
    "system.reload": (
        Option("--drain", "let plugins that are removed or disabled finish their accepted work first", "drain"),
        Option("--drain-timeout DURATION", "how long a drain may take, such as 10m (default 1h). After that nothing is changed", "drain_timeout"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "system.reset": (
        Option("--plugin NAME", "name of the plugin, as it is configured", "plugin"),
        Option("--command NAME", "only the breaker of this command", "command"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
    "system.status": (Option("--reveal", "show values of state that look like secrets", "reveal"),),
    "system.stop": (Option("--dry-run", "show what would be done, and do nothing", "dry_run"),),
    "system.sweep": (Option("--dry-run", "show what would be done, and do nothing", "dry_run"),),
    "webhook.deliveries": (
        Option("--job-id ID", "only those of this job", "job_id"),
        Option("--status STATUS", "only those in this status: pending, delivered, dropped or gone", "status"),
        Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer"),
        Option("--cursor CURSOR", "continue after the previous page: its `next_cursor`", "cursor"),
    ),
    "webhook.resend": (
        Option("--delivery-id ID", "the delivery", "delivery_id"),
        Option("--dry-run", "show what would be done, and do nothing", "dry_run"),
    ),
}
