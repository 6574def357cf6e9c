"""`config history`, `config diff` and `config rollback` show earlier configurations and restore them."""

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
        output = workspace.ductile("config", "diff").out
        assert "config.yaml (changed)" in output
        assert "-  max_workers: 4\n" in output
        assert "+  max_workers: 3  # fewer\n" in output
        assert workspace.ductile("config", "lock").status == 0
        comparisons = workspace.json("config", "diff")["comparisons"]
        assert [(comparison["before"], comparison["same"]) for comparison in comparisons] == [
            ("in force", False),
            ("sealed", True),
        ]
        assert workspace.ductile("apply").status == 0
        newest, first = workspace.json("config", "history")["history"][:2]
        assert (newest["command"], newest["author"], newest["in_force"]) == ("apply", "cli", True)
        assert newest["changes"] == "service.max_workers"
        assert (first["origin"], first["restorable"]) == ("start", True)
        difference = workspace.ductile("config", "diff", first["id"], newest["id"]).out
        assert "+  max_workers: 3  # fewer" in difference
        planned = workspace.json("config", "rollback", "--dry-run")
        assert planned["to"] == first["id"]
        assert workspace.config.read_bytes() != before
        report = workspace.json("config", "rollback", "--plan", planned["plan"])
        assert (report["to"], report["kept"], report["reload"]["settings"]) == (
            first["id"],
            None,
            ["service"],
        )
        assert workspace.config.read_bytes() == before
        assert workspace.ductile("config", "check").status == 0
        assert workspace.json("config", "history")["history"][0]["command"] == "rollback"
        assert "service.max_workers: 4 → 3" in workspace.ductile("config", "history", "--diff").out


def test_history_and_rollback_work_without_a_daemon(tmp_path: Path) -> None:
    """Both also work if the files cannot be loaded any more, which is when a rollback is needed."""
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
    result = workspace.ductile("config", "rollback", ids(workspace)[0])
    assert result.status == 0, result
    assert "changes that were never sealed" in result.out
    assert b"max_workers: 3" in workspace.config.read_bytes()
    assert workspace.json("config", "rollback")["kept"] is None
    assert workspace.config.read_bytes() == first
    unsealed = [row for row in workspace.json("config", "history")["history"] if row["event"] == "replaced"]
    refused = workspace.ductile("config", "rollback", unsealed[0]["id"])
    assert (refused.status, workspace.config.read_bytes()) == (78, first)
    assert broken != first


def test_a_changed_environment_file_refuses_a_rollback(tmp_path: Path) -> None:
    """The content of the file is never kept, so a rollback cannot restore it, but can leave the file as it
    is.
    """
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
    contents = b"".join(
        path.read_bytes() for path in (workspace.config.parent / ".ductile").rglob("*") if path.is_file()
    )
    assert b"canary" not in contents


def test_a_file_that_came_later_is_removed(tmp_path: Path) -> None:
    """A file in an included directory would be loaded as well. The history keeps its content."""
    workspace = a_workspace(tmp_path)
    directory = workspace.config.parent / "conf.d"
    directory.mkdir()
    (directory / "a.yaml").write_text("service: {tick_interval: 30s}\n")
    workspace.config.write_text("include: [conf.d]\n" + workspace.config.read_text())
    assert workspace.ductile("apply").status == 0
    (directory / "b.yaml").write_text("plugins: {later: {uses: echo}}\n")
    assert workspace.ductile("apply").status == 0
    assert workspace.ductile("config", "rollback").status == 0
    assert not (directory / "b.yaml").exists()
    assert workspace.ductile("config", "check").status == 0
    assert workspace.ductile("config", "rollback").status == 0
    assert (directory / "b.yaml").read_text() == "plugins: {later: {uses: echo}}\n"


def test_a_file_that_was_never_sealed_is_shown_and_kept(tmp_path: Path) -> None:
    """A rollback removes the file, because it would be loaded as well. The plan names the file, and a
    rollback to the replaced configuration restores it.
    """
    workspace = a_workspace(tmp_path)
    directory = workspace.config.parent / "conf.d"
    directory.mkdir()
    (directory / "a.yaml").write_text("service: {tick_interval: 30s}\n")
    workspace.config.write_text("include: [conf.d]\n" + workspace.config.read_text())
    assert workspace.ductile("apply").status == 0
    (directory / "a.yaml").write_text("service: {tick_interval: 40s}\n")
    assert workspace.ductile("apply").status == 0
    (directory / "b.yaml").write_text("plugins: {later: {uses: echo}}\n")
    planned = workspace.json("config", "rollback", "--dry-run")
    assert {file["name"]: file["change"] for file in planned["files"]} == {
        "conf.d/a.yaml": "changed",
        "conf.d/b.yaml": "removed",
    }
    kept_id = workspace.json("config", "rollback")["kept"]
    assert not (directory / "b.yaml").exists()
    assert workspace.ductile("config", "rollback", kept_id).status == 0
    assert (directory / "b.yaml").read_text() == "plugins: {later: {uses: echo}}\n"
    assert (directory / "a.yaml").read_text() == "service: {tick_interval: 40s}\n"


