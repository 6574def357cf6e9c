"""The pure core: every decision of Ductile, as functions from values to values.

Nothing here does I/O, reads a clock, draws random numbers or logs; time and randomness are arguments.
"""
