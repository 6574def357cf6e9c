"""Use cases, one package for each noun. Every surface calls them.

An operation takes a request and returns a response. It prints nothing, and raises errors of `ductile.errors`.
"""
