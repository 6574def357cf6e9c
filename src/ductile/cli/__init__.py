"""The command line: reads arguments, calls operations, shows their responses. No rules live here.

`command_table` names every command and its module; `main` has the command line parsed, imports the one module
that declares the command and calls its function.
"""
