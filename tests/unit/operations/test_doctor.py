"""The doctor's judgements, each on its own: levels, places, and what mends it (SPEC 11)."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.configs import a_config, a_discovery, a_manifest, loaded
from builders.jobs import START
from ductile.config.compile import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.breaker import Breaker, BreakerState
from ductile.errors import ConfigError, IntegrityError, Problem
from ductile.operations.doctor_files import environment_files, permission_findings, refused_config
from ductile.operations.doctor_machine import Room, judge_clock, judge_room, listener_findings
from ductile.operations.doctor_store import breaker_findings, judge_schedule, judge_store
from ductile.operations.findings import CHECKS, Check, Finding, Level, fine, shown, worst, wrong
from ductile.store.values.reading import BreakerRow
from ductile.store.values.schedules import ScheduleEntry
from ductile.store.values.upkeep import StoreVitals

MIB = 1024 * 1024


def a_snapshot(directory: Path, text: str) -> Snapshot:
    return compile_snapshot(loaded(a_config(directory, text)), a_discovery(directory, a_manifest("echo")))


def test_every_check_is_explained() -> None:
    assert set(CHECKS) == set(Check)


levels = st.lists(st.sampled_from(Level))


@given(levels)
def test_the_verdict_is_the_gravest_finding(found: list[Level]) -> None:
    findings = [Finding(check=Check.DISK, level=level, message="x") for level in found]
    order = [Level.OK, Level.WARN, Level.ERROR]
    assert worst(findings) is max([Level.OK, *found], key=order.index)
    assert [row["level"] for row in shown(findings)["findings"]] == sorted(  # type: ignore[index, union-attr, call-overload]  # JSON
        found, key=order.index, reverse=True
    )


rooms = st.integers(0, 10**13)


@given(free=rooms, more=rooms, size=rooms)
def test_more_room_is_never_worse(free: int, more: int, size: int) -> None:
    order = [Level.ERROR, Level.WARN, Level.OK]

    def judged(left: int) -> int:
        return order.index(judge_room(Room(free=left, size=size, free_inodes=1, inodes=0), "/").level)

    assert judged(free) <= judged(free + more)


@pytest.mark.parametrize(
    ("room", "level"),
    [
        (Room(free=10 * MIB, size=10**6 * MIB, free_inodes=9, inodes=10), Level.ERROR),
        (Room(free=500 * MIB, size=10**6 * MIB, free_inodes=9, inodes=10), Level.WARN),
        (Room(free=500 * MIB, size=1000 * MIB, free_inodes=9, inodes=10), Level.OK),
        (Room(free=10**5 * MIB, size=10**6 * MIB, free_inodes=1, inodes=1000), Level.WARN),
        (Room(free=10**5 * MIB, size=10**6 * MIB, free_inodes=0, inodes=0), Level.OK),
    ],
)
def test_a_small_disk_that_is_half_empty_is_well(room: Room, level: Level) -> None:
    """A filesystem without a number of inodes (btrfs) never runs out of them."""
    assert judge_room(room, "/").level is level


def test_a_clock_that_went_back_is_seen_by_the_ledger() -> None:
    """ENGINE 5: stored instants never go back, so they tell when the clock has."""
    assert judge_clock(START, START + timedelta(hours=1), "UTC").level is Level.WARN
    assert judge_clock(START, START + timedelta(seconds=1), "UTC").level is Level.OK
    assert judge_clock(START, None, "UTC").level is Level.OK
    assert judge_clock(datetime(1970, 1, 2, tzinfo=UTC), None, "UTC").level is Level.ERROR


@pytest.mark.parametrize(
    ("name", "mode", "level", "fix"),
    [
        ("config.yaml", 0o644, Level.WARN, "chmod 600"),
        ("config.yaml", 0o660, Level.ERROR, "chmod 600"),
        (".env", 0o640, Level.ERROR, "chmod 600"),
        (".env", 0o600, None, None),
        ("data/state.db", 0o604, Level.ERROR, "chmod 600"),
        ("data", 0o755, Level.ERROR, "chmod 700"),
        (".", 0o755, Level.WARN, "chmod 700"),
        (".", 0o777, Level.ERROR, "chmod 700"),
    ],
)
def test_files_that_others_can_open_are_named(
    tmp_path: Path, name: str, mode: int, level: Level | None, fix: str | None
) -> None:
    """SPEC 2.3: directories 0700, files 0600; what holds secrets nobody else may read."""
    (tmp_path / "data").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    for file in ("config.yaml", ".env", "data/state.db"):
        (tmp_path / file).touch(mode=0o600)
    (tmp_path / name).chmod(mode)
    found = list(permission_findings(tmp_path, [tmp_path / ".env"], tmp_path / "data" / "state.db"))
    if level is None:
        assert [finding.level for finding in found] == [Level.OK]
    else:
        assert [(finding.level, finding.fix) for finding in found] == [(level, f"{fix} {tmp_path / name}")]


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
    assert (first.check, first.level) == (Check.CONFIG, Level.ERROR)
    assert first.where == "c.yaml:3  a.b"
    assert first.message == "bad; expected a number"
    assert second.where is None
    (sealed,) = refused_config(IntegrityError("broken", hint="lock it"))
    assert (sealed.check, sealed.message, sealed.fix) == (Check.SEAL, "broken", "lock it")


def test_an_address_that_is_taken_is_an_error_only_without_the_daemon(tmp_path: Path) -> None:
    """With one, it is the daemon who listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        auth = "auth: {tokens: [{token: '${T:-x}', scopes: ['*']}]}"
        snapshot = a_snapshot(tmp_path, f"api: {{enabled: true, listen: '{listen}', {auth}}}\n")
        (without,) = listener_findings(snapshot, daemon_runs=False)
        (beside,) = listener_findings(snapshot, daemon_runs=True)
    assert (without.level, without.where) == (Level.ERROR, "api.listen")
    assert listen in without.message
    assert beside.level is Level.OK
    (free,) = listener_findings(snapshot, daemon_runs=False)
    assert free.level is Level.OK


