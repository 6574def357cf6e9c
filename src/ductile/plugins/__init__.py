"""Plugins on disk: found under their roots, checked, and handed on as values.

`discover` is the way in. Its result is `ductile.config.installed.Discovery`.
"""
