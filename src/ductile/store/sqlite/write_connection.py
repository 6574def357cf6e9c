"""The connection of the writer: transactions on the file, checks of its identity, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

import apsw

from ductile.store.notifier import Change
from ductile.store.sqlite.connection import is_fatal, translate
from ductile.store.sqlite.file_identities import FileIdentities
from ductile.store.sqlite.session import SqliteSession

#: Pages in the write-ahead log above which it is checkpointed between batches.
CHECKPOINT_PAGES = 1000


class SqliteWriteConnection:
    """`ductile.store.writer.WriteConnection` on one SQLite file."""

    def __init__(
        self, connection: apsw.Connection, session: SqliteSession, clock: Callable[[], datetime], path: Path
    ) -> None:
        self._connection = connection
        self.session = session
        self._clock = clock
        self._path = path
        self.has_written = False
        self._wal_pages = 0
        self.files = FileIdentities(connection.filename, connection.filename_wal)
        connection.set_wal_hook(self._on_wal_commit)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def begin(self, seqs_to_settle: Callable[[], Sequence[int]]) -> None:  # noqa: ARG002 - no round trip to save
        self.has_written = False
        self._execute("BEGIN IMMEDIATE")
        self.session.begin_transaction(self._clock())

    def commit(self, _changes: Iterable[Change]) -> None:
        self.session.flush()
        # A commit to an unlinked file succeeds as well. The files are checked before it, so that a refused
        # request is not in the copy that `rescue_store` makes; and after it, so that a request is
        # acknowledged only if it is in the file at the path.
        self.files.check()
        self._execute("COMMIT")
        self.files.check()
        self.session.committed()

    def roll_back(self) -> None:
        self._execute("ROLLBACK")

    def savepoint(self) -> None:
        self._execute("SAVEPOINT request")

    def release_savepoint(self) -> None:
        self._execute("RELEASE request")

    def roll_back_to_savepoint(self) -> None:
        self._execute("ROLLBACK TO request")
        self._execute("RELEASE request")

    def is_fatal(self, error: BaseException) -> bool:
        return is_fatal(error)

    def translate(self, error: BaseException) -> BaseException:
        return translate(error, self._path) if isinstance(error, apsw.Error) else error

    def check(self) -> None:
        self.files.check()

    def after_batch(self) -> None:
        """Checkpoint a large log here, so that no caller waits for it inside a commit."""
        if self._wal_pages >= CHECKPOINT_PAGES:
            self._wal_pages = 0
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _on_wal_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """SQLite calls this after each commit that has written something."""
        self._wal_pages = pages
        self.has_written = True
        return apsw.SQLITE_OK

    def _execute(self, sql: str) -> None:
        self._connection.execute(sql).fetchall()
