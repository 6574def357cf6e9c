"""The pure core: every decision Ductile makes, as functions from values to values.

Nothing here does I/O, reads a clock, draws dice or logs; time and chance come in as arguments.
"""
