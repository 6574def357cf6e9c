"""Recovery of the jobs and processes that a killed daemon left, and a stop during the recovery."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from builders.engines import EngineUnderTest, an_engine
from builders.jobs import a_new_job
from builders.stores import claim_all
from ductile.core.jobs.model import JobStatus
from ductile.engine import recovery
from ductile.errors import ConflictError
from ductile.runner.orphans import (
    CleanupResult,
    OrphanProcess,
    find_orphan_processes,
    has_ended,
    kill_orphan_processes,
    make_identity,
)
from ductile.store.model.jobs import Submission
from ductile.store.model.records import JobFilter
from ductile.store.verbs.jobs.insert import BATCH_SIZE
from ductile.telemetry.signals import Signal, SignalEvent

ECHO = "  echo: {}\n"


#: The identity of a process that does not exist: no machine has so many processes.
DEAD = "host:999999999:1"


def an_orphan(
    store_id: str, job_id: str | None = "j1", *, new_session: bool = True, owner: str | None = DEAD
) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.environ["PATH"], "DUCTILE_STORE_ID": store_id}
    if owner is not None:
        environment["DUCTILE_DAEMON"] = owner
    if job_id is not None:
        environment["DUCTILE_JOB_ID"] = job_id
    process = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=new_session)
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        pass  # the process has not executed its program yet
    return process


@contextmanager
def an_unkillable_process(store_id: str, proc: Path, job_id: str = "j1") -> Iterator[int]:
    """Yield the pid of a process that stays in `proc`, like one that hangs in the kernel."""
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    entry = proc / str(process.pid)
    entry.mkdir(parents=True)
    (entry / "environ").write_text(
        f"DUCTILE_STORE_ID={store_id}\0DUCTILE_DAEMON={DEAD}\0DUCTILE_JOB_ID={job_id}\0"
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def running_jobs(harness: EngineUnderTest, count: int) -> list[str]:
    """Return jobs that a daemon has claimed and not ended."""
    jobs = tuple(a_new_job("echo", "poll") for _ in range(count))
    await harness.store.real.enqueue(Submission(jobs=jobs))
    claimed = await claim_all(harness.store.real, owner=DEAD)
    assert len(claimed) == count
    return [job.id for job in jobs]


async def count_statuses(harness: EngineUnderTest) -> dict[JobStatus, int]:
    counts: dict[JobStatus, int] = {}
    cursor: str | None = None
    while True:
        page = await harness.store.real.list_jobs(JobFilter(), limit=200, cursor=cursor)
        for job in page.rows:
            counts[job.status] = counts.get(job.status, 0) + 1
        if (cursor := page.next_cursor) is None:
            return counts


async def test_a_stop_during_recovery_is_honoured_between_sweeps(tmp_path: Path) -> None:
    """The engine stops after the batch; the next start recovers the rest."""
    count = BATCH_SIZE + 20
    async with an_engine(tmp_path, ECHO) as harness:
        await running_jobs(harness, count)

        def stop_at_first_recovery(event: SignalEvent) -> None:
            if event.signal is Signal.JOB_RECOVERED:
                harness.engine.stop()

        harness.signals.subscribe(stop_at_first_recovery)
        harness.start()
        await harness.wait_until_stopped()
        assert not harness.ready.is_set()
        assert await count_statuses(harness) == {JobStatus.RUNNING: 20, JobStatus.QUEUED: BATCH_SIZE}
        signals = [event.signal for event in harness.emitted]
        assert signals[-1] is Signal.SERVICE_STOPPING
        assert Signal.CONFIG_LOADED not in signals
    async with an_engine(tmp_path, ECHO) as harness:
        harness.store.full.add("claim")
        await harness.start_and_wait()
        assert await count_statuses(harness) == {JobStatus.QUEUED: count}


async def test_a_stop_before_the_start_starts_nothing(tmp_path: Path) -> None:
    """SIGTERM can arrive just before the engine starts."""
    async with an_engine(tmp_path, ECHO) as harness:
        (job_id,) = await running_jobs(harness, 1)
        harness.engine.stop()
        harness.start()
        await harness.wait_until_stopped()
        assert (await harness.job(job_id)).status is JobStatus.RUNNING
        assert await harness.store.real.config_history(limit=1) == ()


async def test_a_caller_that_waits_during_recovery_learns_of_the_stop(tmp_path: Path) -> None:
    """Waiting callers resume when the daemon stops."""
    async with an_engine(tmp_path, ECHO) as harness:
        (job_id,) = await running_jobs(harness, 1)
        with harness.engine.waiters.waiting_for(job_id) as ended:
            harness.engine.stop()
            harness.start()
            await harness.wait_until_stopped()
            assert ended.done()


async def test_survivors_are_ended_with_what_they_forked() -> None:
    """Processes are found by the id of the store, killed by group, and gone when the function returns."""
    own_process, other_process = an_orphan("one"), an_orphan("another")
    try:
        reaper = threading.Thread(target=own_process.wait)
        reaper.start()
        sweep = await kill_orphan_processes("one", {"j1": DEAD}, timeout_seconds=20)
        assert [(orphan.pid, orphan.job_id) for orphan in sweep.ended] == [(own_process.pid, "j1")]
        assert sweep.alive == ()
        assert find_orphan_processes("one", {"j1": DEAD}) == ()
        assert [orphan.pid for orphan in find_orphan_processes("another", {"j1": DEAD})] == [
            other_process.pid
        ]
        reaper.join()
    finally:
        other_process.kill()
        other_process.wait()


def test_a_process_of_an_ended_job_is_left_alone() -> None:
    """A plugin may have started the process on purpose; the job of a fork server is unknown."""
    running, ended, server = an_orphan("one", "j1"), an_orphan("one", "j2"), an_orphan("one", None)
    try:
        pids = {orphan.pid for orphan in find_orphan_processes("one", {"j1": DEAD})}
        assert pids == {running.pid, server.pid}
    finally:
        for process in (running, ended, server):
            process.kill()
            process.wait()


def test_a_process_started_by_an_earlier_version_is_found() -> None:
    """An earlier version passed no owner to its processes, and recorded one without the start time."""
    cold, warm = an_orphan("one", "j1", owner=None), an_orphan("one", None, owner=None)
    try:
        pids = {orphan.pid for orphan in find_orphan_processes("one", {"j1": "host:999999999"})}
        assert pids == {cold.pid, warm.pid}
        assert find_orphan_processes("one", {"j1": DEAD}) == ()
    finally:
        for process in (cold, warm):
            process.kill()
            process.wait()


def test_a_process_started_by_another_daemon_is_left_alone() -> None:
    """A copied store has the same id and jobs; the owner of the copy's process is unknown here."""
    other, unknown = an_orphan("one", owner="host:999999998:1"), an_orphan("one", None, owner="host:1:1")
    try:
        assert find_orphan_processes("one", {"j1": DEAD}) == ()
        assert find_orphan_processes("one", {"j1": None}) == ()
    finally:
        for process in (other, unknown):
            process.kill()
            process.wait()


