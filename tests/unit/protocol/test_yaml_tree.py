"""A lookup in a large tree takes no longer than in a small one."""

from __future__ import annotations

from ductile.protocol.yaml_tree import MapNode, ScalarNode, SourceLocation, location_of, node_at

LOCATION = SourceLocation(file="x", line=1, column=1)


class CountedText(str):
    """A text that counts comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedText.compared += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def a_large_map(size: int) -> MapNode:
    entries = tuple(
        (
            ScalarNode(text=CountedText(f"key{number}"), plain=True, location=LOCATION),
            ScalarNode(text="", plain=True, location=LOCATION),
        )
        for number in range(size)
    )
    return MapNode(entries=entries, location=LOCATION)


def test_finding_a_key_is_not_linear() -> None:
    tree = a_large_map(1000)
    assert node_at(tree, ("key999",)) is not None
    CountedText.compared = 0
    for number in range(1000):
        assert node_at(tree, (f"key{number}",)) is not None
        assert location_of(tree, (f"key{number}",)) == LOCATION
    assert CountedText.compared < 10_000
