"""Ductile: run plugins, route what they emit, and never lose an accepted job."""

__version__ = "0.1.0"
