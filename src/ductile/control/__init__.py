"""The local door: the command line talks to the daemon of the same user over a unix socket.

One request and one answer for each connection, each a line of JSON:

    {"operation": "job.list", "given": {...}}
    {"answer": {...}}  or  {"error": {"code": ..., "message": ..., "hint": ..., "details": {...}}}
"""
