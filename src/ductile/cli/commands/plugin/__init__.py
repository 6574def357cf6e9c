"""`ductile plugin …`: one module for each group of actions."""
