"""The HTTP API: who asks, for what, with which right; then an operation; then its answer as JSON.

No rules live here. Imported only where the API is enabled.
"""
