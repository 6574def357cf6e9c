"""Processes of plugins: started, supervised to their end, and cleared with everything they left behind."""
