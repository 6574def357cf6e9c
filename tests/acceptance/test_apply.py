"""`ductile apply`: one command puts a changed configuration in force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from builders.daemons import SLOW, a_daemon, a_place


def test_apply_shows_seals_and_reloads(tmp_path: Path) -> None:
    """Also a change of the high tier, which a reload alone refuses. A dry run changes nothing."""
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    with a_daemon(place) as daemon:
        before = (place.config.parent / ".checksums").read_bytes()
        place.append("  again: {uses: echo}\ntokens: [{name: spare, key: hunter2}]\n")
        assert place.ductile("reload").status == 78
        dry = place.ductile("apply", "--dry-run")
        assert dry.status == 0, dry
        assert "+ plugins.again.uses: echo" in dry.out
        assert "+ tokens[spare].key: ********" in dry.out
        assert "hunter2" not in dry.out
        assert "added: again" in dry.out
        assert (place.config.parent / ".checksums").read_bytes() == before
        done = place.said("apply")
        assert (done["sealed"], done["daemon"], done["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == done["reload"]["config"]
        assert place.said("run", "again")["status"] == "succeeded"
        same = place.ductile("apply")
        assert "The files are as sealed." in same.out


def test_apply_without_a_daemon_checks_and_seals(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    done = place.ductile("apply")
    assert done.status == 0, done
    assert "No daemon is running" in done.out
    place.append("  echo2: {uses: echo}\n")
    assert place.said("apply")["files"][0]["differences"] == ["+ plugins.echo2.uses: echo"]
    place.config.write_text(place.config.read_text() + "tokens: [{name: spare, key: hunter2}]\n")
    assert place.said("apply")["sealed"] is True
    place.config.write_text(place.config.read_text().replace("spare", "other"))
    assert place.said("apply")["sealed"] is True
    place.append("servise: {}\n")
    assert place.ductile("apply").status == 78


def test_a_refused_reload_seals_nothing_that_cannot_be_loaded(tmp_path: Path) -> None:
    """What a reload cannot change is refused before the seal is renewed."""
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    with a_daemon(place):
        before = (place.config.parent / ".checksums").read_bytes()
        place.append("state: {path: ./data/other.db}\n")
        ran = place.ductile("apply")
        assert ran.status == 1
        assert "a reload cannot change state" in ran.err
        assert (place.config.parent / ".checksums").read_bytes() == before


def test_the_daemon_checks_in_its_own_environment(tmp_path: Path) -> None:
    """A variable that only the daemon has is no error, and one that it lacks is."""
    place = a_place(tmp_path)
    assert place.ductile("apply").status == 0
    with a_daemon(place, {"ONLY_THERE": "./out"}):
        good = place.config.read_text()
        place.append("artifacts: {roots: ['${ONLY_THERE}']}\n")
        done = place.said("apply")
        assert done["reload"]["settings"] == ["artifacts"]
        place.config.write_text(good + "artifacts: {roots: ['${NOWHERE}']}\n")
        ran = place.ductile("apply")
        assert ran.status == 78
        assert "NOWHERE" in ran.err


def test_apply_shows_schedules_pipelines_routes_and_jobs_that_end(tmp_path: Path) -> None:
    """What a change does, before it is done; a dry run and the real one say the same."""
    place = a_place(tmp_path, "  gone: {uses: slow, parallelism: 1, schedule: {id: old, after: 1h}}\n")
    place.plugin("slow", SLOW)
    assert place.ductile("apply").status == 0
    with a_daemon(place) as daemon:
        running = [place.said("run", "gone", "--no-wait")["job_id"] for _ in range(3)]
        daemon.wait_until_started(running[0])
        coming = "  echo2: {uses: echo, schedule: {id: new, every: 2h}}\n#"
        text = place.config.read_text().replace("  gone:", coming)
        place.config.write_text(
            f"{text}routes: [{{from: echo, event_type: seen, to: echo2}}]\n"
            "pipelines: [{name: greet, steps: [{id: one, uses: echo}]}]\n"
        )
        planned = place.said("apply", "--dry-run")["reload"]
        assert (planned["added"], planned["removed"]) == (["echo2"], ["gone"])
        assert {(row["plugin"], row["id"], row["change"]) for row in planned["schedules"]} == {
            ("echo2", "new", "added"),
            ("gone", "old", "removed"),
        }
        assert planned["routes"]["added"] == ["echo seen -> echo2.handle"]
        assert planned["pipelines"]["added"] == ["greet"]
        assert [(row["plugin"], row["jobs"] >= 2) for row in planned["ends"]] == [("gone", True)]
        shown = place.ductile("apply", "--dry-run").out
        for line in ("schedule gone/old removed", "pipeline greet added", "as dead (plugin_removed)"):
            assert line in shown
        assert "ductile apply --drain" in shown
        assert place.said("apply")["reload"]["pipelines"] == planned["pipelines"]


def test_a_plan_is_applied_exactly_or_refused(tmp_path: Path) -> None:
    """The id of a dry run names what was shown. If anything changed since, nothing is done."""
    place = a_place(tmp_path)
    assert place.ductile("apply").status == 0
    with a_daemon(place):
        place.append("  again: {uses: echo}\n")
        plan = place.said("apply", "--dry-run")["plan"]
        assert place.said("apply", "--dry-run")["plan"] == plan
        sealed = (place.config.parent / ".checksums").read_bytes()
        place.append("  more: {uses: echo}\n")
        refused = place.ductile("apply", "--plan", plan)
        assert refused.status == 1
        assert f"the plan {plan} cannot be applied" in refused.err
        assert (place.config.parent / ".checksums").read_bytes() == sealed
        plan = place.said("apply", "--dry-run")["plan"]
        assert place.said("apply", "--plan", plan)["reload"]["added"] == ["again", "more"]
        (loaded,) = [
            row["data"] for row in place.said("event", "tail")["events"] if row["data"].get("plan") == plan
        ]
        assert (loaded["command"], loaded["author"]) == ("apply", "cli")


def test_reload_can_seal_first(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    with a_daemon(place):
        place.append("tokens: [{name: spare, key: hunter2}]\n")
        assert place.ductile("reload").status == 78
        assert place.said("reload", "--lock", "--dry-run")["tokens"]["added"] == ["spare"]
        assert place.ductile("reload").status == 78
        assert place.said("reload", "--lock")["tokens"]["added"] == ["spare"]
        assert place.ductile("config", "check").status == 0


def test_pipelines_are_checked_beside_an_unsealed_file(tmp_path: Path) -> None:
    """The file would keep the daemon from starting, but says nothing about a pipeline."""
    place = a_place(tmp_path)
    place.append("pipelines: [{name: greet, steps: [{id: one, uses: echo}]}]\ntokens: [{name: a, key: b}]\n")
    assert place.ductile("config", "lock").status == 0
    place.config.write_text(place.config.read_text().replace("name: a", "name: c"))
    ran = place.ductile("pipeline", "check", "greet")
    assert ran.status == 0, ran
    assert "ok: greet, 1 step" in ran.out
    assert "config.yaml has changed since it was sealed" in ran.err


def test_apply_says_which_new_plugins_cannot_run(tmp_path: Path) -> None:
    """A script that is not executable, and a plugin that is not there: told at once, with what to do."""
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    script = place.config.parent / "night.sh"
    script.write_text("#!/bin/sh\necho saved\n")
    with a_daemon(place):
        place.append("  night: {run: ./night.sh}\n  page: {}\n")
        for words in (("apply", "--dry-run"), ("apply",)):
            ran = place.ductile(*words)
            assert ran.status == 0, ran
            assert f"night cannot run, and its jobs will fail: the program {script} is not" in ran.out
            assert f"chmod +x {script}" in ran.out
            assert 'page cannot run, and its jobs will fail: no plugin "page"' in ran.out
        script.chmod(0o755)
        assert "night cannot run" not in place.ductile("apply").out
        assert place.said("run", "night")["status"] == "succeeded"


def test_set_unset_and_edit_with_apply_are_one_command(tmp_path: Path) -> None:
    """The running daemon checks the change before the file is written, and uses it at once."""
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    with a_daemon(place) as daemon:
        before = place.config.read_text()
        dry = place.ductile("config", "set", "plugins.again", "{uses: echo}", "--apply", "--dry-run")
        assert "added: again" in dry.out, dry
        assert "ductile apply --plan" not in dry.out
        assert place.config.read_text() == before
        done = place.said("config", "set", "plugins.again", "{uses: echo}", "--apply")
        assert (done["sealed"], done["daemon"], done["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == done["reload"]["config"]
        assert place.said("run", "again")["status"] == "succeeded"
        assert place.said("config", "unset", "plugins.again", "--apply")["reload"]["removed"] == ["again"]
        place.append("  third: {uses: echo}\n")
        before = place.config.read_text()
        refused = place.ductile("config", "set", "state.path", "./data/other.db", "--apply")
        assert refused.status == 1
        assert "a reload cannot change state" in refused.err
        assert place.config.read_text() == before
        # What was written before without --apply is shown and put in force as well.
        added = place.said("config", "set", "plugins.fourth", "{uses: echo}", "--apply")
        assert added["reload"]["added"] == ["fourth", "third"]
        editor = replace(
            place.terminal, variables={**place.terminal.variables, "EDITOR": "sed -i s/fourth/fifth/"}
        )
        ran = editor.ductile("config", "edit", "--apply", "--json", "--config", "demo")
        edited = json.loads(ran.out)["reload"]
        assert (edited["added"], edited["removed"]) == (["fifth"], ["fourth"])


def test_apply_says_which_plugins_are_new_changed_and_gone(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    assert place.ductile("apply").status == 0
    script = place.config.parent / "save.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    def changes(*words: str) -> list[tuple[str, str]]:
        done = place.said(*words)
        return [(each["name"], each["change"]) for each in done["files"]]

    added = changes("config", "set", "plugins.save", "{run: ./save.sh}", "--apply")
    assert ("plugin save", "added") in added
    script.write_text("#!/bin/sh\nexit 0\n")
    assert changes("apply") == [("plugin save", "changed")]
    assert ("plugin save", "removed") in changes("config", "unset", "plugins.save", "--apply")


def test_apply_and_lock_exclude_each_other(tmp_path: Path) -> None:
    ran = a_place(tmp_path).ductile("config", "set", "service.log_level", "debug", "--apply", "--lock")
    assert (ran.status, "exclude each other" in ran.err) == (2, True)
