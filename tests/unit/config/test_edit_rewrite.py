"""The indentation of a file is kept when a key changes."""

from __future__ import annotations

import pytest

from ductile.config.edit.rewrite import Indentation, measure_indentation
from ductile.protocol.yaml import parse_yaml


@pytest.mark.parametrize(
    ("text", "keys", "dashes"),
    [
        ("", 2, 0),
        ("a: 1\n", 2, 0),
        ("a:\n    b: 1\n", 4, 0),
        ("a:\n- 1\nb:\n  c: 1\n", 2, 0),
        ("a:\n  - 1\nb:\n  c: 1\n", 2, 2),
        ("a:\n  - x: 1\n    y:\n      z: 1\n", 2, 2),
        ("a: {\n        b: 1}\nc:\n   d: 1\n", 3, 0),
    ],
)
def test_indentation_is_measured(text: str, keys: int, dashes: int) -> None:
    found = measure_indentation(parse_yaml(text, file="f"))
    assert found == Indentation(keys=keys, dashes=dashes)
