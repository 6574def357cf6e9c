"""What a pipeline takes, as a JSON Schema: pipelines declare none, and callers want to know. Pure."""

from __future__ import annotations

from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.required_inputs import find_required_inputs, first_use
from ductile.protocol.manifest.schema import JsonSchema

_Path = tuple[str, ...]


def input_schema_of(snapshot: Snapshot, name: str) -> JsonSchema | None:
    """From the paths that its `if` and its first steps refer to; else what its first command takes.

    None where neither tells anything: then any payload will do as far as anybody can know.
    """
    pipeline = snapshot.rules.pipelines.by_name[name]
    needs = find_required_inputs(pipeline)
    if needs.known:
        return _object({*map(_keys, needs.known)}, {*map(_keys, needs.required)})
    first = first_use(pipeline.graph)
    plugin = None if first is None else snapshot.plugins.get(first.plugin)
    if first is None or plugin is None or plugin.installed is None:
        return None
    command = plugin.installed.manifest.commands.get(first.command)
    return None if command is None else command.input_schema


def _keys(path: str) -> _Path:
    """Up to the first position in a list, which could also be a key: only what is above it is certain."""
    keys = path.split(".")
    ends = next((at for at, key in enumerate(keys) if at and key.isdigit()), len(keys))
    return tuple(keys[:ends])


def _object(known: set[_Path], required: set[_Path]) -> JsonObject:
    """What lies below a name has to be in an object; of what does not, nothing is known."""
    properties: JsonObject = {}
    for name in sorted({path[0] for path in known}):
        below = {path[1:] for path in known if path[0] == name and len(path) > 1}
        needed = {path[1:] for path in required if path[0] == name and len(path) > 1}
        properties[name] = _object(below, needed) if below else {}
    names: list[JsonValue] = [*sorted({path[0] for path in required})]
    return {"type": "object", "properties": properties, **({"required": names} if names else {})}
