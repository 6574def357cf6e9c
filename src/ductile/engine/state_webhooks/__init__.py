"""State webhooks: the loop that sends the deliveries in the outbox, and its HTTP client."""
