"""`system move-store`: copies a whole store to another database, or reports what that would do.

The source is only read. The copy appears at once when it is complete and compared: on PostgreSQL with one
commit, on SQLite by giving the finished file its name. A command that is killed leaves nothing that a daemon
could use.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from ductile.admin.store_rows import (
    lock_sqlite_stores,
    open_source,
    open_target,
    refuse_unusable_target,
    sqlite_file,
    store_tables,
)
from ductile.config.secrets import Secret
from ductile.config.snapshot import PostgresLocation, SqliteLocation, StateLocation
from ductile.core.json import JsonObject
from ductile.errors import StoreError, StoreFailedError, UsageError
from ductile.store.model.maintenance import Invariant
from ductile.store.transfer import StoreSource, TransferProgress, broken_invariants, copy_rows, reporter
from ductile.struct import Value

_SCHEMES = ("postgresql://", "postgres://")
_FROM_ENVIRONMENT = "env:"


class MoveRequest(Value):
    source: StateLocation
    target: StateLocation
    now: datetime
    dry_run: bool = False


def parse_store(
    text: str, option: str, environ: Mapping[str, str], configured: StateLocation
) -> StateLocation:
    """Return the store that an option names: a URL, `env:NAME`, `sqlite` for the configured file, or a path.

    Raises UsageError for a variable that is not set, or a URL of another kind. No message has the URL.
    """
    if text == "sqlite":
        return SqliteLocation(path=sqlite_file(configured))
    if text.startswith(_FROM_ENVIRONMENT):
        name = text.removeprefix(_FROM_ENVIRONMENT)
        text = environ.get(name, "")
        if not text:
            raise UsageError(
                f"{option}: the environment variable {name} is not set",
                hint=f"Set it first, for example: read -rs {name} && export {name}",
            )
    if text.startswith(_SCHEMES):
        return PostgresLocation(url=Secret(text), directory=configured.directory)
    if "://" in text or not text:
        raise UsageError(
            f"{option}: this is neither a PostgreSQL URL nor a path",
            hint="Give postgresql://USER@HOST/DATABASE, env:NAME for a variable that holds it, sqlite, "
            "or a path.",
        )
    return SqliteLocation(path=Path(text).expanduser().absolute())


def move_store(request: MoveRequest, progress: TransferProgress) -> JsonObject:
    """Copy the source into the target, which must be absent or empty, and check the copy.

    Raises ConflictError if a process uses one of the two or the target has rows, and StoreError if the copy
    is not the same.
    """
    tables = store_tables()
    with (
        lock_sqlite_stores(request.source, request.target),
        open_source(request.source, request.now) as source,
    ):
        refuse_unusable_target(request.target, request.now)
        broken = broken_invariants(source.session, progress)
        if request.dry_run:
            rows = {table.name: source.count(table) for table in tables}
        else:
            rows = _copy(request, source, broken, progress)
    return {
        "from": request.source.name,
        "to": request.target.name,
        "moved": not request.dry_run,
        "dry_run": request.dry_run,
        "rows": sum(rows.values()),
        "tables": [{"table": name, "rows": count} for name, count in rows.items()],
        "invariants": len(Invariant),
        "broken_invariants": [{"invariant": name, "ids": list(ids)} for name, ids in broken.items()],
    }


def _copy(
    request: MoveRequest, source: StoreSource, broken: dict[str, tuple[str, ...]], progress: TransferProgress
) -> dict[str, int]:
    """Fill the target, which becomes visible if the copy is right. Returns the number of rows by table."""
    try:
        with open_target(request.target, request.now) as target:
            copied = copy_rows(source, target, store_tables(), progress)
            target.build_search_index(reporter("indexing the log", copied["job_log"].rows, progress))
            if (broken_in_copy := broken_invariants(target.session, progress)) != broken:
                raise StoreFailedError(
                    f"the copy breaks other rules than its source: {', '.join(broken_in_copy) or 'none'} "
                    f"instead of {', '.join(broken) or 'none'}",
                    hint="This is a defect of Ductile: please report it.",
                )
        return {name: digest.rows for name, digest in copied.items()}
    except StoreError as error:
        meaning = "The source is as it was, and nothing was moved: run the command again."
        error.hint = meaning if error.hint is None else f"{meaning} {error.hint}"
        raise
