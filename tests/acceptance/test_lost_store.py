"""The files of the store are removed under a running daemon: it accepts nothing more, and says so."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from builders.daemons import PATIENCE, SLOW, Daemon, Workspace, a_daemon, a_workspace
from builders.http import Api, ApiResponse, an_api, an_api_workspace

if TYPE_CHECKING:
    from builders.terminal import CommandResult

EVERY_FILE = ("state.db", "state.db-wal", "state.db-shm")
BACKUP = ("system", "backup", "copy.tar.gz")
SOON = "service: {max_workers: 4, log_level: debug, shutdown_grace: 100ms, tick_interval: 20ms}\n"


def data(workspace: Workspace) -> Path:
    return workspace.directory / "demo" / "data"


def remove(workspace: Workspace, *names: str) -> None:
    for name in names:
        (data(workspace) / name).unlink()


def assert_failed(daemon: Daemon, *, names: str) -> None:
    """It has ended by itself, with an error, and has said which file is missing."""
    line = daemon.wait_for("store.failed")
    assert names in line["message"], line
    assert "removed or replaced" in line["message"], line
    assert daemon.process.wait(PATIENCE) == 1


def asked(api: Api, method: str, path: str, body: object = None) -> ApiResponse | None:
    """The answer; None if a commit of the daemon's own was earlier, and it listens no more."""
    try:
        return api.ask(method, path, body)
    except OSError:
        api.daemon.wait_for("store.failed")
        return None


@pytest.mark.parametrize("names", [EVERY_FILE, ("state.db",), ("state.db-wal",)])
def test_a_submission_after_the_store_was_removed_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A 2xx answer means that the job is on disk. The tick is a minute here: the batch itself is checked."""
    with an_api(an_api_workspace(tmp_path)) as api:
        accepted = api.post("/plugin/echo/handle", {"payload": {}})
        api.ended(accepted["job_id"])
        remove(api.workspace, *names)
        refused = asked(api, "POST", "/plugin/echo/handle", {"payload": {}})
        if refused is not None:
            assert refused.status == 503
            assert refused.code in ("store_failed", "too_busy")  # busy: it stops already
            assert refused.code == "too_busy" or names[0] in refused.body["message"]
        assert_failed(api.daemon, names=names[0])


@pytest.mark.parametrize("probe", ["/healthz", "/readyz"])
def test_a_probe_finds_that_the_store_was_removed(tmp_path: Path, probe: str) -> None:
    with an_api(an_api_workspace(tmp_path)) as api:
        remove(api.workspace, *EVERY_FILE)
        said = asked(api, "GET", probe)
        assert said is None or said.status == 503
        assert_failed(api.daemon, names="state.db")


@pytest.mark.parametrize("names", [EVERY_FILE, ("state.db-wal",), ("state.db-shm",)])
def test_an_idle_daemon_notices_at_its_next_tick(tmp_path: Path, names: tuple[str, ...]) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(SOON + "plugins:\n  echo: {}\n")
    with a_daemon(workspace) as daemon:
        remove(workspace, *names)
        assert_failed(daemon, names=names[0])


def test_a_daemon_notices_that_its_whole_directory_is_gone(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(SOON + "plugins:\n  echo: {}\n")
    with a_daemon(workspace) as daemon:
        shutil.rmtree(data(workspace))
        assert_failed(daemon, names="state.db")


@pytest.mark.parametrize("names", [EVERY_FILE, ("state.db",), ("state.db-wal",), ()])
def test_the_store_is_put_back_before_the_daemon_ends(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Every job that was accepted is known after the next start, without help."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_quiet_daemon(workspace) as daemon:
        done = workspace.json("run", "echo")["job_id"]
        waiting = [workspace.json("run", "slow", "--no-wait")["job_id"] for _ in range(6)]
        daemon.wait_until_started(waiting[0])
        if names:
            remove(workspace, *names)
        else:
            shutil.rmtree(data(workspace))
        daemon.process.send_signal(signal.SIGHUP)  # a reload is written down, and finds that
        assert daemon.wait_for("store.rescued")["put_back"] is True
        assert daemon.process.wait(PATIENCE) == 1
    assert not [*data(workspace).glob("state.db-wal*"), *data(workspace).glob("state.db.*")]
    assert (data(workspace) / "state.db").stat().st_mode & 0o777 == 0o600
    with a_daemon(workspace):
        assert workspace.json("job", "show", done)["status"] == "succeeded"
        assert {workspace.json("job", "show", job)["status"] for job in waiting} <= {"queued", "running"}
        assert workspace.ductile("system", "selfcheck").status == 0


def test_an_idle_daemon_that_is_stopped_puts_its_store_back(tmp_path: Path) -> None:
    """It has not noticed yet that the files were removed: nothing was written since."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        job = workspace.json("run", "echo")["job_id"]
        remove(workspace, *EVERY_FILE)
        daemon.end()
        assert daemon.wait_for("store.rescued")["put_back"] is True
    assert workspace.json("job", "show", job)["status"] == "succeeded"


