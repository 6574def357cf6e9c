"""`ductile pipeline …`: one module for each group of actions."""
