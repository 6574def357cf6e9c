"""The listener for incoming webhooks."""
