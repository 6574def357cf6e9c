"""Plugins on disk: `discovery.discover` finds and checks them.

Its result is a `ductile.config.snapshot.Discovery`.
"""
