"""The embedded store: one SQLite file, one writer thread with group commit, separate readers."""
