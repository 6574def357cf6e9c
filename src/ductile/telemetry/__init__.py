"""Every named happening, and who is told of it: logs today, metrics and streams by the same way."""
