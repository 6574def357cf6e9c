"""`ductile job …`: one module for each group of actions."""
