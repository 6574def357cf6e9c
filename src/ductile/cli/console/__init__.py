"""Output for people: text, tables, errors, and the line of a command that waits."""
