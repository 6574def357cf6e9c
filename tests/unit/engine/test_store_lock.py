"""The store lock allows one process per store; reading the lock does not disturb its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ductile.config.snapshot import SqliteLocation
from ductile.engine.store_lock import (
    LOCK_FILE,
    PURPOSE_FILE,
    LockHolder,
    LockPurpose,
    find_holder,
    lock_store,
    refuse_held,
)
from ductile.errors import ConflictError, DeniedError


def sqlite_location(path: Path) -> SqliteLocation:
    return SqliteLocation(path=path)


def shared_lock(directory: Path) -> int:
    """Hold the shared lock that `find_holder` takes for a moment."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def test_reading_the_lock_does_not_keep_a_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ductile status` may read the lock during a start; the daemon retries."""
    descriptor = shared_lock(tmp_path)
    monkeypatch.setattr("ductile.engine.store_lock.time.sleep", lambda _seconds: os.close(descriptor))
    lock = lock_store(sqlite_location(tmp_path / "state.db"))
    assert find_holder(tmp_path) == LockHolder(pid=os.getpid(), purpose=LockPurpose.DAEMON)
    lock.release()
    assert find_holder(tmp_path) is None


def test_a_lock_that_is_not_released_is_held(tmp_path: Path) -> None:
    """The error names the holder by the pid in the lock file."""
    descriptor = shared_lock(tmp_path)
    os.pwrite(descriptor, b"4711\n", 0)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConflictError) as excinfo:
        lock_store(sqlite_location(tmp_path / "state.db"))
    assert excinfo.value.details == {"pid": 4711}
    os.close(descriptor)
    lock_store(sqlite_location(tmp_path / "state.db")).release()


@pytest.mark.parametrize(
    ("purpose", "words", "advice"),
    [
        (LockPurpose.DAEMON, "uses this store already", "ductile system stop"),
        (LockPurpose.RUN, "to run a job without a daemon", "that run has ended"),
        (LockPurpose.COMMAND, "for a moment", "try again"),
    ],
)
def test_the_error_names_the_purpose_of_the_holder(
    purpose: LockPurpose, words: str, advice: str, tmp_path: Path
) -> None:
    """A run without a daemon is not called a daemon, and the hint does not say to stop one."""
    lock = lock_store(sqlite_location(tmp_path / "state.db"), purpose)
    with pytest.raises(ConflictError) as excinfo:
        refuse_held(sqlite_location(tmp_path / "state.db"))
    assert f"process {os.getpid()}" in excinfo.value.message
    assert str(tmp_path / LOCK_FILE) in excinfo.value.message
    assert words in excinfo.value.message
    assert excinfo.value.hint is not None
    assert advice in excinfo.value.hint
    lock.release()


def test_a_lock_of_an_earlier_version_is_a_daemon_s(tmp_path: Path) -> None:
    """An earlier version wrote only its pid."""
    descriptor = shared_lock(tmp_path)
    os.pwrite(descriptor, b"4711\n", 0)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert find_holder(tmp_path) == LockHolder(pid=4711, purpose=LockPurpose.DAEMON)
    os.close(descriptor)


def test_the_lock_file_contains_the_pid_alone(tmp_path: Path) -> None:
    """This holds for every purpose, because tools read a pid file as a number."""
    for purpose in LockPurpose:
        lock = lock_store(sqlite_location(tmp_path / "state.db"), purpose)
        assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
        lock.release()
        assert not (tmp_path / PURPOSE_FILE).exists()


def test_the_purpose_of_an_earlier_process_is_not_taken_for_the_holder_s(tmp_path: Path) -> None:
    """A run that was killed leaves its purpose file; a daemon may get the same pid later."""
    (tmp_path / PURPOSE_FILE).write_text(f"{os.getpid()} {LockPurpose.RUN}\n")
    lock = lock_store(sqlite_location(tmp_path / "state.db"))
    assert find_holder(tmp_path) == LockHolder(pid=os.getpid(), purpose=LockPurpose.DAEMON)
    lock.release()


def test_releasing_the_lock_writes_nothing(tmp_path: Path) -> None:
    """The disk may be lost, and its error must not hide the error that ended the daemon."""
    lock = lock_store(sqlite_location(tmp_path / "state.db"))
    os.utime(tmp_path / LOCK_FILE, ns=(0, 0))
    lock.release()
    assert (tmp_path / LOCK_FILE).stat().st_mtime_ns == 0
    lock.release()


def test_a_lock_that_is_a_link_to_another_file_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x" * 8000)
    lock = tmp_path / "data" / LOCK_FILE
    lock.parent.mkdir()
    for link in (lock.symlink_to, lock.hardlink_to):
        link(victim)
        with pytest.raises(DeniedError, match="was left alone"):
            lock_store(sqlite_location(lock.with_name("state.db")))
        lock.unlink()
    victim.rename(lock)
    with pytest.raises(DeniedError, match="not a lock file of Ductile"):
        lock_store(sqlite_location(lock.with_name("state.db")))
    assert lock.read_text() == "x" * 8000


def test_a_second_lock_on_the_database_holds_when_the_file_is_removed(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    database.touch()
    lock = lock_store(sqlite_location(database))
    (tmp_path / LOCK_FILE).unlink()
    assert find_holder(tmp_path) is None
    for refused_call in (
        lambda: lock_store(sqlite_location(database)),
        lambda: refuse_held(sqlite_location(database)),
    ):
        with pytest.raises(ConflictError) as excinfo:
            refused_call()
        assert excinfo.value.details == {"pid": os.getpid()}
    lock.release()
    lock_store(sqlite_location(database)).release()


def test_a_lock_file_that_was_removed_or_replaced_is_made_again(tmp_path: Path) -> None:
    lock = lock_store(sqlite_location(tmp_path / "state.db"))
    assert not lock.renew()
    (tmp_path / LOCK_FILE).unlink()
    assert lock.renew()
    assert find_holder(tmp_path) == LockHolder(pid=os.getpid(), purpose=LockPurpose.DAEMON)
    (tmp_path / "other").write_text("")
    (tmp_path / "other").rename(tmp_path / LOCK_FILE)
    assert lock.renew()
    assert find_holder(tmp_path) == LockHolder(pid=os.getpid(), purpose=LockPurpose.DAEMON)
    assert not lock.renew()
    lock.release()
    assert find_holder(tmp_path) is None


def test_a_lock_file_that_another_process_has_locked_meanwhile_is_waited_for(tmp_path: Path) -> None:
    lock = lock_store(sqlite_location(tmp_path / "state.db"))
    (tmp_path / LOCK_FILE).unlink()
    other_lock = shared_lock(tmp_path)
    assert not lock.renew()
    os.close(other_lock)
    assert lock.renew()
    lock.release()


def test_directories_above_the_store_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock_store(sqlite_location(tmp_path / "a" / "b" / "c" / "state.db")).release()
    finally:
        os.umask(before)
    directories = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert [directory.stat().st_mode & 0o777 for directory in directories] == [0o700] * 3