def test_a_process_started_by_a_living_daemon_is_left_alone() -> None:
    """The daemon still works on the original of this store."""
    alive = make_identity("host")
    cold, warm = an_orphan("one", owner=alive), an_orphan("one", None, owner=alive)
    try:
        assert find_orphan_processes("one", {"j1": alive}) == ()
    finally:
        for process in (cold, warm):
            process.kill()
            process.wait()


def test_a_process_that_has_ended_is_dead_before_it_is_reaped() -> None:
    """The parent of a daemon may read its exit status late."""
    identity = "from ductile.runner.orphans import make_identity; print(make_identity('a:b'), flush=True)"
    wait = "; import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", identity + wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        daemon_identity = process.stdout.readline().strip()
        assert not has_ended(daemon_identity)
        assert has_ended(f"{daemon_identity}0"), "another process has its number now"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(daemon_identity)
    assert has_ended("not an identity")
    assert has_ended("")


def test_processes_of_our_session_are_left_alone() -> None:
    """Killing the session could kill the daemon; no plugin runs in it."""
    process = an_orphan("one", new_session=False)
    try:
        assert find_orphan_processes("one", {"j1": DEAD}) == ()
    finally:
        process.kill()
        process.wait()


STARTED_BY_A_JOB = """\
import subprocess, sys
from ductile.runner.orphans import find_orphan_processes
if sys.argv[1:]:
    print([orphan.pid for orphan in find_orphan_processes("one", {"j1": "host:999999999:1"})])
else:
    subprocess.run([sys.executable, __file__, "daemon"], start_new_session=True)
"""


def test_a_daemon_that_a_job_has_started_does_not_end_its_own_ancestors(tmp_path: Path) -> None:
    """Neither the process of the plugin nor the daemon is killed, although both have the variables of the
    job.
    """
    script = tmp_path / "restart.py"
    script.write_text(STARTED_BY_A_JOB)
    environment = {**os.environ, "DUCTILE_STORE_ID": "one", "DUCTILE_DAEMON": DEAD, "DUCTILE_JOB_ID": "j1"}
    started = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    assert started.stdout == "[]\n"


async def test_recovery_ends_the_processes_of_running_jobs_only(tmp_path: Path) -> None:
    """This holds for every start, also after an orderly stop."""
    async with an_engine(tmp_path, ECHO) as harness:
        harness.store.full.add("claim")
        store_id = harness.store.real.store_id
        (job_id,) = await running_jobs(harness, 1)
        orphan_process, survivor = an_orphan(store_id, job_id), an_orphan(store_id, "ended-long-ago")
        reaper = threading.Thread(target=orphan_process.wait)
        reaper.start()
        try:
            await harness.start_and_wait()
            killed = [event for event in harness.emitted if event.signal is Signal.ORPHAN_ENDED]
            assert [(event.job_id, event.data["pid"]) for event in killed] == [(job_id, orphan_process.pid)]
            assert survivor.poll() is None
        finally:
            survivor.kill()
            survivor.wait()
            reaper.join()


async def test_a_process_that_does_not_end_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """After the timeout the process is reported as alive."""
    with an_unkillable_process("stubborn", tmp_path) as pid:
        async with asyncio.timeout(60):
            sweep = await kill_orphan_processes("stubborn", {"j1": DEAD}, timeout_seconds=0.1, proc=tmp_path)
        assert sweep == CleanupResult(ended=(), alive=(OrphanProcess(pid=pid, job_id="j1"),))


async def test_no_job_is_started_beside_a_process_that_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job never runs twice at the same time; the daemon names the process and exits."""
    monkeypatch.setattr(recovery, "KILL_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(
        recovery, "kill_orphan_processes", partial(kill_orphan_processes, proc=tmp_path / "proc")
    )
    async with an_engine(tmp_path, ECHO) as harness:
        (job_id,) = await running_jobs(harness, 1)
        with an_unkillable_process(harness.store.real.store_id, tmp_path / "proc", job_id) as pid:
            harness.start()
            with pytest.raises(ConflictError) as excinfo:
                await harness.wait_until_stopped()
        assert [event.data["pid"] for event in harness.emitted if event.signal is Signal.ORPHAN_ALIVE] == [
            pid
        ]
        assert excinfo.value.details == {"pids": [pid]}
        assert str(pid) in excinfo.value.message
        assert (await harness.job(job_id)).status is JobStatus.RUNNING
