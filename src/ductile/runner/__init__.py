"""Run one request in one process: spawn it, feed it, watch it, end it. Knows no store and no queue."""
