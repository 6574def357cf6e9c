#!/usr/bin/env python3
"""The sqlite_query plugin: named queries on a database file, with bound parameters.

A query can only read: the file is opened read-only, and an authorizer permits nothing else as well. No
query is ever put together from texts of a payload.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from ductile_settings import read_number

#: Seconds kept for the response before the process is ended.
RESERVE = 1.0
#: Steps of SQLite's machine between two looks at the clock.
STEPS = 5_000
#: Action codes of SQLite's authorizer: https://www.sqlite.org/c3ref/c_alter_table.html
READING = frozenset({20, 21, 33})  # SQLITE_READ, SQLITE_SELECT, SQLITE_RECURSIVE
FUNCTION, PRAGMA, UPDATE = 31, 19, 23
CHANGING = frozenset({9, 18, 22, UPDATE, 32})  # SQLITE_DELETE, INSERT, TRANSACTION, UPDATE, SAVEPOINT
#: Of these, only what reads; their tables are `pragma_…` functions in a query.
PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)
#: They load code or reach into the process.
FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
TOO_LARGE = 64 * 1024 * 1024
#: In errors of SQLite that pass: another process is writing.
PASSING = ("locked", "busy", "schema has changed")

plugin = Plugin()


class Settings(NamedTuple):
    """The configuration, checked."""

    database: Path
    queries: dict[str, str]
    statements: dict[str, str]
    allow_any_query: bool
    write: bool
    timeout: float
    max_rows: int
    max_bytes: int


@plugin.command
def query(request: Request) -> dict[str, Any]:
    settings = read_settings(request)
    sql = chosen(request, settings.queries, "query", settings)
    with closing(connect(settings, request, write=False)) as database:
        return run(lambda: fetch(database.execute(sql, parameters(request, sql)), settings), settings)


@plugin.command
def handle(request: Request) -> dict[str, Any]:
    found = query(request)
    shown = {name: found[name] for name in ("rows", "row_count", "truncated")}
    request.emit("sqlite_query.rows", {"query": request.payload.get("query"), **shown})
    return found


@plugin.command
def execute(request: Request) -> dict[str, Any]:
    """One transaction. A retry runs the statement again, so it has to be one that may run twice."""
    settings = read_settings(request)
    if not settings.write:
        raise ConfigFailure("the plugin's config does not have `write: true`, so nothing may be changed")
    sql = chosen(request, settings.statements, "statement", settings)
    with closing(connect(settings, request, write=True)) as database:

        def change() -> dict[str, Any]:
            with database:
                cursor = database.execute(sql, parameters(request, sql))
                returned = {} if cursor.description is None else fetch(cursor, settings)
                changes = database.total_changes
            return {"changes": changes, "last_row_id": cursor.lastrowid or 0, **returned}

        return run(change, settings)


@plugin.command
def health(request: Request) -> str:
    settings = read_settings(request)
    for write, named in ((False, settings.queries), (True, settings.statements)):
        if write and not settings.write:
            continue
        with closing(connect(settings, request, write=write)) as database:
            for name, sql in named.items():
                check_sql(database, name, sql)
    return f"healthy, {len(settings.queries)} queries"


def check_sql(database: sqlite3.Connection, name: str, sql: str) -> None:
    """Have SQLite compile it, with nothing bound."""
    try:
        database.execute(f"EXPLAIN {sql}", dict.fromkeys(names_in(sql)))
    except sqlite3.Error as error:
        raise ConfigFailure(f"`{name}` in the plugin's config cannot be run: {error}") from None


def chosen(request: Request, named: dict[str, str], key: str, settings: Settings) -> str:
    """The SQL that the payload names, or brings along if that is allowed."""
    name, sql = request.payload.get(key), request.payload.get("sql")
    if sql is not None:
        if not settings.allow_any_query:
            raise Failure(
                "`sql` is allowed only with `allow_any_query: true` in the plugin's config", retry=False
            )
        if not isinstance(sql, str):
            raise Failure("`sql` has to be a text", retry=False)
        return sql
    if name is None and len(named) == 1:
        return next(iter(named.values()))
    if not isinstance(name, str) or name not in named:
        known = ", ".join(sorted(named)) or "none"
        what = f"`{key}` is missing" if name is None else f"there is no {key} {name!r}"
        raise Failure(f"{what}; the plugin's config has: {known}", retry=False)
    return named[name]


def parameters(request: Request, sql: str) -> dict[str, Any]:
    """Values for the names in the SQL. `:job_id` is the job's, the same in each attempt."""
    given = request.payload.get("parameters") or {}
    if not isinstance(given, dict):
        raise Failure("`parameters` has to be an object", retry=False)
    values = {"job_id": request.job_id, **given}
    missing = [name for name in names_in(sql) if name not in values]
    if missing:
        raise Failure(f"`parameters` lacks {', '.join(missing)}", retry=False)
    return {name: bound(value) for name, value in values.items()}


