"""Schedules: the scheduler, and the entries and firings that it writes to the store."""
