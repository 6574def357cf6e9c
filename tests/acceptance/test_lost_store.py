"""The files of the store are removed under a running daemon, which accepts nothing more and says so."""

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
FAST_TICK = "service: {max_workers: 4, log_level: debug, shutdown_grace: 100ms, tick_interval: 20ms}\n"


def data_directory(workspace: Workspace) -> Path:
    return workspace.directory / "demo" / "data"


def remove(workspace: Workspace, *names: str) -> None:
    for name in names:
        (data_directory(workspace) / name).unlink()


def assert_failed(daemon: Daemon, *, names: str) -> None:
    """Assert that the daemon has ended by itself, with an error that names the missing file."""
    line = daemon.wait_for("store.failed")
    assert names in line["message"], line
    assert "removed or replaced" in line["message"], line
    assert daemon.process.wait(PATIENCE) == 1


def try_request(api: Api, method: str, path: str, body: object = None) -> ApiResponse | None:
    """Return the response, or None if the daemon has ended already because of a commit of its own."""
    try:
        return api.ask(method, path, body)
    except OSError:
        api.daemon.wait_for("store.failed")
        return None


@pytest.mark.parametrize("names", [EVERY_FILE, ("state.db",), ("state.db-wal",)])
def test_a_submission_after_the_store_was_removed_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A 2xx response means that the job is on disk. The tick is a minute, so only the commit can find the
    loss.
    """
    with an_api(an_api_workspace(tmp_path)) as api:
        accepted = api.post("/plugin/echo/handle", {"payload": {}})
        api.ended(accepted["job_id"])
        remove(api.workspace, *names)
        refused = try_request(api, "POST", "/plugin/echo/handle", {"payload": {}})
        if refused is not None:
            assert refused.status == 503
            assert refused.code in ("store_failed", "too_busy")  # busy: the daemon stops already
            assert refused.code == "too_busy" or names[0] in refused.body["message"]
        assert_failed(api.daemon, names=names[0])


@pytest.mark.parametrize("probe", ["/healthz", "/readyz"])
def test_a_probe_finds_that_the_store_was_removed(tmp_path: Path, probe: str) -> None:
    with an_api(an_api_workspace(tmp_path)) as api:
        remove(api.workspace, *EVERY_FILE)
        response = try_request(api, "GET", probe)
        assert response is None or response.status == 503
        assert_failed(api.daemon, names="state.db")


@pytest.mark.parametrize("names", [EVERY_FILE, ("state.db-wal",), ("state.db-shm",)])
def test_an_idle_daemon_notices_at_its_next_tick(tmp_path: Path, names: tuple[str, ...]) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(FAST_TICK + "plugins:\n  echo: {}\n")
    with a_daemon(workspace) as daemon:
        remove(workspace, *names)
        assert_failed(daemon, names=names[0])


def test_a_daemon_notices_that_its_whole_directory_is_gone(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(FAST_TICK + "plugins:\n  echo: {}\n")
    with a_daemon(workspace) as daemon:
        shutil.rmtree(data_directory(workspace))
        assert_failed(daemon, names="state.db")


@pytest.mark.parametrize("names", [EVERY_FILE, ("state.db",), ("state.db-wal",), ()])
def test_the_store_is_put_back_before_the_daemon_ends(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Every job that was accepted is known after the next start, without help."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_quiet_daemon(workspace) as daemon:
        succeeded = workspace.json("run", "echo")["job_id"]
        unfinished = [workspace.json("run", "slow", "--no-wait")["job_id"] for _ in range(6)]
        daemon.wait_until_started(unfinished[0])
        if names:
            remove(workspace, *names)
        else:
            shutil.rmtree(data_directory(workspace))
        daemon.process.send_signal(signal.SIGHUP)  # the reload is recorded, and its commit finds the loss
        assert daemon.wait_for("store.rescued")["put_back"] is True
        assert daemon.process.wait(PATIENCE) == 1
    assert not [
        *data_directory(workspace).glob("state.db-wal*"),
        *data_directory(workspace).glob("state.db.*"),
    ]
    assert (data_directory(workspace) / "state.db").stat().st_mode & 0o777 == 0o600
    with a_daemon(workspace):
        assert workspace.json("job", "show", succeeded)["status"] == "succeeded"
        assert {workspace.json("job", "show", job)["status"] for job in unfinished} <= {"queued", "running"}
        assert workspace.ductile("system", "selfcheck").status == 0


def test_an_idle_daemon_that_is_stopped_puts_its_store_back(tmp_path: Path) -> None:
    """The daemon has not noticed the removal, because nothing was written since."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        job = workspace.json("run", "echo")["job_id"]
        remove(workspace, *EVERY_FILE)
        daemon.end()
        assert daemon.wait_for("store.rescued")["put_back"] is True
    assert workspace.json("job", "show", job)["status"] == "succeeded"


