"""Migrations: numbered files in the package, applied in order, forward only."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import apsw

from ductile.errors import StoreSchemaError
from ductile.store.sqlite.connection import APPLICATION_ID, translated


def migrations() -> list[tuple[int, str]]:
    """Return (version, SQL) of every migration, in order. The file name begins with the version."""
    numbered = [
        (int(file.name.split("_")[0]), file.read_text(encoding="utf-8"))
        for file in (files("ductile.store.sqlite") / "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(numbered)


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Migrate the file to the newest version. Each migration is one transaction with its version."""
    with translated(path):
        hint = "It was written by a newer Ductile. Run that one, or restore a backup made before."
        current = refuse_newer_version(connection, str(path), hint=hint)
        for version, sql in migrations():
            if version > current:
                _apply(connection, version, sql)


def refuse_newer_version(connection: apsw.Connection, name: str, *, hint: str) -> int:
    """Return the file's version. Raises `StoreSchemaError` if no migration leads to it."""
    version, newest = schema_version(connection), migrations()[-1][0]
    if version > newest:
        message = f"{name} has schema version {version}; this Ductile knows versions up to {newest}"
        raise StoreSchemaError(message, hint=hint)
    return version


def refuse_other_version(connection: apsw.Connection, path: Path) -> None:
    """Raise `StoreSchemaError` if the file has another version than our queries read."""
    newest = migrations()[-1][0]
    with translated(path):
        current = schema_version(connection)
    if current != newest:
        raise StoreSchemaError(
            f"{path} has schema version {current}; this Ductile reads version {newest}",
            hint="Another version of Ductile is using it: ask that one, or try again when it has ended.",
        )


def _apply(connection: apsw.Connection, version: int, sql: str) -> None:
    """Apply one migration, and store its version, in one transaction."""
    connection.execute("BEGIN IMMEDIATE").fetchall()
    try:
        # Another process may have migrated it while we waited for the lock.
        if schema_version(connection) < version:
            connection.execute(sql).fetchall()
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()
            connection.execute(f"PRAGMA user_version = {version}").fetchall()
        connection.execute("COMMIT").fetchall()
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK").fetchall()
        raise


def schema_version(connection: apsw.Connection) -> int:
    return int(connection.pragma("user_version"))