def revoke_leaked_token(workspace: Workspace) -> str:
    """Revoke a leaked token, then change a setting. Return the id of the configuration before both."""
    first = ids(workspace)[0]
    leaked = f'      - {{name: "read:jobs", token: "{token_for("read:jobs")}", scopes: ["read:jobs"]}}\n'
    change(workspace, leaked, "")
    assert workspace.ductile("apply").status == 0
    change(workspace, "max_workers: 4", "max_workers: 3")
    assert workspace.ductile("apply").status == 0
    return first


def test_a_rollback_does_not_bring_back_a_revoked_token(tmp_path: Path) -> None:
    """A rollback restores the token only on request, on the command line and over HTTP."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        first = revoke_leaked_token(workspace)
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
    """If the present files cannot be loaded, the configuration that was sealed last is compared."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    first = revoke_leaked_token(workspace)
    assert "read:jobs" in workspace.ductile("config", "rollback", first).err
    workspace.append("servise: {}\n")
    refused = workspace.ductile("config", "rollback", first)
    assert (refused.status, "read:jobs" in refused.err) == (1, True)
    assert workspace.ductile("config", "rollback", ids(workspace)[0]).status == 0
    assert "servise" not in workspace.config.read_text()


def test_a_remote_operator_plans_applies_and_rolls_back(tmp_path: Path) -> None:
    """The same works over HTTP, and the ledger names the token. An outdated plan is refused."""
    workspace = an_api_workspace(tmp_path)
    writer, reader = token_for("system:rw"), token_for("system:ro")
    with an_api(workspace) as api:
        change(workspace, "max_workers: 4", "max_workers: 3")
        comparisons = api.get("/config/diff", token=reader)["comparisons"]
        assert [comparison["files"][0]["differences"] for comparison in comparisons] == [
            ["~ service.max_workers: 4 → 3"],
            ["~ service.max_workers: 4 → 3"],
        ]
        assert "text" not in comparisons[0]["files"][0]
        assert api.ask("POST", "/config/apply", {}, token=reader).status == 403
        plan = api.post("/config/apply", {"dry_run": True}, status=200, token=writer)["plan"]
        change(workspace, "max_workers: 3", "max_workers: 2")
        assert api.ask("POST", "/config/apply", {"plan": plan}, token=writer).code == "conflict"
        plan = api.post("/config/apply", {"dry_run": True}, status=200, token=writer)["plan"]
        report = api.post("/config/apply", {"plan": plan}, status=200, token=writer)
        assert (report["sealed"], report["reload"]["settings"]) == (True, ["service"])
        newest = api.get("/config/history", token=reader)["history"][0]
        assert (newest["command"], newest["author"]) == ("apply", "token system:rw")
        rollback = api.post("/config/rollback", {}, status=200, token=writer)
        assert rollback["files"][0]["differences"] == ["~ service.max_workers: 2 → 4"]
        assert "max_workers: 4" in workspace.config.read_text()
        rows = [row["data"] for row in api.get("/ledger")["events"] if row["kind"] == "config.loaded"]
        assert [row.get("plan") for row in rows[-2:]] == [plan, rollback["plan"]]


def test_a_remote_operator_gains_no_rights(tmp_path: Path) -> None:
    """No token can put a token with more rights in force, however that one came into the files."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        seal = (workspace.config.parent / ".checksums").read_bytes()
        new_token = '      - {name: mine, token: a-long-canary-of-mine, scopes: ["*"]}\n'
        change(workspace, "    tokens:\n", f"    tokens:\n{new_token}")
        refused = api.ask("POST", "/config/apply", {}, token=token_for("system:rw"))
        assert (refused.status, refused.body["error"]["details"]) == (403, {"needed": ["*"]})
        assert (workspace.config.parent / ".checksums").read_bytes() == seal
        comparison = json.dumps(api.get("/config/diff"))
        assert "a-long-canary-of-mine" not in comparison
        assert "mine" in comparison
        assert api.post("/config/apply", {}, status=200)["reload"]["tokens"]["added"] == ["mine"]