def test_a_refused_submission_is_not_in_the_store_that_is_put_back(tmp_path: Path) -> None:
    """The caller got an error, and submits the job again."""
    with an_api(an_api_workspace(tmp_path)) as api:
        api.ended(api.post("/plugin/echo/handle", {"payload": {}})["job_id"])
        remove(api.workspace, *EVERY_FILE)
        try_request(api, "POST", "/plugin/echo/handle", {"payload": {}})
        assert api.daemon.process.wait(PATIENCE) == 1
    assert len(api.workspace.json("job", "list")["jobs"]) == 1


def test_a_file_that_took_the_place_of_the_store_is_left_alone(tmp_path: Path) -> None:
    """The file may be a restored backup, so the accepted jobs are saved beside it."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        job = workspace.json("run", "echo")["job_id"]
        remove(workspace, "state.db")
        (data_directory(workspace) / "state.db").write_bytes(b"another file")
        daemon.process.send_signal(signal.SIGHUP)  # the reload is recorded, and its commit finds the loss
        rescued = daemon.wait_for("store.rescued")
        assert rescued["put_back"] is False
        assert daemon.process.wait(PATIENCE) == 1
    assert (data_directory(workspace) / "state.db").read_bytes() == b"another file"
    remove(workspace, "state.db", "state.db-wal", "state.db-shm")
    # An empty store would hide the copy. The printed advice works.
    refused = workspace.ductile("system", "start")
    assert refused.status == 1
    assert f"mv {rescued['store']} {data_directory(workspace) / 'state.db'}" in printed_by(refused)
    Path(rescued["store"]).rename(data_directory(workspace) / "state.db")
    assert workspace.json("job", "show", job)["status"] == "succeeded"


@contextmanager
def a_quiet_daemon(workspace: Workspace) -> Iterator[Daemon]:
    """Yield a daemon that has made the commits of its start. A purge has the lowest priority."""
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("queue", "purge", "--all").status == 0
        yield daemon


def assert_refused(workspace: Workspace, daemon: Daemon, words: tuple[str, ...], message: str) -> None:
    result = workspace.ductile(*words)
    if result.status in (69, 75):  # the daemon is just stopping
        daemon.wait_for("store.failed")
        return
    if result.status == 0 and any(line["signal"] == "store.failed" for line in daemon.lines):
        return  # the daemon has ended already because of a commit of its own
    assert result.status == 1, result
    assert message in printed_by(result)
    assert not (workspace.directory / "copy.tar.gz").exists()


def printed_by(result: CommandResult) -> str:
    return " ".join(f"{result.out}\n{result.err}".split())


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
    """The file without its log lacks the jobs that were accepted last."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        remove(workspace, "state.db-wal")
        assert_refused(workspace, daemon, BACKUP, "state.db-wal was removed or replaced")


def test_a_backup_whose_store_has_gone_with_its_directory_is_an_error(tmp_path: Path) -> None:
    """The socket of the daemon is gone; the link beside the configuration names it."""
    workspace = a_workspace(tmp_path)
    with a_quiet_daemon(workspace) as daemon:
        shutil.rmtree(data_directory(workspace))
        assert_refused(workspace, daemon, BACKUP, "there is no store at")


