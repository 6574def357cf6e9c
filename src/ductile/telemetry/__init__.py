"""Telemetry: signals, and the logs, metrics and systemd notifications that are made from them."""
