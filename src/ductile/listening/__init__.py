"""HTTP listeners inside the daemon's own event loop: sockets, limits, and the shape of every error.

Knows nothing of endpoints. The API and the webhooks each give it an ASGI application and an address.
"""
