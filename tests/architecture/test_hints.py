"""Commands in hints can be typed as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def texts() -> Iterator[tuple[str, str]]:
    """Yield every text in the source with its position; an f-string is taken as it is written."""
    for path in sorted(SOURCE.rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", ast.unparse(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node.value


def test_a_hint_to_change_a_setting_also_says_to_seal_it() -> None:
    """A file that differs from its seal prevents the next start, or leads to a warning."""
    advised = [
        (position, text)
        for position, text in texts()
        if "ductile config set " in text and "--help" not in text and "--dry-run" not in text
    ]
    assert advised
    seals = ("--lock", "--apply", "ductile apply")
    assert [position for position, text in advised if not any(seal in text for seal in seals)] == []