def test_a_refused_submission_is_not_in_the_store_that_is_put_back(tmp_path: Path) -> None:
    """Its caller got an error, and sends it again."""
    with an_api(an_api_workspace(tmp_path)) as api:
        api.ended(api.post("/plugin/echo/handle", {"payload": {}})["job_id"])
        remove(api.workspace, *EVERY_FILE)
        asked(api, "POST", "/plugin/echo/handle", {"payload": {}})
        assert api.daemon.process.wait(PATIENCE) == 1
    assert len(api.workspace.json("job", "list")["jobs"]) == 1


def test_a_file_that_took_the_place_of_the_store_is_left_alone(tmp_path: Path) -> None:
    """It may be a backup that was put there; what was accepted is saved beside it."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        job = workspace.json("run", "echo")["job_id"]
        remove(workspace, "state.db")
        (data(workspace) / "state.db").write_bytes(b"another file")
        daemon.process.send_signal(signal.SIGHUP)  # a reload is written down, and finds that
        rescued = daemon.wait_for("store.rescued")
        assert rescued["put_back"] is False
        assert daemon.process.wait(PATIENCE) == 1
    assert (data(workspace) / "state.db").read_bytes() == b"another file"
    remove(workspace, "state.db", "state.db-wal", "state.db-shm")
    # An empty store would hide the copy. The advice works.
    refused = workspace.ductile("system", "start")
    assert refused.status == 1
    assert f"mv {rescued['store']} {data(workspace) / 'state.db'}" in printed_by(refused)
    Path(rescued["store"]).rename(data(workspace) / "state.db")
    assert workspace.json("job", "show", job)["status"] == "succeeded"


@contextmanager
def a_quiet_daemon(workspace: Workspace) -> Iterator[Daemon]:
    """One that has made the commits of its start. A purge has the lowest priority."""
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("queue", "purge", "--all").status == 0
        yield daemon


def assert_refused(workspace: Workspace, daemon: Daemon, words: tuple[str, ...], why: str) -> None:
    ran = workspace.ductile(*words)
    if ran.status in (69, 75):  # it is just stopping
        daemon.wait_for("store.failed")
        return
    if ran.status == 0 and any(line["signal"] == "store.failed" for line in daemon.lines):
        return  # a commit of the daemon's own was earlier, and it has ended
    assert ran.status == 1, ran
    assert why in printed_by(ran)
    assert not (workspace.directory / "copy.tar.gz").exists()


def printed_by(ran: CommandResult) -> str:
    return " ".join(f"{ran.out}\n{ran.err}".split())


@pytest.mark.parametrize(
    "words",
    [("system", "doctor"), ("system", "selfcheck"), ("status",), BACKUP],
)
def test_commands_say_that_the_store_of_the_daemon_is_missing(tmp_path: Path, words: tuple[str, ...]) -> None:
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        remove(workspace, *EVERY_FILE)
        assert_refused(workspace, daemon, words, "state.db was removed or replaced")
        assert_failed(daemon, names="state.db")


def test_a_backup_of_a_store_without_its_log_is_refused(tmp_path: Path) -> None:
    """The file alone lacks what was accepted last."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        remove(workspace, "state.db-wal")
        assert_refused(workspace, daemon, BACKUP, "state.db-wal was removed or replaced")


