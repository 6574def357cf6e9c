"""`config history`, `config diff` and `config rollback`: what was in force before, and back to it."""

from __future__ import annotations

import json
from pathlib import Path

from builders.daemons import Workspace, a_daemon, a_workspace
from builders.http import an_api, an_api_workspace, token_for


def change(workspace: Workspace, old: str, new: str) -> None:
    text = workspace.config.read_text()
    assert old in text
    workspace.config.write_text(text.replace(old, new))


def ids(workspace: Workspace) -> list[str]:
    return [entry["id"] for entry in workspace.json("config", "history")["history"]]


def test_a_change_is_seen_applied_and_taken_back(tmp_path: Path) -> None:
    """The diff names file and line, the history every configuration, and a rollback restores the bytes."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    with a_daemon(workspace):
        before = workspace.config.read_bytes()
        assert "The files on disk are sealed and in force." in workspace.ductile("config", "diff").out
        change(workspace, "max_workers: 4", "max_workers: 3  # fewer")
        shown = workspace.ductile("config", "diff").out
        assert "config.yaml (changed)" in shown
        assert "-  max_workers: 4\n" in shown
        assert "+  max_workers: 3  # fewer\n" in shown
        assert workspace.ductile("config", "lock").status == 0
        unloaded = workspace.json("config", "diff")["comparisons"]
        assert [(each["before"], each["same"]) for each in unloaded] == [
            ("in force", False),
            ("sealed", True),
        ]
        assert workspace.ductile("apply").status == 0
        newest, first = workspace.json("config", "history")["history"][:2]
        assert (newest["command"], newest["author"], newest["in_force"]) == ("apply", "cli", True)
        assert newest["changes"] == "service.max_workers"
        assert (first["origin"], first["restorable"]) == ("start", True)
        between = workspace.ductile("config", "diff", first["id"], newest["id"]).out
        assert "+  max_workers: 3  # fewer" in between
        planned = workspace.json("config", "rollback", "--dry-run")
        assert planned["to"] == first["id"]
        assert workspace.config.read_bytes() != before
        done = workspace.json("config", "rollback", "--plan", planned["plan"])
        assert (done["to"], done["kept"], done["reload"]["settings"]) == (first["id"], None, ["service"])
        assert workspace.config.read_bytes() == before
        assert workspace.ductile("config", "check").status == 0
        assert workspace.json("config", "history")["history"][0]["command"] == "rollback"
        assert "service.max_workers: 4 → 3" in workspace.ductile("config", "history", "--diff").out


def test_history_and_rollback_work_without_a_daemon(tmp_path: Path) -> None:
    """Also if the files cannot be loaded any more: that is when a rollback is needed."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    first = workspace.config.read_bytes()
    change(workspace, "max_workers: 4", "max_workers: 3")
    assert workspace.ductile("apply").status == 0
    workspace.append("servise: {}\n")
    broken = workspace.config.read_bytes()
    assert workspace.ductile("apply").status == 78
    assert len(ids(workspace)) == 2
    assert "servise" in workspace.ductile("config", "diff").out
    ran = workspace.ductile("config", "rollback", ids(workspace)[0])
    assert ran.status == 0, ran
    assert "changes that were never sealed" in ran.out
    assert b"max_workers: 3" in workspace.config.read_bytes()
    assert workspace.json("config", "rollback")["kept"] is None
    assert workspace.config.read_bytes() == first
    unsealed = [row for row in workspace.json("config", "history")["history"] if row["event"] == "replaced"]
    refused = workspace.ductile("config", "rollback", unsealed[0]["id"])
    assert (refused.status, workspace.config.read_bytes()) == (78, first)
    assert broken != first


