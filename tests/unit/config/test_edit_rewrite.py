"""The indentation of a file is kept when a key changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ductile.config.edit.rewrite import Indentation, measure_indentation, with_value
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
    indentation = measure_indentation(parse_yaml(text, file="f"))
    assert indentation == Indentation(keys=keys, dashes=dashes)


@pytest.mark.parametrize(
    ("path", "inserted", "after"),
    [
        (("service", "on_failure"), "  on_failure: new\n", "  # timezone: Europe/Berlin\n"),
        (("plugins", "save"), "  save: new\n", "    # of echo\n"),
    ],
)
def test_a_new_key_comes_before_the_blank_line_and_the_comment_of_the_next_section(
    path: tuple[str, ...], inserted: str, after: str
) -> None:
    text = (
        "service:\n  log_level: info\n  # timezone: Europe/Berlin\n\n"
        "plugins:\n  echo:\n    uses: x\n    # of echo\n\n# The API\napi:\n  enabled: true\n"
    )
    changed = with_value(text.encode(), path, "new", Path("config.yaml")).decode()
    assert changed == text.replace(after, after + inserted)
