"""Arguments and options that several commands share."""

from __future__ import annotations

from ductile.cli.spec import Argument, Option

JOB = Argument(
    "JOB", "id of the job; its beginning is enough if no other job begins like that", field="job_id"
)
PLUGIN = Argument("PLUGIN", "name of the plugin, as it is configured", field="plugin")
SCHEDULE = Argument(
    "SCHEDULE", "id of the schedule; the plugin's only one without it", required=False, field="schedule"
)
LIMIT = Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer")
CURSOR = Option("--cursor TEXT", "continue after the previous page: its `next_cursor`", "cursor")
OF_PLUGIN = Option("--plugin NAME", "only those of this plugin", "plugin")
PAYLOAD = Option(
    "--payload JSON", "its input: a JSON object, @FILE, or - for standard input", "payload", "json"
)
DEDUPE_KEY = Option("--dedupe-key KEY", "do not run again what succeeded under this key", "dedupe_key")
TIMEOUT = Option("--timeout DURATION", "wait no longer than this, such as 30s; without a daemon, end it then")
STATE_WEBHOOK_URL = Option(
    "--state-webhook-url URL", "send every change of state to this URL", "state_webhook_url"
)
STATE_WEBHOOK_EVENTS = Option(
    "--state-webhook-events STATES", "only these states, such as done,failed", "state_webhook_events", "list"
)
DRAIN_TIMEOUT = Option(
    "--timeout DURATION",
    "give up a drain that takes longer (default 1h), and change nothing",
    "drain_timeout",
)
REVEAL = Option("--reveal", "show all of it, secrets too", "reveal")