def test_a_changed_environment_file_refuses_a_rollback(tmp_path: Path) -> None:
    """Its content is never kept, so it cannot be restored. It can be kept as it is."""
    workspace = a_workspace(tmp_path)
    (workspace.config.parent / ".env").write_text("KEY=first-canary\n")
    workspace.append("environment_vars: {include: [.env]}\n")
    assert workspace.ductile("apply").status == 0
    (workspace.config.parent / ".env").write_text("KEY=second-canary\n")
    change(workspace, "max_workers: 4", "max_workers: 3")
    assert workspace.ductile("apply").status == 0
    refused = workspace.ductile("config", "rollback")
    assert refused.status == 1
    assert ".env was changed since" in refused.err
    assert "--keep-env" in refused.err
    assert workspace.ductile("config", "rollback", "--keep-env").status == 0
    assert "max_workers: 4" in workspace.config.read_text()
    assert (workspace.config.parent / ".env").read_text() == "KEY=second-canary\n"
    kept = b"".join(
        path.read_bytes() for path in (workspace.config.parent / ".ductile").rglob("*") if path.is_file()
    )
    assert b"canary" not in kept


def test_a_file_that_came_later_is_removed(tmp_path: Path) -> None:
    """In an included directory it would be loaded as well. Its content stays in the history."""
    workspace = a_workspace(tmp_path)
    more = workspace.config.parent / "conf.d"
    more.mkdir()
    (more / "a.yaml").write_text("service: {tick_interval: 30s}\n")
    workspace.config.write_text("include: [conf.d]\n" + workspace.config.read_text())
    assert workspace.ductile("apply").status == 0
    (more / "b.yaml").write_text("plugins: {later: {uses: echo}}\n")
    assert workspace.ductile("apply").status == 0
    assert workspace.ductile("config", "rollback").status == 0
    assert not (more / "b.yaml").exists()
    assert workspace.ductile("config", "check").status == 0
    assert workspace.ductile("config", "rollback").status == 0
    assert (more / "b.yaml").read_text() == "plugins: {later: {uses: echo}}\n"


def test_a_file_that_was_never_sealed_is_shown_and_kept(tmp_path: Path) -> None:
    """A rollback removes it, because it would be loaded as well: it says so, and its own id restores it."""
    workspace = a_workspace(tmp_path)
    more = workspace.config.parent / "conf.d"
    more.mkdir()
    (more / "a.yaml").write_text("service: {tick_interval: 30s}\n")
    workspace.config.write_text("include: [conf.d]\n" + workspace.config.read_text())
    assert workspace.ductile("apply").status == 0
    (more / "a.yaml").write_text("service: {tick_interval: 40s}\n")
    assert workspace.ductile("apply").status == 0
    (more / "b.yaml").write_text("plugins: {later: {uses: echo}}\n")
    planned = workspace.json("config", "rollback", "--dry-run")
    assert {each["name"]: each["change"] for each in planned["files"]} == {
        "conf.d/a.yaml": "changed",
        "conf.d/b.yaml": "removed",
    }
    kept = workspace.json("config", "rollback")["kept"]
    assert not (more / "b.yaml").exists()
    assert workspace.ductile("config", "rollback", kept).status == 0
    assert (more / "b.yaml").read_text() == "plugins: {later: {uses: echo}}\n"
    assert (more / "a.yaml").read_text() == "service: {tick_interval: 40s}\n"


def revoked_workspace(workspace: Workspace) -> str:
    """A token that leaked is revoked, and then a setting changed. Returns the id from before both."""
    first = ids(workspace)[0]
    leaked = f'      - {{name: "read:jobs", token: "{token_for("read:jobs")}", scopes: ["read:jobs"]}}\n'
    change(workspace, leaked, "")
    assert workspace.ductile("apply").status == 0
    change(workspace, "max_workers: 4", "max_workers: 3")
    assert workspace.ductile("apply").status == 0
    return first


