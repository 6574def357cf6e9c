"""The engine: runs jobs, fires schedules, sends state webhooks, reloads, recovers."""
