"""Runs the example with local fakes of the services, shows its report, and stays until Ctrl-C.

    make demo-health

It writes everything to one directory, which it removes at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fakes.garmin import FakeGarmin, with_example_days
from fakes.google_calendar import FakeGoogleCalendar
from fakes.withings import FakeWithings

HERE = Path(__file__).parent
FILES = ("config.yaml", "fakes.yaml", "tell.sh")
#: Shows that a directory was made by this program, and may be removed by it.
MARK = ".made-by-demo-health"
DUCTILE = Path(sys.executable).parent / "ductile"
PATIENCE = 240.0
SATURDAY = 5
LOOK = (
    ("ductile status", "what ran, what runs next, what is queued"),
    ("ductile job tree last:garmin", "a poll, and everything that it led to"),
    ("ductile job explain last:tell", "what a job did, and why"),
    ("ductile plugin facts health_analyzer", "the numbers of each report"),
    ("ductile schedule next", "when things run by themselves"),
    ("ductile run garmin", "poll once more: nothing has changed, so nothing is emitted"),
)


def write_example(
    directory: Path, garmin: FakeGarmin, withings: FakeWithings, google: FakeGoogleCalendar
) -> None:
    """Write a configuration that uses the fakes, and the credentials that they accept."""
    directory.mkdir(mode=0o700, parents=True)
    (directory / MARK).touch()
    for name in FILES:
        shutil.copy(HERE / name, directory / name)
        (directory / name).chmod(0o700 if name.endswith(".sh") else 0o600)
    variables = {
        "GARMIN_USERNAME": garmin.username,
        "GARMIN_PASSWORD": garmin.password,
        "FAKE_GARMIN_URL": garmin.url,
        "WITHINGS_CLIENT_ID": withings.client_id,
        "WITHINGS_CLIENT_SECRET": withings.client_secret,
        "FAKE_WITHINGS_URL": withings.url,
        "GOOGLE_CLIENT_ID": google.client_id,
        "GOOGLE_CLIENT_SECRET": google.client_secret,
        "FAKE_GOOGLE_URL": google.url,
    }
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    (directory / ".env").write_text(lines)
    (directory / ".env").chmod(0o600)


def weigh_in(withings: FakeWithings, today: date, days: int = 40) -> FakeWithings:
    """Three weights a week, at seven in the morning; a little less each time."""
    for back in range(days, 0, -1):
        day = today - timedelta(days=back)
        if day.weekday() in (0, 2, 5):
            at = datetime(day.year, day.month, day.day, 7).astimezone()  # in the time zone of this machine
            withings.weigh(round(81.0 + 0.04 * back + 0.1 * (day.toordinal() % 3), 2), int(at.timestamp()))
    return withings


def plan_meetings(google: FakeGoogleCalendar, today: date, days: int = 28) -> FakeGoogleCalendar:
    """An hour at ten on each working day, one more on Tuesdays, and an entry without other people."""
    people = {"attendees": [{"email": "grace@example.com"}]}
    for back in range(days, 0, -1):
        day = today - timedelta(days=back)
        ten = datetime(day.year, day.month, day.day, 10).astimezone()  # in the time zone of this machine
        if day.weekday() < SATURDAY:
            google.put(f"standup{back}", "Stand-up", ten, **people)
        if day.weekday() == 1:
            google.put(f"review{back}", "Review", ten + timedelta(hours=3), **people)
            google.put(f"run{back}", "Running", ten + timedelta(hours=8))
    return google


def agree(url: str) -> str:
    """Do what a browser does: open the page of the service. Returns the address that it sends us to."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", f"{parts.path}?{parts.query}")
    address = connection.getresponse().getheader("Location")
    connection.close()
    if address is None:
        raise SystemExit(f"{url} does not send the browser back")
    return address


def last_sunday(today: date) -> date:
    return today - timedelta(days=today.weekday() + 1)


