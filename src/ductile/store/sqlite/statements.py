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

Binder: TypeAlias = Callable[[Mapping[str, Cell]], tuple[Cell, ...]]


class Statement(NamedTuple):
    """A query ready to be run."""

    sql: str
    #: The values in the order of their places.
    in_order: Binder
    #: The tables it has to do with to which rows are appended.
    tables: frozenset[str]
    #: As it was written, with names.
    text: str


def compile_statement(text: str) -> Statement:
    names = tuple(dict.fromkeys(NAME.findall(text)))
    places = {name: f"?{place}" for place, name in enumerate(names, start=1)}
    return Statement(
        sql=NAME.sub(lambda found: places[found[1]], text),
        in_order=make_binder(names),
        tables=frozenset(_APPENDED_TO.findall(text)),
        text=text,
    )


def make_binder(names: tuple[str, ...]) -> Binder:
    match names:
        case ():
            return lambda _values: ()
        case (name,):  # itemgetter gives no tuple for one
            return lambda values: (values[name],)
        case _:
            return itemgetter(*names)


def load_statements(package: str) -> dict[str, Statement]:
    return {name: compile_statement(sql) for name, sql in load_queries(package).items()}
