"""Schedules: the loop that plans due occurrences, and the entries and firings that it stores."""
