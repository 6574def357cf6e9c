"""The engine: the loops that run jobs. Decisions come from `core`, everything durable goes to the store."""