class Shell:
    """Runs `ductile` in the directory, and shows it as in a terminal."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def show(self, *words: str) -> str:
        """Run a command; returns what it printed. Ends the demo if it fails."""
        say(f"\n$ ductile {shlex.join(words)}")
        ran = self._run(*words)
        sys.stdout.write(ran.stdout + ran.stderr)
        if ran.returncode:
            raise SystemExit(f"that should not have happened: exit status {ran.returncode}")
        return ran.stdout

    def authorize(self, name: str) -> None:
        """Connect an account. `ductile plugin authorize NAME` alone opens a browser and waits for you."""
        payload = json.dumps({"redirect_uri": "http://127.0.0.1:8400/callback"})
        begun = json.loads(self._run("run", name, "oauth_start", "--payload", payload).stdout)
        self.show("plugin", "authorize", name, "--code", agree(begun["url"]))

    def read(self, *words: str) -> Any:
        return json.loads(self._run(*words, "--json").stdout)

    def wait_until_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            queue = self.read("queue", "status")
            if not queue["depth"] and not queue["running"]:
                return
            time.sleep(0.1)
        raise SystemExit("jobs are still in the queue after four minutes: see `ductile queue list`")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(DUCTILE), *words]
        return subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False)


@contextmanager
def gateway(directory: Path) -> Iterator[None]:
    """Run the daemon with its log in a file. It is ready when the block begins, and has ended after it."""
    log = directory / "daemon.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(DUCTILE), "system", "start"],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this program, which then stops the daemon.
        )
    try:
        end = time.monotonic() + PATIENCE
        while '"service.ready"' not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the daemon did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def clean_directory(directory: Path) -> Iterator[Path]:
    if directory.exists() and not (directory / MARK).exists():
        raise SystemExit(
            f"{directory} exists and is not of this demo: move it, or name another with --directory"
        )
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def connect(shell: Shell) -> None:
    say("1. Seal the configuration and connect the accounts. Fakes accept every user, real services ask.")
    shell.show("config", "lock")
    shell.show("run", "garmin", "login")
    shell.authorize("withings")
    shell.authorize("google_calendar")


def run_example(shell: Shell, sunday: date) -> None:
    say("\n2. Start the gateway, and poll. Schedules poll at the start and each hour, a history in parts.")
    while "left for the next poll" in shell.show("run", "garmin"):
        pass
    shell.show("run", "withings")
    shell.show("run", "google_calendar")
    shell.wait_until_idle()
    say("\n3. Look for unusual days, and write the report of last week. Schedules do this too.")
    shell.show("run", "health_analyzer", "poll", "--payload", json.dumps({"day": sunday.isoformat()}))
    shell.show("run", "health_analyzer", "report", "--no-wait")
    shell.wait_until_idle()


def show_result(directory: Path) -> None:
    say("\n4. Pipelines passed both on to the script tell.sh, which wrote messages.txt:\n")
    for line in (directory / "messages.txt").read_text().splitlines():
        say(f"    {line}".rstrip())
    say("\nThe gateway is still running. In another terminal, look around:\n")
    say(f"cd {shlex.quote(str(directory))}")
    say(f'export PATH="{DUCTILE.parent}:$PATH"')
    width = max(len(command) for command, _ in LOOK)
    for command, meaning in LOOK:
        say(f"{command:{width}}   # {meaning}")
    say("\nREADME.md in examples/health says how to use your own accounts.")
    say("Ctrl-C ends the gateway and the fakes, and removes the directory.")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("demo-health"))
    directory = parser.parse_args().directory.absolute()
    today = date.today()  # noqa: DTZ011 - the plugins take the day of this machine, too
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        stack.enter_context(clean_directory(directory))
        garmin = stack.enter_context(with_example_days(FakeGarmin(), today))
        withings = stack.enter_context(weigh_in(FakeWithings(), today))
        google = stack.enter_context(plan_meetings(FakeGoogleCalendar(), today))
        write_example(directory, garmin, withings, google)
        shell = Shell(directory)
        connect(shell)
        stack.enter_context(gateway(directory))
        run_example(shell, last_sunday(today))
        show_result(directory)
        signal.pause()


if __name__ == "__main__":
    os.environ.pop("DUCTILE_CONFIG_DIR", None)
    main()
