"""Reloads, and drains of the plugins that they remove."""
