"""`ductile system …`: one module for each group of actions."""
