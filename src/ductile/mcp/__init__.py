"""The MCP server: operations as tools, resources and prompts of agents.

All but `http`, `prompts` and `resources` import the SDK, which takes a second and 60 MB: `ductile mcp serve`
and the first request to `/mcp` load them.
"""
