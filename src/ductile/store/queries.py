"""Named SQL: each dialect keeps its queries in `.sql` files, and this reads them.

A query begins with `-- name: its_name`; comment lines after that describe it. `-- fragment: name`
begins text that other queries of the file include as `{name}`, such as a list of columns.
"""

from __future__ import annotations

import re
from importlib.resources import files

_HEAD = re.compile(r"^-- (name|fragment): ([a-z_]+)$", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """All queries in the `.sql` files of a package, by name."""
    queries: dict[str, str] = {}
    for file in sorted(files(package).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            for name, sql in parse_queries(file.read_text(encoding="utf-8")).items():
                if name in queries:
                    raise ValueError(f"{file.name}: query {name} is defined twice")
                queries[name] = sql
    return queries


def parse_queries(text: str) -> dict[str, str]:
    queries: dict[str, str] = {}
    fragments: dict[str, str] = {}
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        kind, name = head.groups()
        body = text[head.end() : end]
        sql = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--")).strip()
        if kind == "fragment":
            fragments[name] = sql
        elif name in queries:
            raise ValueError(f"query {name} is defined twice")
        else:
            queries[name] = _include(sql, fragments)
    return queries


def _include(sql: str, fragments: dict[str, str]) -> str:
    return re.sub(r"\{([a-z_]+)\}", lambda found: fragments[found[1]], sql)
