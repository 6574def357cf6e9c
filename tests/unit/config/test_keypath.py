"""Looking things up in a large configuration takes no longer than in a small one."""

from __future__ import annotations

from ductile.core.suggest import did_you_mean
from ductile.protocol.yaml_tree import MapNode, ScalarNode, SourceLocation, location_of, node_at

LOCATION = SourceLocation(file="x", line=1, column=1)


class CountedText(str):
    """Counts how often it is compared."""

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


def test_a_key_is_found_without_looking_at_all_of_them() -> None:
    tree = a_large_map(1000)
    assert node_at(tree, ("key999",)) is not None
    CountedText.compared = 0
    for number in range(1000):
        assert node_at(tree, (f"key{number}",)) is not None
        assert location_of(tree, (f"key{number}",)) == LOCATION
    assert CountedText.compared < 10_000


def test_a_hint_is_not_sought_among_any_number_of_names() -> None:
    asked = iter(range(1_000_000))
    names = (f"name{number:06}" for number in asked)
    assert did_you_mean("name00000x", names) is not None
    assert next(asked) < 5_000


def test_a_name_of_quite_another_length_is_not_near() -> None:
    assert did_you_mean("log", ["log_level_of_everything"]) is None
    assert did_you_mean("log_levle", ["name", "log_level"]) == "did you mean log_level?"
