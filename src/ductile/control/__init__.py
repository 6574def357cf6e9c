"""The control socket: the RPC of the command line to the daemon of the same user, over a unix socket.

One request and one response per connection, each a line of JSON:

    {"operation": "job.list", "given": {...}}
    {"answer": {...}}  or  {"error": {"code": ..., "message": ..., "hint": ..., "details": {...}}}
"""
