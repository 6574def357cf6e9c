"""`config show` prints values as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import example, given
from hypothesis import strategies as st

from ductile.cli.console.format import to_yaml
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import to_plain

if TYPE_CHECKING:
    from ductile.core.json import JsonValue

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=12)
WORDS = st.sampled_from(["on", "No", "null", "~", "1", "1.5", "0x1", "a: b", "a #b", "- a", "", "*", "22:00"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | WORDS, inner, max_size=3),
    max_leaves=12,
)


@given(VALUES)
@example({"a": [[1, [2]], {"b": {"c": []}}]})
def test_shown_yaml_reads_back_as_the_same_value(value: JsonValue) -> None:
    """The output of `config show` can be pasted into a configuration."""
    assert to_plain(parse_yaml(to_yaml(value), file="shown")) == value


def test_it_looks_as_people_write_it() -> None:
    """Values are quoted only if necessary."""
    text = to_yaml({"plugins": {"echo": {"config": {"message": "hello there", "key": "${KEY}"}}}, "a": ["b"]})
    assert text.splitlines() == [
        "plugins:",
        "  echo:",
        "    config:",
        "      message: hello there",
        "      key: ${KEY}",
        "a:",
        "  - b",
    ]
