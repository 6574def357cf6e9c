"""Named SQL: each dialect keeps its queries in `.sql` files, and this reads them.

A query begins with `-- name: its_name`; comment lines after that describe it. `-- fragment: name`
begins text that other queries include as `{name}`, such as a list of columns.
"""

from __future__ import annotations

import re
from importlib.resources import files

_HEAD = re.compile(r"^-- (name|fragment): ([a-z_]+)$", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """All queries in the `.sql` files of a package, by name."""
    texts = [
        file.read_text(encoding="utf-8")
        for file in sorted(files(package).iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".sql")
    ]
    return parse_queries("\n".join(texts))


def parse_queries(text: str) -> dict[str, str]:
    """Fragments are known in all of the text, wherever they stand in it."""
    queries: dict[str, str] = {}
    fragments: dict[str, str] = {}
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        kind, name = head.groups()
        body = text[head.end() : end]
        sql = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--")).strip()
        kept = fragments if kind == "fragment" else queries
        if name in kept:
            raise ValueError(f"{'fragment' if kind == 'fragment' else 'query'} {name} is defined twice")
        kept[name] = sql
    return {name: _include(sql, fragments) for name, sql in queries.items()}


def _include(sql: str, fragments: dict[str, str]) -> str:
    return re.sub(r"\{([a-z_]+)\}", lambda found: fragments[found[1]], sql)