def names_in(sql: str) -> list[str]:
    """The parameters of a query: those SQLite would ask for, without those in texts and comments."""
    bare = re.sub(
        r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", " ", sql, flags=re.DOTALL
    )
    return list(dict.fromkeys(re.findall(r"[:@$]([A-Za-z_]\w*)", bare)))


def bound(value: Any) -> Any:
    """Lists and objects become JSON, for `json_each`."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def connect(settings: Settings, request: Request, *, write: bool) -> sqlite3.Connection:
    """Open the database with all limits. ConfigFailure if there is no such file: it is never created."""
    if not settings.database.is_file():
        raise ConfigFailure(f"there is no database {settings.database}")
    mode = "rw" if write else "ro"
    end = time.monotonic() + max(0.1, min(settings.timeout, request.seconds_left() - RESERVE))
    try:
        database = sqlite3.connect(
            f"file:{quote(str(settings.database))}?mode={mode}",
            uri=True,
            timeout=max(0.1, end - time.monotonic()),
        )
    except sqlite3.Error as error:
        raise ConfigFailure(f"{settings.database} cannot be opened: {error}") from None
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    database.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    database.set_authorizer(allow_changes if write else allow_reading)
    if hasattr(database, "setlimit"):  # from Python 3.11 on
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TOO_LARGE)
    return database


def allow_reading(action: int, first: str | None, second: str | None, *_: Any) -> int:
    allowed = (
        action in READING
        # SQLite asks for this when it prepares a table-valued function. It refuses the change itself.
        or (action == UPDATE and first == "sqlite_master")
        or (action == FUNCTION and (second or "").lower() not in FORBIDDEN_FUNCTIONS)
        or (action == PRAGMA and (first or "").lower() in PRAGMAS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def allow_changes(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Rows may change. Tables may not, other files may not be attached, settings may not be made."""
    return sqlite3.SQLITE_OK if action in CHANGING else allow_reading(action, first, second)


def run(work: Callable[[], dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """Do the work; errors of SQLite become failures that say what can be done."""
    try:
        return work()
    except sqlite3.IntegrityError as error:
        raise Failure(f"the database refuses it: {error}", retry=False) from None
    except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
        text = str(error)
        if "interrupted" in text:
            words = f"it takes longer than {settings.timeout:g} s, or than the job may run"
            raise Failure(f"{words}: raise `timeout`, or ask for less", retry=False) from None
        if "not authorized" in text or "prohibited" in text or "readonly" in text:
            raise Failure(f"that is not allowed: {text}", retry=False) from None
        raise Failure(f"SQLite: {text}", retry=any(word in text for word in PASSING)) from None


def fetch(cursor: sqlite3.Cursor, settings: Settings) -> dict[str, Any]:
    """Rows as objects, up to the limits."""
    if cursor.description is None:
        raise Failure("it returns no rows: only queries are run here", retry=False)
    columns = distinct([str(column[0]) for column in cursor.description])
    rows: list[dict[str, Any]] = []
    size, truncated = 0, False
    for values in cursor:
        row = {name: shown(value) for name, value in zip(columns, values)}  # noqa: B905 - older Pythons
        size += len(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
        if len(rows) == settings.max_rows or size > settings.max_bytes:
            truncated = True
            break
        rows.append(row)
    return {"columns": columns, "rows": rows, "row_count": len(rows), "truncated": truncated}


def distinct(names: list[str]) -> list[str]:
    """Two columns of one name would be one in an object: the second becomes `name_2`."""
    found: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def shown(value: Any) -> Any:
    """As JSON: bytes become `{base64}`, numbers that JSON does not have become texts."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_settings(request: Request) -> Settings:
    config = request.config
    database = config.get("database")
    if not isinstance(database, str) or not Path(database).expanduser().is_absolute():
        raise ConfigFailure("`database` in the plugin's config has to be the absolute path of a file")
    return Settings(
        database=Path(database).expanduser(),
        queries=read_named(config, "queries"),
        statements=read_named(config, "statements"),
        allow_any_query=config.get("allow_any_query") is True,
        write=config.get("write") is True,
        timeout=read_number(config, "timeout", 30),
        max_rows=int(read_number(config, "max_rows", 1000)),
        max_bytes=int(read_number(config, "max_bytes", 1_000_000)),
    )


def read_named(config: dict[str, Any], key: str) -> dict[str, str]:
    named = config.get(key) or {}
    if not isinstance(named, dict) or not all(isinstance(sql, str) and sql.strip() for sql in named.values()):
        raise ConfigFailure(f"`{key}` in the plugin's config has to be a map of names and SQL")
    return {str(name): sql for name, sql in named.items()}


plugin.run()
