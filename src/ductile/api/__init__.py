"""The HTTP API: routes requests to operations and encodes their responses. Imported only if it is enabled."""
