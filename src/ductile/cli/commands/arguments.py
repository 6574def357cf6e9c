"""Arguments and options that several commands share."""

from __future__ import annotations

from ductile.cli.spec import Argument, Option

JOB = Argument("JOB", field="job_id")
PLUGIN = Argument("PLUGIN", field="plugin")
SCHEDULE = Argument("SCHEDULE", required=False, field="schedule")
TIMEOUT = Option("--timeout DURATION", "wait no longer than this, such as 30s; without a daemon, end it then")
DRAIN_TIMEOUT = Option(
    "--timeout DURATION",
    "give up a drain that takes longer (default 1h), and change nothing",
    "drain_timeout",
)
