"""Queries with numbered places instead of names: they bind in two thirds of the time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from ductile.store.queries import load_queries
from ductile.store.session import Cell

NAME = re.compile(r":([a-z_]+)")
#: Tables to which rows are appended; whoever looks at one has to find them there.
_APPENDED_TO = re.compile(r"\b(job_queue|job_log|job_transitions|ledger|events)\b")

InOrder: TypeAlias = Callable[[Mapping[str, Cell]], tuple[Cell, ...]]


class Query(NamedTuple):
    """A query ready to be run."""

    sql: str
    #: The values in the order of their places.
    in_order: InOrder
    #: The tables it has to do with to which rows are appended.
    looks_at: frozenset[str]
    #: As it was written, with names.
    text: str


def compile_query(text: str) -> Query:
    names = tuple(dict.fromkeys(NAME.findall(text)))
    places = {name: f"?{place}" for place, name in enumerate(names, start=1)}
    return Query(
        sql=NAME.sub(lambda found: places[found[1]], text),
        in_order=picker(names),
        looks_at=frozenset(_APPENDED_TO.findall(text)),
        text=text,
    )


def picker(names: tuple[str, ...]) -> InOrder:
    match names:
        case ():
            return lambda _values: ()
        case (name,):  # itemgetter gives no tuple for one
            return lambda values: (values[name],)
        case _:
            return itemgetter(*names)


def load_compiled(package: str) -> dict[str, Query]:
    return {name: compile_query(sql) for name, sql in load_queries(package).items()}
