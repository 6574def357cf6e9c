"""The example of health data: the real daemon and plugins against the fakes of the services."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any

import pytest
from demo import agree, plan_meetings, weigh_in, write_example

from builders.daemons import PATIENCE, Daemon, Workspace, a_daemon
from builders.terminal import Terminal
from fakes.garmin import Activity, FakeGarmin, GarminDay, with_example_days
from fakes.google_calendar import FakeGoogleCalendar
from fakes.withings import FakeWithings

EXAMPLE = Path(__file__).parents[2] / "examples" / "health"
#: Killed jobs are tried again at once, and the log has the start of each job.
FASTER = """\
service: {log_level: debug}
plugins:
  garmin: {config: {lookback_days: 14}, retry: {backoff_base: 10ms}}
  health_analyzer: {retry: {backoff_base: 10ms}}
  withings: {retry: {backoff_base: 10ms}}
  google_calendar: {retry: {backoff_base: 10ms}}
  tell: {retry: {backoff_base: 10ms}}
"""


def run(workspace: Workspace, *words: str) -> str:
    """Run a command of a plugin, and return its result."""
    result = workspace.ductile("run", *words)
    assert result.status == 0, result
    return result.out


def authorize(workspace: Workspace, plugin: str) -> None:
    redirect = json.dumps({"redirect_uri": "http://127.0.0.1:8400/callback"})
    started = json.loads(run(workspace, plugin, "oauth_start", "--payload", redirect))
    assert workspace.ductile("plugin", "authorize", plugin, "--code", agree(started["url"])).status == 0


def wait_until_idle(workspace: Workspace) -> None:
    """Wait for all jobs and their child jobs."""
    while jobs := [job for listed in workspace.json("queue", "list").values() for job in listed]:
        for job in jobs:
            workspace.ductile("job", "wait", job["job_id"], "--timeout", "60s")


def reports(workspace: Workspace) -> dict[str, Any]:
    """Return the numbers of the latest report of each week, from the facts."""
    facts = workspace.json("plugin", "facts", "health_analyzer")["facts"]
    return {fact["fact"]["week"]: fact["fact"] for fact in reversed(facts)}


def expected_week(
    garmin: FakeGarmin, withings: FakeWithings, google: FakeGoogleCalendar, monday: date, today: date
) -> dict[str, Any]:
    """Return the report that the data of the fakes should lead to."""
    week = [monday + timedelta(days=n) for n in range(7)]
    before = [day - timedelta(days=7) for day in week]
    window = [week[-1] - timedelta(days=27 - n) for n in range(28)]
    steps = {day: float(record.steps) for day, record in garmin.days.items() if record.steps is not None}
    sleep = {day: record.sleep_seconds / 60 for day, record in garmin.days.items() if record.sleep_seconds}
    days = [day for day in window if day in steps and day <= today]
    trend = linear_regression([day.toordinal() for day in days], [steps[day] for day in days])
    activities = [activity for activity in garmin.activities if activity.day in week]
    return {
        "weight": weight_of(withings, week),
        "meetings": meetings_of(google, week),
        "steps": fmean(steps[day] for day in week if day in steps),
        "steps_before": fmean(steps[day] for day in before if day in steps),
        "steps_per_week": trend.slope * 7,
        "sleep": fmean(sleep[day] for day in week if day in sleep),
        "missing": [day.isoformat() for day in week if day not in sleep],
        "activities": len(activities),
        "minutes": sum(activity.seconds for activity in activities) / 60,
    }


def weight_of(withings: FakeWithings, week: list[date]) -> float:
    """Return the mean of the days, each of which has one weight, as an integer of grams on the wire."""
    return fmean(
        group["measures"][0]["value"] / 1000
        for group in withings.measure_groups
        if date.fromtimestamp(group["date"]) in week  # noqa: DTZ012 - in the time zone of this machine
    )


def meetings_of(google: FakeGoogleCalendar, week: list[date]) -> float:
    """Return the mean of the days with meetings. Each lasts an hour; entries of one person do not count."""
    begins = [
        datetime.fromisoformat(entry["start"]["dateTime"]).date()
        for entry in google.entries.values()
        if entry["status"] != "cancelled" and "attendees" in entry
    ]
    return fmean(60.0 * begins.count(day) for day in week if day in begins)


def payload_of(day: date) -> str:
    return json.dumps({"day": day.isoformat()})


def reported_week(report: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a report in the form of `expected_week`."""
    metrics, running = report["metrics"], report["activities"]["by_type"].get("running", {"minutes": 0.0})
    return {
        "weight": pytest.approx(metrics["weight"]["mean"], abs=0.01),
        "meetings": pytest.approx(metrics["meetings"]["mean"], abs=0.01),
        "steps": pytest.approx(metrics["steps"]["mean"], abs=0.01),
        "steps_before": pytest.approx(metrics["steps"]["previous_mean"], abs=0.01),
        "steps_per_week": pytest.approx(metrics["steps"]["trend"]["per_week"], abs=0.01),
        "sleep": pytest.approx(metrics["sleep"]["mean"], abs=0.01),
        "missing": metrics["sleep"]["missing_days"],
        "activities": report["activities"]["count"],
        "minutes": pytest.approx(running["minutes"], abs=0.5),
    }


