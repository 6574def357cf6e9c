"""Named SQL: the queries of the verbs, in `.sql` files.

A query begins with `-- name: its_name`; comment lines after that describe it. `-- fragment: name` begins text
that queries and other fragments include as `{name}`, such as a list of columns. Queries are shared by all
databases (`store/queries`); the `.sql` file of an adapter replaces those that need its own syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_HEAD = re.compile(r"^-- (name|fragment): ([a-z_]+)$", re.MULTILINE)


@cache
def load_queries(adapter: str) -> Mapping[str, str]:
    """Return the shared queries by name, and those of the adapter's package, which replace shared ones.

    All callers get the same mapping.
    """
    return parse_queries(_read_sql(files("ductile.store") / "queries"), _read_sql(files(adapter)))


def _read_sql(directory: Traversable) -> str:
    entries = sorted(directory.iterdir(), key=lambda entry: entry.name)
    return "\n".join(file.read_text(encoding="utf-8") for file in entries if file.name.endswith(".sql"))


def parse_queries(text: str, overrides: str = "") -> dict[str, str]:
    """Return the queries by name. A fragment may be defined after the queries that include it.

    Raises `ValueError` if one of the texts defines a name twice.
    """
    queries, fragments = _split(text)
    own_queries, own_fragments = _split(overrides)
    queries |= own_queries
    fragments |= own_fragments

    def fill(sql: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda match: fill(fragments[match[1]]), sql)

    return {name: fill(sql) for name, sql in queries.items()}


def _split(text: str) -> tuple[dict[str, str], dict[str, str]]:
    queries: dict[str, str] = {}
    fragments: dict[str, str] = {}
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        kind, name = head.groups()
        body = text[head.end() : end].splitlines()
        target = fragments if kind == "fragment" else queries
        if name in target:
            raise ValueError(f"{'fragment' if kind == 'fragment' else 'query'} {name} is defined twice")
        target[name] = "\n".join(line for line in body if not line.lstrip().startswith("--")).strip()
    return queries, fragments
