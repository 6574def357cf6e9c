"""The commands, one module for each noun or for a part of one: each declares its actions and runs them."""
