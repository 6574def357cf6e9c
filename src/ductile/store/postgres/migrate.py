"""Versioned migrations, applied under one advisory lock, so that nodes may start together."""

from __future__ import annotations

from importlib.resources import files

from ductile.errors import StoreSchemaError
from ductile.store.postgres.connection import Connection

#: Of the advisory lock of migrations, in this database.
_LOCK = 17525


def migrations() -> list[tuple[int, str]]:
    """Return the migrations with their versions, oldest first."""
    directory = files("ductile.store.postgres") / "migrations"
    names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), (directory / name).read_text(encoding="utf-8")) for name in names]


def migrate(connection: Connection) -> None:
    """Bring the schema to the newest version. Raises `StoreSchemaError` if it is newer than this program."""
    connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    try:
        current = schema_version(connection)
        newest = migrations()[-1][0]
        if current > newest:
            raise StoreSchemaError(
                f"the store has schema version {current}; this Ductile knows versions up to {newest}",
                hint="A newer Ductile has migrated it: upgrade this node too.",
            )
        for version, sql in migrations():
            if version > current:
                with connection.transaction():
                    connection.execute(sql)
                    connection.execute(
                        "INSERT INTO store_meta (key, value) VALUES ('schema_version', %s) "
                        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                        (str(version),),
                    )
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def schema_version(connection: Connection) -> int:
    """Return the version of the schema; 0 if there is none yet."""
    row = connection.execute("SELECT to_regclass('store_meta') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return 0
    row = connection.execute("SELECT value FROM store_meta WHERE key = 'schema_version'").fetchone()
    return 0 if row is None else int(row[0])
