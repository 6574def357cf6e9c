"""`ductile apply`: one command puts a changed configuration in force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from builders.daemons import SLOW, a_daemon, a_workspace


def test_apply_shows_seals_and_reloads(tmp_path: Path) -> None:
    """The command applies a change of the high tier too, which a reload alone refuses. A dry run changes
    nothing.
    """
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace) as daemon:
        seal = (workspace.config.parent / ".checksums").read_bytes()
        workspace.append("  again: {uses: echo}\ntokens: [{name: spare, key: hunter2}]\n")
        assert workspace.ductile("reload").status == 78
        dry_run = workspace.ductile("apply", "--dry-run")
        assert dry_run.status == 0, dry_run
        assert "+ plugins.again.uses: echo" in dry_run.out
        assert "+ tokens[spare].key: ********" in dry_run.out
        assert "hunter2" not in dry_run.out
        assert "added: again" in dry_run.out
        assert (workspace.config.parent / ".checksums").read_bytes() == seal
        report = workspace.json("apply")
        assert (report["sealed"], report["daemon"], report["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == report["reload"]["config"]
        assert workspace.json("run", "again")["status"] == "succeeded"
        repeated = workspace.ductile("apply")
        assert "The files are as sealed." in repeated.out


def test_apply_without_a_daemon_checks_and_seals(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    result = workspace.ductile("apply")
    assert result.status == 0, result
    assert "No daemon is running" in result.out
    workspace.append("  echo2: {uses: echo}\n")
    assert workspace.json("apply")["files"][0]["differences"] == ["+ plugins.echo2.uses: echo"]
    workspace.config.write_text(workspace.config.read_text() + "tokens: [{name: spare, key: hunter2}]\n")
    assert workspace.json("apply")["sealed"] is True
    workspace.config.write_text(workspace.config.read_text().replace("spare", "other"))
    assert workspace.json("apply")["sealed"] is True
    workspace.append("servise: {}\n")
    assert workspace.ductile("apply").status == 78


def test_a_refused_reload_seals_nothing_that_cannot_be_loaded(tmp_path: Path) -> None:
    """A change that a reload cannot make is refused before the seal is renewed."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace):
        seal = (workspace.config.parent / ".checksums").read_bytes()
        workspace.append("state: {path: ./data/other.db}\n")
        result = workspace.ductile("apply")
        assert result.status == 1
        assert "a reload cannot change state" in result.err
        assert (workspace.config.parent / ".checksums").read_bytes() == seal


def test_the_daemon_checks_in_its_own_environment(tmp_path: Path) -> None:
    """A variable that only the daemon has is no error; a variable that the daemon lacks is one."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace, {"ONLY_THERE": "./out"}):
        valid_text = workspace.config.read_text()
        workspace.append("artifacts: {roots: ['${ONLY_THERE}']}\n")
        report = workspace.json("apply")
        assert report["reload"]["settings"] == ["artifacts"]
        workspace.config.write_text(valid_text + "artifacts: {roots: ['${NOWHERE}']}\n")
        result = workspace.ductile("apply")
        assert result.status == 78
        assert "NOWHERE" in result.err


def test_apply_shows_schedules_pipelines_routes_and_jobs_that_end(tmp_path: Path) -> None:
    """A dry run shows every effect of a change, and the real run reports the same."""
    workspace = a_workspace(
        tmp_path, "  gone: {uses: slow, parallelism: 1, schedule: {id: old, after: 1h}}\n"
    )
    workspace.plugin("slow", SLOW)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace) as daemon:
        running = [workspace.json("run", "gone", "--no-wait")["job_id"] for _ in range(3)]
        daemon.wait_until_started(running[0])
        new_plugin = "  echo2: {uses: echo, schedule: {id: new, every: 2h}}\n#"
        text = workspace.config.read_text().replace("  gone:", new_plugin)
        workspace.config.write_text(
            f"{text}routes: [{{from: echo, event_type: seen, to: echo2}}]\n"
            "pipelines: [{name: greet, steps: [{id: one, uses: echo}]}]\n"
        )
        planned = workspace.json("apply", "--dry-run")["reload"]
        assert (planned["added"], planned["removed"]) == (["echo2"], ["gone"])
        assert {(row["plugin"], row["id"], row["change"]) for row in planned["schedules"]} == {
            ("echo2", "new", "added"),
            ("gone", "old", "removed"),
        }
        assert planned["routes"]["added"] == ["echo seen -> echo2.handle"]
        assert planned["pipelines"]["added"] == ["greet"]
        assert [(row["plugin"], row["jobs"] >= 2) for row in planned["ends"]] == [("gone", True)]
        output = workspace.ductile("apply", "--dry-run").out
        for line in ("schedule gone/old removed", "pipeline greet added", "as dead (plugin_removed)"):
            assert line in output
        assert "ductile apply --drain" in output
        assert workspace.json("apply")["reload"]["pipelines"] == planned["pipelines"]


def test_a_plan_is_applied_exactly_or_refused(tmp_path: Path) -> None:
    """The id of a dry run names the shown plan. If anything has changed since, nothing is applied."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace):
        workspace.append("  again: {uses: echo}\n")
        plan = workspace.json("apply", "--dry-run")["plan"]
        assert workspace.json("apply", "--dry-run")["plan"] == plan
        seal = (workspace.config.parent / ".checksums").read_bytes()
        workspace.append("  more: {uses: echo}\n")
        refused = workspace.ductile("apply", "--plan", plan)
        assert refused.status == 1
        assert f"the plan {plan} cannot be applied" in refused.err
        assert (workspace.config.parent / ".checksums").read_bytes() == seal
        plan = workspace.json("apply", "--dry-run")["plan"]
        assert workspace.json("apply", "--plan", plan)["reload"]["added"] == ["again", "more"]
        (loaded,) = [
            row["data"]
            for row in workspace.json("event", "tail")["events"]
            if row["data"].get("plan") == plan
        ]
        assert (loaded["command"], loaded["author"]) == ("apply", "cli")


