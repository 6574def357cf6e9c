"""HTTP for every surface: listening sockets, limits, request bodies, responses, authentication.

Knows no endpoints. Each surface gives a listener an ASGI application and an address.
"""
