"""Copy a whole store from one database to another, and prove that nothing is missing.

Every row is read as values, written as values, and read again from the copy. A table is compared by its
number of rows and the sum of their hashes, so the order of rows does not matter. One row at a time is in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Protocol, TypeAlias

import msgspec

from ductile.errors import StoreFailedError
from ductile.store.model.maintenance import Invariant
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.maintenance import PROBE_ROW, SEARCHABLE_UNTIL, find_violations
from ductile.struct import Value

Row: TypeAlias = tuple[SqlValue, ...]
#: Called with the present step, the rows that are done, and all rows.
TransferProgress: TypeAlias = Callable[[str, int, int], None]

#: Rows about the database itself: the version of its schema, how far the full-text index is, a probe row.
_OWN_META = frozenset({"schema_version", SEARCHABLE_UNTIL, PROBE_ROW})
_META_TABLE = "store_meta"
#: Rows between two reports of progress.
_REPORTED_ROWS = 5000
#: The maximum number of ids that are reported for a broken invariant.
_MAX_VIOLATIONS = 5
_BITS = 128

_encode = msgspec.msgpack.Encoder().encode


class CopiedTable(Value):
    """A table with the columns that are copied, and those that order its rows."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


class TableDigest(Value):
    """The rows of a table: how many, and the sum of their hashes."""

    rows: int
    checksum: int


class StoreSource(Protocol):
    """All rows of a store, as they are at one instant."""

    @property
    def session(self) -> Session:
        """For the queries that check invariants."""

    def count(self, table: CopiedTable) -> int: ...

    def read(self, table: CopiedTable) -> Iterator[Row]:
        """Return the rows one by one, with text as a verb reads it."""

    def last_numbers(self) -> Mapping[str, int]:
        """Return the highest number that was given out, by table, for tables whose rows are numbered.

        It may be above that of the newest row, because rows are removed.
        """


class StoreTarget(StoreSource, Protocol):
    """An empty store that is being filled; it is not visible to others before that is done."""

    def write(self, table: CopiedTable, rows: Iterable[Row]) -> None: ...

    def continue_numbers(self, last_numbers: Mapping[str, int]) -> None:
        """Let the numbers of new rows begin after these, and after those of the rows that are there."""


class RowCounter:
    """Counts rows and adds up their hashes as they pass, and reports progress."""

    def __init__(self, on_rows: Callable[[int], None]) -> None:
        self._on_rows = on_rows
        self._rows = 0
        self._sum = 0

    def follow(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows unchanged, and count each."""
        for row in rows:
            digest = blake2b(_encode(row), digest_size=_BITS // 8).digest()
            self._sum += int.from_bytes(digest, "little")
            self._rows += 1
            if self._rows % _REPORTED_ROWS == 0:
                self._on_rows(_REPORTED_ROWS)
            yield row
        self._on_rows(self._rows % _REPORTED_ROWS)

    def result(self) -> TableDigest:
        return TableDigest(rows=self._rows, checksum=self._sum % (1 << _BITS))


def reporter(step: str, total: int, progress: TransferProgress) -> Callable[[int], None]:
    """Return a function that adds up rows and reports how many are done."""
    done = 0

    def report(rows: int) -> None:
        nonlocal done
        done += rows
        progress(step, done, total)

    return report


def copy_rows(
    source: StoreSource, target: StoreTarget, tables: Iterable[CopiedTable], progress: TransferProgress
) -> dict[str, TableDigest]:
    """Copy all tables and compare the copy with its source. Returns the digest of each table by its name.

    Raises `StoreFailedError` if the copy differs.
    """
    counts = {table: source.count(table) for table in tables}
    report = reporter("copying", sum(counts.values()), progress)
    copied = {}
    for table in counts:
        counter = RowCounter(report)
        target.write(table, counter.follow(_rows_of_store(source, table)))
        copied[table.name] = counter.result()
    target.continue_numbers(source.last_numbers())
    report = reporter("comparing", sum(counts.values()), progress)
    for table in counts:
        counter = RowCounter(report)
        for _ in counter.follow(_rows_of_store(target, table)):
            pass
        if (copy := counter.result()) != copied[table.name]:
            raise StoreFailedError(
                f"the copy of {table.name} differs: {copied[table.name].rows} rows were read, the copy has "
                f"{copy.rows}, and their checksums are not equal",
                hint="This is a defect of Ductile or of one of the databases: please report it.",
            )
    return copied


def is_empty(store: StoreSource, tables: Iterable[CopiedTable]) -> bool:
    """Return whether no table has rows, apart from the one with rows about the database itself."""
    return not any(store.count(table) for table in tables if table.name != _META_TABLE)


def broken_invariants(session: Session, progress: TransferProgress) -> dict[str, tuple[str, ...]]:
    """Return the invariants that do not hold, each with ids of rows that break it."""
    broken = {}
    for number, invariant in enumerate(Invariant, start=1):
        if ids := find_violations(session, invariant, limit=_MAX_VIOLATIONS):
            broken[invariant.value] = ids
        progress("checking", number, len(Invariant))
    return broken


def _rows_of_store(source: StoreSource, table: CopiedTable) -> Iterator[Row]:
    rows = source.read(table)
    if table.name != _META_TABLE:
        return rows
    key = table.columns.index("key")
    return (row for row in rows if row[key] not in _OWN_META)
