"""Schedules: the loop that plans what is due, and what it writes to the store."""