def test_a_damaged_store_is_never_called_whole() -> None:
    vitals = StoreVitals(
        place="s",
        size=1,
        log_size=10**9,
        schema_version=1,
        newest_schema=1,
        filesystem=None,
        damage=("row 1",),
    )
    assert [finding.level for finding in judge_store(vitals)] == [Level.ERROR, Level.WARN]


def test_an_open_breaker_leads_to_its_job() -> None:
    breaker = Breaker(state=BreakerState.OPEN, failures=3, opened_at=START, last_job_id="j")
    row = BreakerRow(plugin="p", command="poll", breaker=breaker, updated_at=START)
    (found,) = breaker_findings([row])
    assert found.level is Level.WARN
    assert "ductile job explain j" in (found.fix or "")
    assert "ductile system reset p" in (found.fix or "")
    assert [each.level for each in breaker_findings([])] == [Level.OK]


def test_a_schedule_is_overdue_only_where_somebody_should_have_run_it() -> None:
    entry = ScheduleEntry(
        plugin="p", schedule_id="s", fingerprint="", next_at=START - timedelta(hours=1), nominal_at=START
    )
    late = judge_schedule(entry, START, daemon_runs=True)
    assert late is not None
    assert late.level is Level.ERROR
    assert judge_schedule(entry, START, daemon_runs=False) is None


def test_findings_are_told_in_the_order_of_the_checks() -> None:
    told = shown([wrong(Check.JOBS, "b"), fine(Check.CONFIG, "a")])
    assert [row["check"] for row in told["findings"]] == ["config", "jobs"]  # type: ignore[index, union-attr, call-overload]  # JSON
    assert told["counts"] == {"ok": 1, "warn": 0, "error": 1}
