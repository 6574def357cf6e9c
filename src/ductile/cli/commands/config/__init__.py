"""`ductile config …`, in modules of its own for the files, their changes, and what is in force."""
