"""The command line: reads arguments, calls operations, shows what they answer. No rules live here.

`commands` is the table of everything there is; `main` finds the row, imports the one module that it
names and calls the function there.
"""
