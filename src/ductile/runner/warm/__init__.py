"""Warm start: Python plugins are forked from an interpreter that is already up."""