def test_a_rollback_does_not_bring_back_a_revoked_token(tmp_path: Path) -> None:
    """Unless it is asked to; neither on the command line nor over HTTP."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        first = revoked_workspace(workspace)
        refused = workspace.ductile("config", "rollback", first)
        assert refused.status == 1
        assert "read:jobs" in refused.err
        assert "--restore-tokens" in refused.err
        assert api.ask("POST", "/config/rollback", {"to": first}).code == "conflict"
        assert api.ask("GET", "/jobs", token=token_for("read:jobs")).status == 401
        assert "max_workers: 3" in workspace.config.read_text()
        assert workspace.ductile("config", "rollback", first, "--restore-tokens").status == 0
        assert api.ask("GET", "/jobs", token=token_for("read:jobs")).status == 200


def test_a_revoked_token_stays_revoked_without_a_daemon(tmp_path: Path) -> None:
    """Also if the present files cannot be loaded: what was sealed last is compared then."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    first = revoked_workspace(workspace)
    assert "read:jobs" in workspace.ductile("config", "rollback", first).err
    workspace.append("servise: {}\n")
    refused = workspace.ductile("config", "rollback", first)
    assert (refused.status, "read:jobs" in refused.err) == (1, True)
    assert workspace.ductile("config", "rollback", ids(workspace)[0]).status == 0
    assert "servise" not in workspace.config.read_text()


def test_a_remote_operator_plans_applies_and_rolls_back(tmp_path: Path) -> None:
    """Over HTTP the same, with the name of the token in the ledger. A plan that is out of date is refused."""
    workspace = an_api_workspace(tmp_path)
    writer, reader = token_for("system:rw"), token_for("system:ro")
    with an_api(workspace) as api:
        change(workspace, "max_workers: 4", "max_workers: 3")
        differences = api.get("/config/diff", token=reader)["comparisons"]
        assert [each["files"][0]["differences"] for each in differences] == [
            ["~ service.max_workers: 4 → 3"],
            ["~ service.max_workers: 4 → 3"],
        ]
        assert "text" not in differences[0]["files"][0]
        assert api.ask("POST", "/config/apply", {}, token=reader).status == 403
        plan = api.post("/config/apply", {"dry_run": True}, status=200, token=writer)["plan"]
        change(workspace, "max_workers: 3", "max_workers: 2")
        assert api.ask("POST", "/config/apply", {"plan": plan}, token=writer).code == "conflict"
        plan = api.post("/config/apply", {"dry_run": True}, status=200, token=writer)["plan"]
        done = api.post("/config/apply", {"plan": plan}, status=200, token=writer)
        assert (done["sealed"], done["reload"]["settings"]) == (True, ["service"])
        newest = api.get("/config/history", token=reader)["history"][0]
        assert (newest["command"], newest["author"]) == ("apply", "token system:rw")
        back = api.post("/config/rollback", {}, status=200, token=writer)
        assert back["files"][0]["differences"] == ["~ service.max_workers: 2 → 4"]
        assert "max_workers: 4" in workspace.config.read_text()
        rows = [row["data"] for row in api.get("/ledger")["events"] if row["kind"] == "config.loaded"]
        assert [row.get("plan") for row in rows[-2:]] == [plan, back["plan"]]


def test_a_remote_operator_gains_no_rights(tmp_path: Path) -> None:
    """A token may not put a token in force that may do more than itself, however it came into the files."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        sealed = (workspace.config.parent / ".checksums").read_bytes()
        mine = '      - {name: mine, token: a-long-canary-of-mine, scopes: ["*"]}\n'
        change(workspace, "    tokens:\n", f"    tokens:\n{mine}")
        refused = api.ask("POST", "/config/apply", {}, token=token_for("system:rw"))
        assert (refused.status, refused.body["error"]["details"]) == (403, {"needed": ["*"]})
        assert (workspace.config.parent / ".checksums").read_bytes() == sealed
        shown = json.dumps(api.get("/config/diff"))
        assert "a-long-canary-of-mine" not in shown
        assert "mine" in shown
        assert api.post("/config/apply", {}, status=200)["reload"]["tokens"]["added"] == ["mine"]
