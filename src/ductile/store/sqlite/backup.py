"""Copies of the store's file, made while a process writes to it.

A copy is one snapshot: a read transaction is held while the pages are copied, so that no write restarts it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw

from ductile.errors import StoreFailedError, StoreSchemaError
from ductile.store.named_sql import load_queries
from ductile.store.sqlite.connection import APPLICATION_ID, open_reader, translated
from ductile.store.sqlite.migrate import refuse_newer_version

_PAGES = 1024


def copy_store(source: Path, target: Path, on_pages: Callable[[int, int], None]) -> None:
    """Copy all committed data into a new file. `on_pages` gets the number of copied and of all pages."""
    with translated(source), closing(open_reader(source)) as reader:
        reader.execute("BEGIN").fetchall()
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # takes the snapshot
        with translated(target), closing(apsw.Connection(str(target))) as writer:
            with writer.backup("main", reader, "main") as copying:
                while not copying.done:
                    copying.step(_PAGES)
                    on_pages(copying.page_count - copying.remaining, copying.page_count)
            # One file without a log; opening it as a store returns it to WAL.
            writer.execute("PRAGMA journal_mode = DELETE").fetchall()


def inspect_copy(path: Path) -> int:
    """Return the schema version of a copy.

    Raises `StoreFailedError` or `StoreSchemaError` if it is unusable.
    """
    # Immutable: nothing is locked, and no file is created beside it.
    uri, flags = f"{path.absolute().as_uri()}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with translated(path), closing(apsw.Connection(uri, flags=flags)) as reader:
        if (damage := str(reader.pragma("quick_check"))) != "ok":
            raise StoreFailedError(f"the copy of the store is damaged: {damage.partition(chr(10))[0]}")
        if reader.pragma("application_id") != APPLICATION_ID:
            raise StoreSchemaError("the copy is not a Ductile store")
        hint = "It was written by a newer Ductile: restore it with that one."
        return refuse_newer_version(reader, "the store", hint=hint)


def renew_id(path: Path) -> None:
    """Remove the id of a copy, so that it gets a new one when it is opened.

    Orphan processes are found by the id of their store: a daemon on the copy must not find those of the
    original.
    """
    sql = load_queries("ductile.store.sqlite")["delete_meta"]
    with translated(path), closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as writer:
        writer.execute(sql, {"key": "store_id"}).fetchall()
