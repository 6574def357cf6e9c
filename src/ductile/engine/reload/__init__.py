"""Reloads: the plan of a reload, drains of plugins that it removes, and the switch itself."""
