"""The terminal screen of `ductile system watch`: what runs, what waits, what happens, and a hand on it."""
