"""`ductile config …`: one module for each group of actions."""
