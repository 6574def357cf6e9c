"""The dashboard: a page for browsers at `/ui`. It calls the JSON API with the cookie of its session."""
