"""A changed environment file with access variables refuses the start and a reload."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from builders.daemons import Workspace, a_daemon, a_workspace
from ductile.errors import Exit

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = "tokens: [{name: ops, key: '${OPS_TOKEN}', scopes_file: scopes/ops.json}]\n"


def a_sealed_workspace(tmp_path: Path) -> Workspace:
    workspace = a_workspace(
        tmp_path, "environment_vars: {include: [.env, plain.env]}\ninclude: [tokens.yaml]\n"
    )
    demo = workspace.config.parent
    (demo / "tokens.yaml").write_text(TOKENS)
    (demo / "scopes").mkdir()
    (demo / "scopes" / "ops.json").write_text('{"scopes": ["*"]}')
    for name, text in {".env": "OPS_TOKEN=first\n", "plain.env": "GREETING=hello\n"}.items():
        (demo / name).write_text(text)
        (demo / name).chmod(0o600)
    assert workspace.ductile("config", "lock").status == Exit.OK
    return workspace


def test_a_changed_token_value_in_an_env_file_refuses_the_start(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    (workspace.config.parent / ".env").write_text("OPS_TOKEN=evil\n")
    result = workspace.ductile("system", "start")
    assert result.status == Exit.CONFIG
    assert ".env has changed since it was sealed" in result.err
    assert "ductile apply" in result.err
    assert "evil" not in result.err


def test_a_changed_token_value_in_an_env_file_refuses_a_reload(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        (workspace.config.parent / ".env").write_text("OPS_TOKEN=evil\n")
        result = workspace.ductile("system", "reload")
        assert result.status == Exit.CONFIG
        assert ".env has changed since it was sealed" in result.err
        assert workspace.ductile("config", "lock").status == Exit.OK
        assert workspace.ductile("system", "reload").status == Exit.OK
        assert daemon.end(signal.SIGTERM) == 0


def test_an_env_file_that_feeds_only_plugins_is_a_warning(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    (workspace.config.parent / "plain.env").write_text("GREETING=hi\n")
    with a_daemon(workspace) as daemon:
        assert daemon.end() == 0


def test_a_variable_added_to_another_env_file_refuses_the_start(tmp_path: Path) -> None:
    """The value of the later file counts, so a harmless file can become one that grants access."""
    workspace = a_sealed_workspace(tmp_path)
    (workspace.config.parent / "plain.env").write_text("GREETING=hello\nOPS_TOKEN=evil\n")
    result = workspace.ductile("system", "start")
    assert result.status == Exit.CONFIG
    assert "plain.env has changed since it was sealed" in result.err


def test_commands_that_renew_the_seal_of_an_env_file_keep_working(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    assert workspace.ductile("token", "create", "ci", "--scopes", "jobs:ro").status == Exit.OK
    assert workspace.ductile("config", "set", "service.name", "other", "--lock").status == Exit.OK
    assert workspace.ductile("config", "check").status == Exit.OK
    assert workspace.ductile("token", "revoke", "ci").status == Exit.OK
    assert workspace.ductile("config", "check").status == Exit.OK
    with a_daemon(workspace) as daemon:
        assert daemon.end() == 0
