"""The verbs of the store: plain functions over a `Session`, the same for every database."""
