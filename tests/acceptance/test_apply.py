"""`ductile apply`: one command puts a changed configuration in force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from builders.daemons import SLOW, a_daemon, a_workspace


def test_apply_shows_seals_and_reloads(tmp_path: Path) -> None:
    """Also a change of the high tier, which a reload alone refuses. A dry run changes nothing."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace) as daemon:
        before = (workspace.config.parent / ".checksums").read_bytes()
        workspace.append("  again: {uses: echo}\ntokens: [{name: spare, key: hunter2}]\n")
        assert workspace.ductile("reload").status == 78
        dry = workspace.ductile("apply", "--dry-run")
        assert dry.status == 0, dry
        assert "+ plugins.again.uses: echo" in dry.out
        assert "+ tokens[spare].key: ********" in dry.out
        assert "hunter2" not in dry.out
        assert "added: again" in dry.out
        assert (workspace.config.parent / ".checksums").read_bytes() == before
        done = workspace.json("apply")
        assert (done["sealed"], done["daemon"], done["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == done["reload"]["config"]
        assert workspace.json("run", "again")["status"] == "succeeded"
        same = workspace.ductile("apply")
        assert "The files are as sealed." in same.out


def test_apply_without_a_daemon_checks_and_seals(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    done = workspace.ductile("apply")
    assert done.status == 0, done
    assert "No daemon is running" in done.out
    workspace.append("  echo2: {uses: echo}\n")
    assert workspace.json("apply")["files"][0]["differences"] == ["+ plugins.echo2.uses: echo"]
    workspace.config.write_text(workspace.config.read_text() + "tokens: [{name: spare, key: hunter2}]\n")
    assert workspace.json("apply")["sealed"] is True
    workspace.config.write_text(workspace.config.read_text().replace("spare", "other"))
    assert workspace.json("apply")["sealed"] is True
    workspace.append("servise: {}\n")
    assert workspace.ductile("apply").status == 78


def test_a_refused_reload_seals_nothing_that_cannot_be_loaded(tmp_path: Path) -> None:
    """What a reload cannot change is refused before the seal is renewed."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace):
        before = (workspace.config.parent / ".checksums").read_bytes()
        workspace.append("state: {path: ./data/other.db}\n")
        ran = workspace.ductile("apply")
        assert ran.status == 1
        assert "a reload cannot change state" in ran.err
        assert (workspace.config.parent / ".checksums").read_bytes() == before


def test_the_daemon_checks_in_its_own_environment(tmp_path: Path) -> None:
    """A variable that only the daemon has is no error, and one that it lacks is."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace, {"ONLY_THERE": "./out"}):
        good = workspace.config.read_text()
        workspace.append("artifacts: {roots: ['${ONLY_THERE}']}\n")
        done = workspace.json("apply")
        assert done["reload"]["settings"] == ["artifacts"]
        workspace.config.write_text(good + "artifacts: {roots: ['${NOWHERE}']}\n")
        ran = workspace.ductile("apply")
        assert ran.status == 78
        assert "NOWHERE" in ran.err


def test_apply_shows_schedules_pipelines_routes_and_jobs_that_end(tmp_path: Path) -> None:
    """What a change does, before it is done; a dry run and the real one say the same."""
    workspace = a_workspace(
        tmp_path, "  gone: {uses: slow, parallelism: 1, schedule: {id: old, after: 1h}}\n"
    )
    workspace.plugin("slow", SLOW)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace) as daemon:
        running = [workspace.json("run", "gone", "--no-wait")["job_id"] for _ in range(3)]
        daemon.wait_until_started(running[0])
        coming = "  echo2: {uses: echo, schedule: {id: new, every: 2h}}\n#"
        text = workspace.config.read_text().replace("  gone:", coming)
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
        shown = workspace.ductile("apply", "--dry-run").out
        for line in ("schedule gone/old removed", "pipeline greet added", "as dead (plugin_removed)"):
            assert line in shown
        assert "ductile apply --drain" in shown
        assert workspace.json("apply")["reload"]["pipelines"] == planned["pipelines"]


def test_a_plan_is_applied_exactly_or_refused(tmp_path: Path) -> None:
    """The id of a dry run names what was shown. If anything changed since, nothing is done."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace):
        workspace.append("  again: {uses: echo}\n")
        plan = workspace.json("apply", "--dry-run")["plan"]
        assert workspace.json("apply", "--dry-run")["plan"] == plan
        sealed = (workspace.config.parent / ".checksums").read_bytes()
        workspace.append("  more: {uses: echo}\n")
        refused = workspace.ductile("apply", "--plan", plan)
        assert refused.status == 1
        assert f"the plan {plan} cannot be applied" in refused.err
        assert (workspace.config.parent / ".checksums").read_bytes() == sealed
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
    """The file would keep the daemon from starting, but says nothing about a pipeline."""
    workspace = a_workspace(tmp_path)
    workspace.append(
        "pipelines: [{name: greet, steps: [{id: one, uses: echo}]}]\ntokens: [{name: a, key: b}]\n"
    )
    assert workspace.ductile("config", "lock").status == 0
    workspace.config.write_text(workspace.config.read_text().replace("name: a", "name: c"))
    ran = workspace.ductile("pipeline", "check", "greet")
    assert ran.status == 0, ran
    assert "ok: greet, 1 step" in ran.out
    assert "config.yaml has changed since it was sealed" in ran.err


def test_apply_says_which_new_plugins_cannot_run(tmp_path: Path) -> None:
    """A script that is not executable, and a plugin that is not there: told at once, with what to do."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    script = workspace.config.parent / "night.sh"
    script.write_text("#!/bin/sh\necho saved\n")
    with a_daemon(workspace):
        workspace.append("  night: {run: ./night.sh}\n  page: {}\n")
        for words in (("apply", "--dry-run"), ("apply",)):
            ran = workspace.ductile(*words)
            assert ran.status == 0, ran
            assert f"night cannot run, and its jobs will fail: the program {script} is not" in ran.out
            assert f"chmod +x {script}" in ran.out
            assert 'page cannot run, and its jobs will fail: no plugin "page"' in ran.out
        script.chmod(0o755)
        assert "night cannot run" not in workspace.ductile("apply").out
        assert workspace.json("run", "night")["status"] == "succeeded"


def test_set_unset_and_edit_with_apply_are_one_command(tmp_path: Path) -> None:
    """The running daemon checks the change before the file is written, and uses it at once."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace) as daemon:
        before = workspace.config.read_text()
        dry = workspace.ductile("config", "set", "plugins.again", "{uses: echo}", "--apply", "--dry-run")
        assert "added: again" in dry.out, dry
        assert "ductile apply --plan" not in dry.out
        assert workspace.config.read_text() == before
        done = workspace.json("config", "set", "plugins.again", "{uses: echo}", "--apply")
        assert (done["sealed"], done["daemon"], done["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == done["reload"]["config"]
        assert workspace.json("run", "again")["status"] == "succeeded"
        assert workspace.json("config", "unset", "plugins.again", "--apply")["reload"]["removed"] == ["again"]
        workspace.append("  third: {uses: echo}\n")
        before = workspace.config.read_text()
        refused = workspace.ductile("config", "set", "state.path", "./data/other.db", "--apply")
        assert refused.status == 1
        assert "a reload cannot change state" in refused.err
        assert workspace.config.read_text() == before
        # What was written before without --apply is shown and put in force as well.
        added = workspace.json("config", "set", "plugins.fourth", "{uses: echo}", "--apply")
        assert added["reload"]["added"] == ["fourth", "third"]
        editor = replace(
            workspace.terminal, variables={**workspace.terminal.variables, "EDITOR": "sed -i s/fourth/fifth/"}
        )
        ran = editor.ductile("config", "edit", "--apply", "--json", "--config", "demo")
        edited = json.loads(ran.out)["reload"]
        assert (edited["added"], edited["removed"]) == (["fifth"], ["fourth"])


def test_apply_says_which_plugins_are_new_changed_and_gone(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    script = workspace.config.parent / "save.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    def changes(*words: str) -> list[tuple[str, str]]:
        done = workspace.json(*words)
        return [(each["name"], each["change"]) for each in done["files"]]

    added = changes("config", "set", "plugins.save", "{run: ./save.sh}", "--apply")
    assert ("plugin save", "added") in added
    script.write_text("#!/bin/sh\nexit 0\n")
    assert changes("apply") == [("plugin save", "changed")]
    assert ("plugin save", "removed") in changes("config", "unset", "plugins.save", "--apply")


def test_apply_and_lock_exclude_each_other(tmp_path: Path) -> None:
    ran = a_workspace(tmp_path).ductile("config", "set", "service.log_level", "debug", "--apply", "--lock")
    assert (ran.status, "exclude each other" in ran.err) == (2, True)
