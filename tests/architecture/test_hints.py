"""Commands in hints can be typed as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def texts() -> Iterator[tuple[str, str]]:
    """Every text in the source, with where it is; an f-string counts as it is written."""
    for path in sorted(SOURCE.rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", ast.unparse(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node.value


def test_a_hint_to_change_a_setting_also_says_to_seal_it() -> None:
    """Without one of them the file differs from its seal; the next start is refused or warned of."""
    advised = [
        (where, text)
        for where, text in texts()
        if "ductile config set " in text and "--help" not in text and "--dry-run" not in text
    ]
    assert advised
    seals = ("--lock", "--apply", "ductile apply")
    assert [where for where, text in advised if not any(seal in text for seal in seals)] == []