def test_a_log_without_its_file_is_left_alone_at_start(tmp_path: Path) -> None:
    """The log may hold accepted jobs, which a new store beside it would discard."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        daemon.process.kill()
        daemon.process.wait()
    remove(workspace, "state.db", "state.db-shm")
    log = (data_directory(workspace) / "state.db-wal").read_bytes()
    for words in (("system", "start"), ("run", "echo"), BACKUP):
        result = workspace.ductile(*words)
        assert result.status == 1, result
        assert "state.db is missing, and its write-ahead log" in printed_by(result)
        assert "hint: Put the file back" in printed_by(result)
    assert "its write-ahead log" in printed_by(workspace.ductile("system", "doctor"))
    assert (data_directory(workspace) / "state.db-wal").read_bytes() == log
    assert not (data_directory(workspace) / "state.db").exists()
    # The printed advice works.
    (data_directory(workspace) / "state.db-wal").rename(data_directory(workspace) / "state.db-wal.old")
    assert workspace.ductile("run", "echo").status == 0


def test_removing_the_lock_file_does_not_let_a_second_daemon_start(tmp_path: Path) -> None:
    """Two daemons on one store would run jobs twice, and end each other's processes."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        remove(workspace, "ductile.lock")
        for words in (("system", "start"), ("system", "start", "--dry-run")):
            result = workspace.ductile(*words)
            assert result.status == 1, result
            assert f"process {daemon.process.pid} uses this store already" in printed_by(result)
        assert daemon.end() == 0


def test_a_daemon_makes_its_lock_file_again(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(FAST_TICK + "plugins:\n  echo: {}\n")
    with a_daemon(workspace) as daemon:
        lock = data_directory(workspace) / "ductile.lock"
        assert lock.read_text() == f"{daemon.process.pid}\n"
        lock.unlink()
        daemon.wait_for("store.lock_renewed")
        assert lock.read_text() == f"{daemon.process.pid}\n"
        assert daemon.end() == 0


def test_a_file_that_is_damaged_in_its_middle_is_refused_at_start(tmp_path: Path) -> None:
    """The start finds the damage, before the daemon says that it is ready."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("run", "echo").status == 0
    database = data_directory(workspace) / "state.db"
    connection = apsw.Connection(str(database))
    ((root,),) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'job_log_failures'"
    ).fetchall()
    page = int(str(root))
    connection.close()
    content = bytearray(database.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes(4096)
    database.write_bytes(content)
    result = workspace.ductile("system", "start")
    assert result.status == 1, result
    assert "state.db is damaged: " in printed_by(result)
    assert "ductile system restore FILE --to DIR" in printed_by(result)
    assert database.read_bytes() == content


def test_a_damaged_log_is_kept_and_reported(tmp_path: Path) -> None:
    """SQLite reads the log up to the damage and would write over the rest."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        for _ in range(12):
            assert workspace.ductile("run", "echo").status == 0
        daemon.process.kill()
        daemon.process.wait()
    log = data_directory(workspace) / "state.db-wal"
    content = bytearray(log.read_bytes())
    content[len(content.rstrip(b"\0")) * 3 // 4] ^= 0xFF
    log.write_bytes(content)
    with a_daemon(workspace) as daemon:
        line = daemon.wait_for("store.log_damaged")
        assert line["transactions_lost"] > 1
        assert Path(line["kept"]).parent == data_directory(workspace)
        assert Path(line["kept"]).read_bytes() == content
        assert line["kept"] in printed_by(workspace.ductile("system", "doctor")).replace(" ", "")
        assert workspace.ductile("system", "selfcheck").status == 0
        assert daemon.end() == 0
    with a_daemon(workspace) as daemon:  # logged once; the doctor continues to report it
        assert all(line["signal"] != "store.log_damaged" for line in daemon.whole_log())