def record_a_day(garmin: FakeGarmin, workspace: Workspace, day: date, final_day: GarminDay) -> None:
    """Synchronise the watch twice: first a part of the day, with an activity that is deleted later."""
    mistake = Activity(day.toordinal() * 10, day, "running", 999.0, 999.0)
    garmin.days[day] = GarminDay(steps=(final_day.steps or 0) // 2, resting_heart_rate=90)
    garmin.activities.append(mistake)
    run(workspace, "garmin")
    garmin.days[day] = final_day
    garmin.activities.remove(mistake)


def an_example(
    directory: Path, garmin: FakeGarmin, withings: FakeWithings, google: FakeGoogleCalendar
) -> Workspace:
    workspace = Workspace(directory=directory)
    write_example(directory / "demo", garmin, withings, google)
    (directory / "demo" / "faster.yaml").write_text(FASTER)
    assert workspace.ductile("config", "set", "include[+]", "faster.yaml").status == 0
    assert workspace.ductile("config", "lock").status == 0
    return workspace


def kill_in_job(daemon: Daemon, plugin: str, number: int) -> None:
    """Kill the daemon when this job of the plugin, counted from one, has started."""

    def started_jobs() -> int:
        return sum(line["signal"] == "job.started" and line["plugin"] == plugin for line in daemon.lines)

    daemon.wait_until(lambda: started_jobs() >= number)
    assert started_jobs() >= number
    daemon.process.kill()
    daemon.process.wait()


@pytest.mark.timeout(300)  # thirty commands, and four starts of the daemon
def test_a_week_is_reported_as_it_was_lived_also_if_the_daemon_is_killed(tmp_path: Path) -> None:
    """The data has partial days, corrections, a deleted activity and a cancelled meeting, with SIGKILL in
    between.
    """
    today = date.today()  # noqa: DTZ011 - plugins take the day of this machine, too
    week = [today - timedelta(days=7 - n) for n in range(7)]
    with FakeGarmin() as garmin, FakeWithings() as withings, FakeGoogleCalendar() as google:
        plan_meetings(google, today)
        weigh_in(withings, today)
        with_example_days(garmin, today)
        final_days = {day: garmin.days.pop(day) for day in [*week, today]}
        garmin.activities = [activity for activity in garmin.activities if activity.day < week[0]]
        workspace = an_example(tmp_path, garmin, withings, google)
        with a_daemon(workspace) as daemon:
            run(workspace, "garmin", "login")
            for plugin in ("withings", "google_calendar"):
                authorize(workspace, plugin)
                run(workspace, plugin)
            run(workspace, "garmin", "--no-wait")
            kill_in_job(daemon, "health_analyzer", 4)
        with a_daemon(workspace):
            while "left for" in run(workspace, "garmin"):
                pass
            for day in week:
                record_a_day(garmin, workspace, day, final_days[day])
        with a_daemon(workspace) as daemon:
            run(workspace, "garmin", "--no-wait")
            kill_in_job(daemon, "garmin", 1)
        with a_daemon(workspace) as daemon:
            wait_until_idle(workspace)
            google.delete(next(name for name in google.entries if name.startswith("review")))
            google.delete([name for name in google.entries if name.startswith("standup")][-2])
            run(workspace, "google_calendar")
            wait_until_idle(workspace)
            run(workspace, "health_analyzer", "report", "--payload", payload_of(week[0]), "--no-wait")
            kill_in_job(daemon, "tell", 1)
        with a_daemon(workspace):
            run(workspace, "health_analyzer", "report", "--payload", payload_of(week[-1]))
            wait_until_idle(workspace)
            weeks = reports(workspace)
        for day in {week[0], week[-1]}:
            monday = day - timedelta(days=day.weekday())
            year, number, _ = monday.isocalendar()
            assert reported_week(weeks[f"{year}-W{number:02d}"]) == expected_week(
                garmin, withings, google, monday, today
            )
    messages = (tmp_path / "demo" / "messages.txt").read_text()
    assert messages.count("id: health.report:") == len(weeks)


@pytest.mark.timeout(300)  # a hundred jobs
def test_the_demo_shows_a_report_and_its_advice_works(tmp_path: Path) -> None:
    """The demo shows the report and commands that work, and leaves nothing behind after Ctrl-C."""
    directory = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, EXAMPLE / "demo.py", "--directory", directory],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PYTHONPATH": str(EXAMPLE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            output = "".join(lines)
            assert "Health report for week" in output
            assert "3 h 50 min, usually 7 h 20 min" in output
            advice = [line.partition("#")[0].strip() for line in lines if line.startswith("ductile ")]
            assert len(advice) >= 5
            terminal = Terminal(directory=directory)
            for line in advice:
                result = terminal.ductile(*shlex.split(line)[1:])
                assert result.status == 0, (line, result)
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(PATIENCE)
    assert status == 0
    assert not directory.exists()


def test_what_its_page_says_can_be_copied(tmp_path: Path) -> None:
    """Each part of a configuration on the page fits that of the example, without the fakes."""
    parts = re.findall(r"^```yaml\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert parts
    for number, part in enumerate(["", *parts]):
        directory = tmp_path / str(number)
        directory.mkdir()
        text = (EXAMPLE / "config.yaml").read_text()
        if "uses: notify" in part:
            text = text.replace("    run: ./tell.sh\n", "")
        (directory / "config.yaml").write_text(text.replace("include: [fakes.yaml]", "include: [part.yaml]"))
        (directory / "part.yaml").write_text(part)
        (directory / ".env").write_text(
            "".join(f"{name}=x\n" for name in re.findall(r"\$\{(\w+)\}", text + part))
        )
        shutil.copy(EXAMPLE / "tell.sh", directory)
        terminal = Terminal(directory=directory)
        assert terminal.ductile("config", "lock").status == 0
        result = terminal.ductile("config", "check")
        assert result.status == 0, result


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "photo").touch()
    result = subprocess.run(
        [sys.executable, EXAMPLE / "demo.py", "--directory", directory],
        env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert result.returncode == 1
    assert "is not of this demo" in result.stderr
    assert (directory / "photo").exists()
