"""Arguments and options that several commands share."""

from __future__ import annotations

from ductile.cli.spec import Argument, Option

JOB = Argument("JOB", field="job_id")
PLUGIN = Argument("PLUGIN", field="plugin")
SCHEDULE = Argument("SCHEDULE", required=False, field="schedule")
LIMIT = Option("-n, --limit NUMBER", "at most this many, from 1 to 200 (default 50)", "limit", "integer")
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
