"""Health checks of plugins run beside the queue, one at a time, and never for a read-only token."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from builders.daemons import Workspace, a_daemon, a_workspace
from builders.http import an_api, an_api_workspace, token_for
from builders.plugins import a_manifest, a_plugin

#: A healthy plugin whose other commands do not end by themselves.
BUSY = (
    "#!/bin/sh\ncat >/dev/null\n"
    '[ "$DUCTILE_COMMAND" = health ] || exec sleep 300\n'
    'echo \'{"status": "ok", "result": "fine"}\'\n'
)
#: A plugin that runs well and reports that it is not healthy.
SICK = (
    "#!/bin/sh\ncat >/dev/null\n"
    'if [ "$DUCTILE_COMMAND" = health ]; then\n'
    '  echo \'{"status": "error", "error": "no paper left"}\'; exit\nfi\n'
    'echo \'{"status": "ok", "result": "done"}\'\n'
)


def health_findings(workspace: Workspace, *, status: int = 0) -> list[dict[str, Any]]:
    report = workspace.json("system", "doctor", status=status)
    return [row for row in report["findings"] if row["check"] == "health"]


def make_private(workspace: Workspace) -> Workspace:
    """Give the configuration the modes of a private one, and return the workspace."""
    workspace.config.parent.chmod(0o700)
    workspace.config.chmod(0o600)
    return workspace


def test_a_backlog_does_not_hold_up_health_checks(tmp_path: Path) -> None:
    """All workers are busy and jobs wait; health commands run at once."""
    workspace = make_private(a_workspace(tmp_path, "  busy: {}\n"))
    workspace.plugin("busy", BUSY)
    workspace.config.write_text(workspace.config.read_text().replace("max_workers: 4", "max_workers: 1"))
    with a_daemon(workspace) as daemon:
        running = workspace.json("plugin", "run", "busy", "--no-wait")["job_id"]
        daemon.wait_until_started(running)
        for plugin in ("busy", "echo", "echo"):
            workspace.json("plugin", "run", plugin, "--no-wait")
        (finding,) = health_findings(workspace)
        assert (finding["level"], finding["message"]) == ("ok", "2 plugins report that they are healthy")
        queued = workspace.json("job", "list", "--status", "queued")["jobs"]
        assert {job["command"] for job in queued} == {"poll"}, "nothing overtook the queue but the checks"
        assert len(queued) == 3


def test_a_plugin_that_bears_one_process_is_not_asked_while_it_is_busy(tmp_path: Path) -> None:
    workspace = make_private(a_workspace(tmp_path, "  lone: {}\n"))
    manifest = a_manifest("lone", extra="concurrency_safe: false\n")
    a_plugin(workspace.config.parent / "plugins", "lone", manifest=manifest, script=BUSY)
    with a_daemon(workspace) as daemon:
        daemon.wait_until_started(workspace.json("plugin", "run", "lone", "--no-wait")["job_id"])
        first, second = health_findings(workspace)
        assert {first["level"], second["level"]} == {"ok"}
        assert any("lone was not asked" in row["message"] for row in (first, second))


def test_a_health_check_is_no_run_and_its_failure_is_shown(tmp_path: Path) -> None:
    workspace = make_private(a_workspace(tmp_path, "  sick: {}\n"))
    workspace.plugin("sick", SICK)
    with a_daemon(workspace):
        job_id = workspace.json("plugin", "run", "sick")["job_id"]
        workspace.json("system", "status", "--health")
        plugin = {row["name"]: row for row in workspace.json("system", "status")["plugins"]}["sick"]
        assert (plugin["last_run"]["job_id"], plugin["last_run"]["command"]) == (job_id, "poll")
        assert (plugin["health"], plugin["health_error"]) == ("failed", "no paper left")
        assert "sick is not healthy: no paper left" in workspace.ductile("system", "status").out


def test_a_read_only_token_starts_no_health_check(tmp_path: Path) -> None:
    """A GET returns the results of the latest health commands."""
    workspace = an_api_workspace(tmp_path, "  sick: {}\n")
    workspace.plugin("sick", SICK)
    with an_api(workspace) as api:

        def health_findings() -> list[dict[str, Any]]:
            findings = api.get("/system/doctor", token=token_for("system:ro"))["findings"]
            return [row for row in findings if row["check"] == "health"]

        assert "no plugin was asked" in health_findings()[0]["message"]
        assert api.get("/jobs")["jobs"] == []
        workspace.json("system", "doctor", status=1)
        checks = {job["job_id"] for job in api.get("/jobs?command=health")["jobs"]}
        threads = [threading.Thread(target=health_findings) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (finding,) = [row for row in health_findings() if row["level"] == "error"]
        assert "sick was not healthy at " in finding["message"]
        assert finding["message"].endswith("no paper left")
        assert {job["job_id"] for job in api.get("/jobs?command=health")["jobs"]} == checks
