"""`system digest` reports on one screen what happened, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

from builders.daemons import BROKEN, SLOW, a_daemon, a_workspace

#: About 1,500 tokens, at three characters to a token, as ids and instants have.
MAX_CHARACTERS = 4_500


def test_nothing_is_claimed_of_a_quiet_day(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace):
        digest = workspace.json("system", "digest")
        assert (digest["executions"], digest["failed_jobs"], digest["waiting_jobs"]) == (0, 0, 0)
        for name in ("ran", "failed", "skipped", "waiting", "breakers", "deliveries", "config", "next"):
            assert digest[name] == [], name
        assert len(digest["starts"]) == 1
        assert digest["more"] == {}
        assert digest["complete"] is True


def test_a_bad_night_fits_on_one_screen(tmp_path: Path) -> None:
    """Failures are grouped, with an example and a fix. Every command that the digest names works."""
    names = [f"broken{number}" for number in range(12)]
    plugins = "".join(f"  {name}: {{retry: {{max_attempts: 1}}}}\n" for name in names)
    workspace = a_workspace(tmp_path, f"{plugins}  slow: {{parallelism: 1}}\n")
    for name in names:
        workspace.plugin(name, BROKEN)
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        first = workspace.json("run", "slow", "--no-wait")["job_id"]
        daemon.wait_until_started(first)
        workspace.json("run", "slow", "--no-wait")
        for name in names:
            workspace.json("run", name, status=1)
        workspace.json("run", names[0], status=1)
        workspace.json("run", "echo")
        digest = workspace.json("system", "digest", "--since", "1h")
        assert len(json.dumps(digest)) <= MAX_CHARACTERS
        assert (digest["executions"], digest["failed_jobs"], digest["waiting_jobs"]) == (14, 13, 1)
        worst = digest["failed"][0]
        assert (worst["plugin"], worst["reason"], worst["jobs"]) == (names[0], "attempts_exhausted", 2)
        assert worst["error"] == "it is broken"
        assert worst["first"] <= worst["last"]
        assert worst["example"] in worst["fix"]
        assert len(digest["failed"]) + digest["more"]["failed"] == 12
        assert "parallelism" in digest["waiting"][0]["why"]
        for line in digest["next"]:
            assert workspace.ductile(*line.split()[1:]).status == 0, line
        output = workspace.ductile("system", "digest").out
        assert len(output.splitlines()) <= 50
        assert "Failed: 13 jobs" in output
        # Times are local, as everywhere; those of the JSON are in UTC.
        assert re.search(r"\d\d-\d\dT\d\d:\d\d", output) is None
        assert worst["first"].endswith("Z")
