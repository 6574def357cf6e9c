"""The listener for signed calls of other services (SPEC 9.1): translates, and calls `operations.webhooks`."""
