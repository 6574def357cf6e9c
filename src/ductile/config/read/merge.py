"""Several trees into one, by one rule for every key. Pure, and blind to what keys mean.

Maps merge key by key at every depth, lists append, anything else is replaced by the later value.
Every node keeps the place where it was written. A key left empty in a later file does not wipe out a
whole map or list: that is a heading with nothing under it yet, not a wish.
"""

from __future__ import annotations

from ductile.protocol.yaml import NULL_WORDS, ListNode, MapNode, Node, ScalarNode


def merge_trees(earlier: Node, later: Node) -> Node:
    match earlier, later:
        case MapNode(), MapNode():
            return merge_maps(earlier, later)
        case ListNode(), ListNode():
            return ListNode(items=earlier.items + later.items, place=earlier.place)
        case ((MapNode() | ListNode()), ScalarNode()) if is_empty(later):
            return earlier
        case _:
            return later


def is_empty(node: Node) -> bool:
    """Whether nothing was written: an empty value, `~` or `null`."""
    return isinstance(node, ScalarNode) and node.plain and node.text in NULL_WORDS


def merge_maps(earlier: MapNode, later: MapNode) -> MapNode:
    entries = {key.text: (key, value) for key, value in earlier.entries}
    for key, value in later.entries:
        if key.text not in entries:
            entries[key.text] = (key, value)
            continue
        known_key, known = entries[key.text]
        merged = merge_trees(known, value)
        entries[key.text] = (key if merged is value else known_key, merged)
    return MapNode(entries=tuple(entries.values()), place=earlier.place)
