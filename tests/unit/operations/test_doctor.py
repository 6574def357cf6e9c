"""Each check of the doctor alone: level, place and fix."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.configs import a_config, a_discovery, a_manifest, loaded
from builders.jobs import START
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.errors import ConfigError, IntegrityError, Problem
from ductile.operations.diagnose.doctor import breaker_findings, check_schedule, store_findings
from ductile.operations.diagnose.doctor_local import (
    check_clock,
    check_space,
    environment_files,
    listener_findings,
    permission_findings,
    refused_config,
)
from ductile.operations.diagnose.findings import (
    DoctorCheck,
    DoctorFinding,
    FindingLevel,
    LevelCounts,
    build_report,
    worst_level,
)
from ductile.store.model.maintenance import StoreStats
from ductile.store.model.records import BreakerRow
from ductile.store.model.schedules import ScheduleEntry

MIB = 1024 * 1024


def a_snapshot(directory: Path, text: str) -> Snapshot:
    return compile_snapshot(loaded(a_config(directory, text)), a_discovery(directory, a_manifest("echo")))


def test_every_check_is_explained() -> None:
    assert all(check.description for check in DoctorCheck)


level_lists = st.lists(st.sampled_from(FindingLevel))


@given(level_lists)
def test_the_verdict_is_the_gravest_finding(levels: list[FindingLevel]) -> None:
    findings = [
        DoctorFinding(check=DoctorCheck.DISK, level=level, message="x", where=None, fix=None)
        for level in levels
    ]
    order = [FindingLevel.OK, FindingLevel.WARN, FindingLevel.ERROR]
    assert worst_level(findings) is max([FindingLevel.OK, *levels], key=order.index)
    assert [row.level for row in build_report(findings).findings] == sorted(
        levels, key=order.index, reverse=True
    )


def a_filesystem(*, free: int, size: int, free_inodes: int, inodes: int) -> os.statvfs_result:
    return os.statvfs_result((1, 1, size, free, free, inodes, free_inodes, free_inodes, 0, 255))


byte_counts = st.integers(0, 10**13)


@given(free=byte_counts, added=byte_counts, size=byte_counts)
def test_more_room_is_never_worse(free: int, added: int, size: int) -> None:
    order = [FindingLevel.ERROR, FindingLevel.WARN, FindingLevel.OK]

    def level_index(free_bytes: int) -> int:
        filesystem = a_filesystem(free=free_bytes, size=size, free_inodes=1, inodes=0)
        return order.index(check_space(filesystem, "/").level)

    assert level_index(free) <= level_index(free + added)


@pytest.mark.parametrize(
    ("filesystem", "level"),
    [
        (a_filesystem(free=10 * MIB, size=10**6 * MIB, free_inodes=9, inodes=10), FindingLevel.ERROR),
        (a_filesystem(free=500 * MIB, size=10**6 * MIB, free_inodes=9, inodes=10), FindingLevel.WARN),
        (a_filesystem(free=500 * MIB, size=1000 * MIB, free_inodes=9, inodes=10), FindingLevel.OK),
        (a_filesystem(free=10**5 * MIB, size=10**6 * MIB, free_inodes=1, inodes=1000), FindingLevel.WARN),
        (a_filesystem(free=10**5 * MIB, size=10**6 * MIB, free_inodes=0, inodes=0), FindingLevel.OK),
    ],
)
def test_a_small_disk_that_is_half_empty_is_well(filesystem: os.statvfs_result, level: FindingLevel) -> None:
    """Btrfs reports 0 inodes, because their number is not limited."""
    assert check_space(filesystem, "/").level is level


def test_a_clock_that_went_back_is_seen_by_the_ledger() -> None:
    """Stored instants never decrease, so a newer one shows that the clock was set back."""
    assert check_clock(START, START + timedelta(hours=1), "UTC").level is FindingLevel.WARN
    assert check_clock(START, START + timedelta(seconds=1), "UTC").level is FindingLevel.OK
    assert check_clock(START, None, "UTC").level is FindingLevel.OK
    assert check_clock(datetime(1970, 1, 2, tzinfo=UTC), None, "UTC").level is FindingLevel.ERROR


@pytest.mark.parametrize(
    ("name", "mode", "level", "fix"),
    [
        ("config.yaml", 0o644, FindingLevel.WARN, "chmod 600"),
        ("config.yaml", 0o660, FindingLevel.ERROR, "chmod 600"),
        (".env", 0o640, FindingLevel.ERROR, "chmod 600"),
        (".env", 0o600, None, None),
        ("data/state.db", 0o604, FindingLevel.ERROR, "chmod 600"),
        ("data", 0o755, FindingLevel.ERROR, "chmod 700"),
        (".", 0o755, FindingLevel.WARN, "chmod 700"),
        (".", 0o777, FindingLevel.ERROR, "chmod 700"),
    ],
)
def test_files_that_others_can_open_are_named(
    tmp_path: Path, name: str, mode: int, level: FindingLevel | None, fix: str | None
) -> None:
    """Directories have 0700 and files 0600; no other user may read files with secrets."""
    (tmp_path / "data").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    for file in ("config.yaml", ".env", "data/state.db"):
        (tmp_path / file).touch(mode=0o600)
    (tmp_path / name).chmod(mode)
    findings = list(
        permission_findings(tmp_path, [tmp_path / ".env", tmp_path / "data", tmp_path / "data/state.db"])
    )
    if level is None:
        assert [finding.level for finding in findings] == [FindingLevel.OK]
    else:
        assert [(finding.level, finding.fix) for finding in findings] == [(level, f"{fix} {tmp_path / name}")]


def test_files_of_variables_are_found_in_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "more.env").write_text("A=1\n")
    snapshot = a_snapshot(tmp_path, "environment_vars: {include: [more.env]}\n")
    assert environment_files(snapshot) == (tmp_path / "more.env",)


def test_every_problem_of_a_configuration_is_a_finding() -> None:
    problems = (
        Problem(message="bad", file="c.yaml", line=3, key="a.b", expected="a number"),
        Problem(message="x"),
    )
    first, second = refused_config(ConfigError("two", problems=problems))
    assert (first.check, first.level) == (DoctorCheck.CONFIG, FindingLevel.ERROR)
    assert first.where == "c.yaml:3  a.b"
    assert first.message == "bad; expected a number"
    assert second.where is None
    (sealed,) = refused_config(IntegrityError("broken", hint="lock it"))
    assert (sealed.check, sealed.message, sealed.fix) == (DoctorCheck.SEAL, "broken", "lock it")


def test_an_address_that_is_taken_is_an_error_only_without_the_daemon(tmp_path: Path) -> None:
    """A running daemon listens at the address itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening_socket:
        listen = f"127.0.0.1:{listening_socket.getsockname()[1]}"
        auth = "auth: {tokens: [{token: '${T:-x}', scopes: ['*']}]}"
        snapshot = a_snapshot(tmp_path, f"api: {{enabled: true, listen: '{listen}', {auth}}}\n")
        (without_daemon,) = listener_findings(snapshot, daemon_runs=False)
        (with_daemon,) = listener_findings(snapshot, daemon_runs=True)
    assert (without_daemon.level, without_daemon.where) == (FindingLevel.ERROR, "api.listen")
    assert listen in without_daemon.message
    assert with_daemon.level is FindingLevel.OK
    (free,) = listener_findings(snapshot, daemon_runs=False)
    assert free.level is FindingLevel.OK