def test_a_backup_whose_store_has_gone_with_its_directory_is_an_error(tmp_path: Path) -> None:
    """The socket of the daemon is gone; the link beside the configuration names it."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        shutil.rmtree(data(workspace))
        assert_refused(workspace, daemon, BACKUP, "there is no store at")


def test_a_log_without_its_file_is_left_alone_at_start(tmp_path: Path) -> None:
    """It may hold jobs that were accepted: a new store beside it would throw them away."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        daemon.process.kill()
        daemon.process.wait()
    remove(workspace, "state.db", "state.db-shm")
    log = (data(workspace) / "state.db-wal").read_bytes()
    for words in (("system", "start"), ("run", "echo"), BACKUP):
        ran = workspace.ductile(*words)
        assert ran.status == 1, ran
        assert "state.db is missing, and its write-ahead log" in printed_by(ran)
        assert "hint: Put the file back" in printed_by(ran)
    assert "its write-ahead log" in printed_by(workspace.ductile("system", "doctor"))
    assert (data(workspace) / "state.db-wal").read_bytes() == log
    assert not (data(workspace) / "state.db").exists()
    # The advice works.
    (data(workspace) / "state.db-wal").rename(data(workspace) / "state.db-wal.old")
    assert workspace.ductile("run", "echo").status == 0


def test_removing_the_lock_file_does_not_let_a_second_daemon_start(tmp_path: Path) -> None:
    """Two daemons on one store would run jobs twice, and end each other's processes."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        remove(workspace, "ductile.lock")
        for words in (("system", "start"), ("system", "start", "--dry-run")):
            ran = workspace.ductile(*words)
            assert ran.status == 1, ran
            assert f"process {daemon.process.pid} uses this store already" in printed_by(ran)
        assert daemon.end() == 0


def test_a_daemon_makes_its_lock_file_again(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(SOON + "plugins:\n  echo: {}\n")
    with a_daemon(workspace) as daemon:
        lock = data(workspace) / "ductile.lock"
        assert lock.read_text() == f"{daemon.process.pid}\n"
        lock.unlink()
        daemon.wait_for("store.lock_renewed")
        assert lock.read_text() == f"{daemon.process.pid}\n"
        assert daemon.end() == 0


def test_a_file_that_is_damaged_in_its_middle_is_refused_at_start(tmp_path: Path) -> None:
    """Not when a job first touches the page: the daemon would have said that it is ready."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("run", "echo").status == 0
    database = data(workspace) / "state.db"
    connection = apsw.Connection(str(database))
    ((root,),) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'job_log_failures'"
    ).fetchall()
    page = int(str(root))
    connection.close()
    content = bytearray(database.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes(4096)
    database.write_bytes(content)
    ran = workspace.ductile("system", "start")
    assert ran.status == 1, ran
    assert "state.db is damaged: " in printed_by(ran)
    assert "ductile system restore FILE --to DIR" in printed_by(ran)
    assert database.read_bytes() == content


def test_a_damaged_log_is_kept_and_reported(tmp_path: Path) -> None:
    """SQLite reads it up to the damage and would write over the rest."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        for _ in range(12):
            assert workspace.ductile("run", "echo").status == 0
        daemon.process.kill()
        daemon.process.wait()
    log = data(workspace) / "state.db-wal"
    content = bytearray(log.read_bytes())
    content[len(content.rstrip(b"\0")) * 3 // 4] ^= 0xFF
    log.write_bytes(content)
    with a_daemon(workspace) as daemon:
        line = daemon.wait_for("store.log_damaged")
        assert line["transactions_lost"] > 1
        assert Path(line["kept"]).parent == data(workspace)
        assert Path(line["kept"]).read_bytes() == content
        assert line["kept"] in printed_by(workspace.ductile("system", "doctor")).replace(" ", "")
        assert workspace.ductile("system", "selfcheck").status == 0
        assert daemon.end() == 0
    with a_daemon(workspace) as daemon:  # logged once; the doctor reports it further on
        assert all(line["signal"] != "store.log_damaged" for line in daemon.whole_log())
