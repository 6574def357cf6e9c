"""Telemetry: signals, and what is made of them: logs, metrics, notifications of systemd."""
