"""Outgoing state webhooks: the sender takes them from the outbox, the client sends them over HTTP."""
