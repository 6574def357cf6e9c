"""Use cases, one module per noun: the only door for every surface.

An operation takes plain arguments and returns a value. It prints nothing, and what it refuses it
refuses with an error from `ductile.errors`, whichever surface asked.
"""
