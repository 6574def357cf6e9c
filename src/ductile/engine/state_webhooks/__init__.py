"""State webhooks: the loop that sends what is in the outbox, and its HTTP client."""
