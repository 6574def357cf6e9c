"""Variables change values and nothing else."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ductile.config.read.interpolate import interpolate
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import (
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    scalar_value,
    to_plain,
)

DOCUMENT = """\
service:
  name: {value}
  log_level: info
routes:
  - from: a
    to: {value}
plugins: {{}}
"""
values = st.text(st.characters(exclude_categories=["Cs"]))
hostile = st.sampled_from(
    [
        "x\nplugins: {evil: {}}",
        "x\n  strict_mode: false",
        "{a: b}",
        "[1, 2]",
        "*alias",
        "&anchor x",
        "!!python/object:os.system x",
        "x # comment",
        "'",
        '"',
        "- x",
        "x: y",
        "${OTHER}",
        "$${V}",
        "---",
    ]
)


def tree(text: str) -> Node:
    root = parse_yaml(text, file="f.yaml")
    assert root is not None
    return root


def skeleton(node: Node) -> object:
    """Return the structure of a tree without the texts of its scalars."""
    match node:
        case MapNode(entries=entries):
            return {key.text: skeleton(value) for key, value in entries}
        case ListNode(items=items):
            return [skeleton(item) for item in items]
        case ScalarNode(location=location):
            return location


@given(
    values | hostile,
    st.sampled_from(["${V}", '"${V}"', "'${V}'", "x${V}y", "${V} and ${V}", "${UNSET:-}${V}"]),
)
def test_a_value_can_never_inject_structure(value: str, scalar: str) -> None:
    """For any value of a variable, the document has the same keys, lists and locations."""
    root = tree(DOCUMENT.format(value=scalar))
    result, problems = interpolate(root, {"V": value})
    assert not problems
    assert skeleton(result) == skeleton(root)


@given(values | hostile)
def test_a_quoted_scalar_stays_the_text_of_the_variable(value: str) -> None:
    """Only an unquoted scalar is typed."""
    result, _ = interpolate(tree("a: \"${V}\"\nb: '<${V}>'\n"), {"V": value})
    assert to_plain(result) == {"a": value, "b": f"<{value}>"}


@given(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.none())
def test_an_unquoted_scalar_is_typed_after_substitution(value: object) -> None:
    """`max_workers: ${WORKERS}` is a number if the variable holds one."""
    result, _ = interpolate(tree("a: ${V}\n"), {"V": json.dumps(value)})
    assert to_plain(result) == {"a": value}


@given(values)
def test_an_unquoted_scalar_is_typed_by_its_substituted_text(value: str) -> None:
    """The rule is that of any other plain scalar."""
    result, _ = interpolate(tree("a: ${V}\n"), {"V": value})
    assert isinstance(result, MapNode)
    scalar = result.get("a")
    assert isinstance(scalar, ScalarNode)
    expected = ScalarNode(text=value, plain=True, location=SourceLocation(file="", line=1, column=1))
    assert scalar_value(scalar) == scalar_value(expected)


@given(st.text("${}:-aV \n", max_size=30))
def test_interpolation_never_raises(text: str) -> None:
    """A reference is replaced, kept, or reported as a problem."""
    scalar = ScalarNode(text=text, plain=False, location=SourceLocation(file="f", line=3, column=1))
    result, problems = interpolate(scalar, {"V": "value"})
    assert isinstance(result, ScalarNode)
    assert all(problem.line == 3 for problem in problems)
    if "${" not in text:
        assert result == scalar
