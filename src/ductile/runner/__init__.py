"""Starts a process for each execution, writes its request, supervises it and decides its outcome.

Nothing here knows the store or the queue.
"""
