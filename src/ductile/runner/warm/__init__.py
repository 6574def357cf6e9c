"""Warm start: Python plugins are forked from a prepared interpreter instead of starting a new one."""
