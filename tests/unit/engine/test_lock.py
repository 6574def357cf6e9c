"""SPEC 4.8: one daemon for each store, and whoever only looks at the lock is in nobody's way."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ductile.engine.lock import LOCK_FILE, Holder, Keeper, StoreLock, held, holder_of
from ductile.errors import ConflictError


def looking(directory: Path) -> int:
    """Somebody who looks who holds the lock, and has it shared for that moment."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def test_a_look_at_the_lock_does_not_keep_a_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ductile status` at the moment of a start: the lock is asked for again."""
    descriptor = looking(tmp_path)
    monkeypatch.setattr("ductile.engine.lock.time.sleep", lambda _seconds: os.close(descriptor))
    lock = StoreLock(tmp_path)
    assert holder_of(tmp_path) == Holder(pid=os.getpid(), keeper=Keeper.DAEMON)
    lock.release()
    assert holder_of(tmp_path) is None


def test_a_lock_that_is_not_let_go_of_is_held(tmp_path: Path) -> None:
    """And whoever holds it is named as far as it has told."""
    descriptor = looking(tmp_path)
    os.pwrite(descriptor, b"4711\n", 0)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConflictError) as refused:
        StoreLock(tmp_path)
    assert refused.value.details == {"pid": 4711}
    os.close(descriptor)
    StoreLock(tmp_path).release()


@pytest.mark.parametrize(
    ("keeper", "says", "advises"),
    [
        (Keeper.DAEMON, "uses this store already", "ductile system stop"),
        (Keeper.RUN, "to run a job without a daemon", "that run has ended"),
        (Keeper.COMMAND, "for a moment", "try again"),
    ],
)
def test_what_holds_a_store_is_told(keeper: Keeper, says: str, advises: str, tmp_path: Path) -> None:
    """A run is not called a daemon, nor is anybody sent to stop one that is not there."""
    lock = StoreLock(tmp_path, keeper)
    refused = held(tmp_path / LOCK_FILE)
    assert f"process {os.getpid()}" in refused.message
    assert says in refused.message
    assert refused.hint is not None
    assert advises in refused.hint
    lock.release()


def test_a_lock_of_an_earlier_version_is_a_daemon_s(tmp_path: Path) -> None:
    """It wrote no more than its number."""
    descriptor = looking(tmp_path)
    os.pwrite(descriptor, b"4711\n", 0)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert holder_of(tmp_path) == Holder(pid=4711, keeper=Keeper.DAEMON)
    os.close(descriptor)