def test_a_damaged_store_is_never_called_whole() -> None:
    stats = StoreStats(
        path="s",
        size=1,
        wal_size=10**9,
        schema_version=1,
        newest_schema=1,
        filesystem=None,
        damage=("row 1",),
    )
    assert [finding.level for finding in store_findings(stats)] == [FindingLevel.ERROR, FindingLevel.WARN]


def test_an_open_breaker_leads_to_its_job() -> None:
    breaker = Breaker(state=BreakerState.OPEN, failures=3, opened_at=START, last_job_id="j")
    row = BreakerRow(plugin="p", command="poll", breaker=breaker, updated_at=START)
    (finding,) = breaker_findings([row])
    assert finding.level is FindingLevel.WARN
    assert "ductile job explain j" in (finding.fix or "")
    assert "ductile system reset p" in (finding.fix or "")
    assert [item.level for item in breaker_findings([])] == [FindingLevel.OK]


def test_a_schedule_is_overdue_only_where_a_daemon_runs() -> None:
    entry = ScheduleEntry(
        plugin="p", schedule_id="s", fingerprint="", next_at=START - timedelta(hours=1), nominal_at=START
    )
    finding = check_schedule(entry, START, daemon_runs=True)
    assert finding is not None
    assert finding.level is FindingLevel.ERROR
    assert check_schedule(entry, START, daemon_runs=False) is None


def test_findings_are_in_the_order_of_the_checks() -> None:
    report = build_report([DoctorCheck.JOBS.error("b"), DoctorCheck.CONFIG.ok("a")])
    assert [row.check for row in report.findings] == [DoctorCheck.CONFIG, DoctorCheck.JOBS]
    assert report.counts == LevelCounts(ok=1, warn=0, error=1)
