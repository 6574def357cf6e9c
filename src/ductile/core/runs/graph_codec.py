"""Graphs as JSON: the form in which the store keeps the graph of a run.

Version 2 is what msgspec makes of the node classes. Version 1, which older stores contain, has neither a
version nor the `kind` of nodes and conditions; it is read by adding them.
"""

from __future__ import annotations

import json
from typing import Any

from ductile.core.json import JsonObject
from ductile.core.runs.graph import Graph, Node, StepPayload
from ductile.struct import Value, convert, to_builtins

FORMAT_VERSION = 2


class _StoredGraph(Value):
    version: int
    pipeline: str
    first: str
    nodes: tuple[Node, ...]


def graph_to_json(graph: Graph) -> JsonObject:
    """Return the graph as JSON, without its fingerprint, which is a hash of this."""
    stored = _StoredGraph(
        version=FORMAT_VERSION,
        pipeline=graph.pipeline,
        first=graph.first,
        nodes=tuple(graph.nodes.values()),
    )
    # Through text: `to_builtins` keeps tuples, and callers expect lists.
    encoded: JsonObject = json.loads(json.dumps(to_builtins(stored, enc_hook=_encode_payload)))
    return encoded


def graph_from_json(stored: JsonObject, fingerprint: str) -> Graph:
    """Return the graph that `graph_to_json` wrote, in this or an earlier version.

    Raises ValueError if it is not a stored graph.
    """
    version = stored.get("version", 1)
    if version == 1:
        stored = _upgrade(stored)
    elif version != FORMAT_VERSION:
        raise ValueError(f"version {version} of stored graphs is not known; a newer Ductile wrote it")
    graph = convert(stored, _StoredGraph, dec_hook=_decode_payload)
    nodes = {node.path: node for node in graph.nodes}
    return Graph(pipeline=graph.pipeline, first=graph.first, nodes=nodes, fingerprint=fingerprint)


def _encode_payload(payload: object) -> Any:
    if not isinstance(payload, StepPayload):
        raise NotImplementedError(f"a graph has no {type(payload).__name__}")
    return payload.written


def _decode_payload(kind: type, written: Any) -> StepPayload:
    if kind is not StepPayload:
        raise NotImplementedError(f"a graph has no {kind.__name__}")
    return StepPayload(written)


def _upgrade(stored: Any) -> JsonObject:
    """Return a graph of version 1 as one of version 2."""
    nodes = []
    for node in stored["nodes"]:
        kind = "split" if "branches" in node else "uses" if "plugin" in node else "block"
        condition = {"if": _upgrade_condition(node["if"])} if "if" in node else {}
        nodes.append({**node, "kind": kind, **condition})
    return {**stored, "version": FORMAT_VERSION, "nodes": nodes}


def _upgrade_condition(stored: Any) -> Any:
    match stored:
        case {"all": list(parts), **rest}:
            return {**rest, "kind": "all", "all": [_upgrade_condition(part) for part in parts]}
        case {"any": list(parts), **rest}:
            return {**rest, "kind": "any", "any": [_upgrade_condition(part) for part in parts]}
        case {"not": part, **rest}:
            return {**rest, "kind": "not", "not": _upgrade_condition(part)}
        case dict():
            return {**stored, "kind": "comparison"}
        case _:
            return stored
