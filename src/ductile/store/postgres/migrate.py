"""Versioned migrations, applied under one advisory lock, so that nodes may start together."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from ductile.errors import ConflictError, StoreFailedError, StoreSchemaError
from ductile.store.postgres.connection import Connection
from ductile.store.postgres.store_lock import share_store, take_store

#: The number of the advisory lock for migrations, in this database.
_LOCK = 17525


def migrations() -> list[tuple[int, str]]:
    """Return the migrations with their versions, oldest first."""
    directory = files("ductile.store.postgres") / "migrations"
    names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), (directory / name).read_text(encoding="utf-8")) for name in names]


def newest_version() -> int:
    return migrations()[-1][0]


def migrate(connection: Connection, queries: Mapping[str, str]) -> None:
    """Bring the schema to the newest version. Raises `StoreSchemaError` if it is newer than this program.

    Raises `ConflictError`, and changes nothing, while other programs use the store: an older daemon would
    write rows of the old schema. Raises `StoreBusyError` while a command moves or restores the store.
    """
    connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    try:
        # Under this lock: a node that migrates takes the store, and holds the lock until it has released it.
        share_store(connection, queries)
        connection.execute(queries["unshare_store"])
        current = schema_version(connection)
        newest = newest_version()
        if current > newest:
            raise StoreSchemaError(
                f"the store has schema version {current}; this Ductile knows versions up to {newest}",
                hint="A newer Ductile has migrated it: upgrade this node too.",
            )
        if current < newest:
            _migrate_from(connection, queries, current)
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _migrate_from(connection: Connection, queries: Mapping[str, str], current: int) -> None:
    """Take the store alone, apply the migrations after version `current`, and release the store."""
    try:
        take_store(connection, queries)
    except ConflictError as error:
        raise ConflictError(
            f"the store has to be migrated from schema version {current} to {newest_version()}, and other "
            f"programs use it: {error.message}",
            hint="Stop the daemon on every node with `ductile system stop`, then start the new version.",
            details=error.details,
        ) from error
    for version, sql in migrations():
        if version > current:
            with connection.transaction():
                connection.execute(sql)
                connection.execute(
                    "INSERT INTO store_meta (key, value) VALUES ('schema_version', %s) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    (str(version),),
                )
    connection.execute(queries["release_store"])


def refuse_other_schema(connection: Connection) -> None:
    """Raise `StoreFailedError` if another version of Ductile has migrated the store since it was opened."""
    if (current := schema_version(connection)) != newest_version():
        raise StoreFailedError(
            f"the store was migrated to schema version {current} while this node had no connection to it; "
            f"this Ductile knows version {newest_version()}",
            hint="Upgrade this node to the version of the others, then start it again.",
        )


def schema_version(connection: Connection) -> int:
    """Return the version of the schema; 0 if there is none yet."""
    row = connection.execute("SELECT to_regclass('store_meta') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return 0
    row = connection.execute("SELECT value FROM store_meta WHERE key = 'schema_version'").fetchone()
    return 0 if row is None else int(row[0])
