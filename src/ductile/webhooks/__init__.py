"""The listener for signed calls of other services: translates, and calls `operations.webhooks`."""