def test_reload_can_seal_first(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace):
        workspace.append("tokens: [{name: spare, key: hunter2}]\n")
        assert workspace.ductile("reload").status == 78
        assert workspace.json("reload", "--lock", "--dry-run")["tokens"]["added"] == ["spare"]
        assert workspace.ductile("reload").status == 78
        assert workspace.json("reload", "--lock")["tokens"]["added"] == ["spare"]
        assert workspace.ductile("config", "check").status == 0


def test_pipelines_are_checked_beside_an_unsealed_file(tmp_path: Path) -> None:
    """An unsealed file prevents the start of a daemon, but not the check of a pipeline."""
    workspace = a_workspace(tmp_path)
    workspace.append(
        "pipelines: [{name: greet, steps: [{id: one, uses: echo}]}]\ntokens: [{name: a, key: b}]\n"
    )
    assert workspace.ductile("config", "lock").status == 0
    workspace.config.write_text(workspace.config.read_text().replace("name: a", "name: c"))
    result = workspace.ductile("pipeline", "check", "greet")
    assert result.status == 0, result
    assert "ok: greet, 1 step" in result.out
    assert "config.yaml has changed since it was sealed" in result.err


def test_apply_says_which_new_plugins_cannot_run(tmp_path: Path) -> None:
    """A script that is not executable and a missing plugin are reported at once, with a hint."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    script = workspace.config.parent / "night.sh"
    script.write_text("#!/bin/sh\necho saved\n")
    with a_daemon(workspace):
        workspace.append("  night: {run: ./night.sh}\n  page: {}\n")
        for words in (("apply", "--dry-run"), ("apply",)):
            result = workspace.ductile(*words)
            assert result.status == 0, result
            assert f"night cannot run, and its jobs will fail: the program {script} is not" in result.out
            assert f"chmod +x {script}" in result.out
            assert 'page cannot run, and its jobs will fail: no plugin "page"' in result.out
        script.chmod(0o755)
        assert "night cannot run" not in workspace.ductile("apply").out
        assert workspace.json("run", "night")["status"] == "succeeded"


def test_set_unset_and_edit_with_apply_are_one_command(tmp_path: Path) -> None:
    """The running daemon checks the change before the file is written, and uses the change at once."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace) as daemon:
        text_before = workspace.config.read_text()
        dry_run = workspace.ductile("config", "set", "plugins.again", "{uses: echo}", "--apply", "--dry-run")
        assert "added: again" in dry_run.out, dry_run
        assert "ductile apply --plan" not in dry_run.out
        assert workspace.config.read_text() == text_before
        report = workspace.json("config", "set", "plugins.again", "{uses: echo}", "--apply")
        assert (report["sealed"], report["daemon"], report["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == report["reload"]["config"]
        assert workspace.json("run", "again")["status"] == "succeeded"
        assert workspace.json("config", "unset", "plugins.again", "--apply")["reload"]["removed"] == ["again"]
        workspace.append("  third: {uses: echo}\n")
        text_before = workspace.config.read_text()
        refused = workspace.ductile("config", "set", "state.path", "./data/other.db", "--apply")
        assert refused.status == 1
        assert "a reload cannot change state" in refused.err
        assert workspace.config.read_text() == text_before
        # An earlier change that was written without --apply is shown and put in force as well.
        added = workspace.json("config", "set", "plugins.fourth", "{uses: echo}", "--apply")
        assert added["reload"]["added"] == ["fourth", "third"]
        editor = replace(
            workspace.terminal, variables={**workspace.terminal.variables, "EDITOR": "sed -i s/fourth/fifth/"}
        )
        result = editor.ductile("config", "edit", "--apply", "--json", "--config", "demo")
        edited = json.loads(result.out)["reload"]
        assert (edited["added"], edited["removed"]) == (["fifth"], ["fourth"])


def test_apply_says_which_plugins_are_new_changed_and_gone(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    script = workspace.config.parent / "save.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    def changes(*words: str) -> list[tuple[str, str]]:
        report = workspace.json(*words)
        return [(file["name"], file["change"]) for file in report["files"]]

    added = changes("config", "set", "plugins.save", "{run: ./save.sh}", "--apply")
    assert ("plugin save", "added") in added
    script.write_text("#!/bin/sh\nexit 0\n")
    assert changes("apply") == [("plugin save", "changed")]
    assert ("plugin save", "removed") in changes("config", "unset", "plugins.save", "--apply")


def test_apply_and_lock_exclude_each_other(tmp_path: Path) -> None:
    result = a_workspace(tmp_path).ductile("config", "set", "service.log_level", "debug", "--apply", "--lock")
    assert (result.status, "exclude each other" in result.err) == (2, True)
