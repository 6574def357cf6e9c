"""No command ever shows a secret."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from builders.plugins import a_plugin
from builders.postgres import store_url, with_password
from builders.terminal import CommandResult
from ductile.cli.command_table import NOUNS
from ductile.cli.main import run

CANARIES = {
    "token": "canary-token-4711",
    "env": "canary-env-4711",
    "plugin": "canary-plugin-4711",
    "nested": "canary-nested-4711",
    "variable": "canary-variable-4711",
    "default": "canary-default-4711",
    "database": "canary-database-4711",
    "webhook": "canary-webhook-4711",
    "api": "canary-api-4711",
    "step": "canary-step-4711",
}
CONFIG = f"""\
environment_vars:
  include: [.env]
state:
  url: postgresql://me:{CANARIES["database"]}@127.0.0.1:1/db
api:
  enabled: true
  auth:
    tokens:
      - name: direct
        token: {CANARIES["api"]}
        scopes: ["*"]
plugins:
  echo:
    config:
      api_key: {CANARIES["plugin"]}
      from_environment: ${{FROM_ENVIRONMENT}}
      from_env_file: ${{FROM_ENV_FILE}}
      fallback_token: ${{NOT_SET:-{CANARIES["default"]}}}
      deep:
        password: [{CANARIES["nested"]}]
tokens:
  - name: hook
    key: {CANARIES["token"]}
webhooks:
  endpoints:
    - path: /hook
      plugin: echo
      secret: {CANARIES["webhook"]}
pipelines:
  - name: quiet
    steps:
      - uses: echo
        with: {{client_secret: {CANARIES["step"]}, deep: [{{auth_token: {CANARIES["step"]}}}]}}
"""
ARGUMENTS = {
    "KEY": ["plugins.echo.config", "tokens", "tokens[0].key", "state.url", "api.auth.tokens[0].token"],
    "NAME": ["echo", "hook", "quiet"],
    "NAME|DIR": ["echo"],
    "FILE|DIR": ["saved.tar.gz"],
    "FILE": ["saved.tar.gz"],
    "SECTION": ["plugins", "plugins.echo.config", "tokens", "state", "webhooks"],
    "VALUE": ["1"],
    "DIR": ["."],
    "PLUGIN": ["echo"],
    "COMMAND": ["poll"],
    "SCHEDULE": ["default"],
    "JOB": ["01a1e1b0"],
    "DELIVERY": ["01a1e1b0"],
    "TYPE": ["order.placed"],
    "RUN": ["01a1e1b0"],
    "ID": ["01a1e1b0"],
    "SOURCE": ["echo"],
    "BEFORE": ["01a1e1b0"],
    "AFTER": ["01a1e1b0"],
    "SHELL": ["bash"],
}


class InProcessWorkspace(NamedTuple):
    """A directory with the configuration. Commands run in this process, since there are so many of them."""

    directory: Path

    def ductile(self, *words: str) -> CommandResult:
        environ = {"FROM_ENVIRONMENT": CANARIES["variable"], "DUCTILE_CONFIG_DIR": str(self.directory)}
        out, err = io.StringIO(), io.StringIO()
        status = run(words, environ, out, err)
        return CommandResult(status=status, out=out.getvalue(), err=err.getvalue())


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessWorkspace:
    monkeypatch.chdir(tmp_path)
    a_plugin(tmp_path / "plugins")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / ".env").write_text(f"FROM_ENV_FILE={CANARIES['env']}\n")
    return InProcessWorkspace(tmp_path)


def command_lines() -> list[list[str]]:
    """Return lines for every action of the table with each known argument; mutations are dry runs."""
    lines = []
    for noun in NOUNS:
        for action in noun.actions:
            dry_run = ["--dry-run"] if any("--dry-run" in option.flags for option in action.options) else []
            names = [argument.name for argument in action.arguments]
            choices = ARGUMENTS[names[0]] if names else [""]
            for choice in choices:
                arguments = [choice, *(ARGUMENTS[name][0] for name in names[1:])] if names else []
                lines.append([noun.name, action.name, *arguments, *dry_run])
    return lines


@pytest.mark.parametrize("form", [[], ["--json", "-v"]])
@pytest.mark.parametrize("store", ["a server", "no server", "a file"])
def test_no_command_shows_a_secret(workspace: InProcessWorkspace, store: str, form: list[str]) -> None:
    """No output has a secret, as text or as JSON, also after a job got all of them."""
    lines_of_config = CONFIG.splitlines()
    if store == "a file":
        lines_of_config = [line for line in lines_of_config if line.split(":")[0] not in ("state", "  url")]
    if store == "a server":
        url = with_password(store_url(workspace.directory), CANARIES["database"])
        lines_of_config = [f"  url: {url}" if "postgresql:" in line else line for line in lines_of_config]
    (workspace.directory / "config.yaml").write_text("\n".join(lines_of_config) + "\n")
    assert workspace.ductile("config", "lock").status == 0
    assert workspace.ductile("status").status == (75 if store == "no server" else 0)
    assert workspace.ductile("run", "echo").status == (0 if store == "a file" else 69)
    for words in command_lines():
        result = workspace.ductile(*words, *form)
        leaks = [name for name, canary in CANARIES.items() if canary in result.out + result.err]
        assert leaks == [], words
        if "--json" in form:
            json.loads(result.out)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scopes: [", "scopes: 5 # ["),
        ("api_key:", "api_key: &x "),
        ("password: [", "password: ["),
        ("key: ", "kye: "),
        ("  - name: hook", "  - nmae: hook"),
        ("secret: ", "secret: [ "),
        ("enabled: true", f"enabled: {CANARIES['plugin'][:3]}"),
        ("url: postgresql", "url: mysql"),
        ("state:", "state:\n  path: x"),
        ("token: ", "token: !!str "),
        ("plugins:", "plugins: &a"),
        ("webhooks:", "webhooks:\n\t"),
        ("      plugin: echo", "      plugin: nobody"),
        (
            "  enabled: true",
            "  enabled: true\n  listen: ${FROM_ENVIRONMENT}\n  max_body_size: 1${FROM_ENV_FILE}",
        ),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json", "-v"]])
def test_no_error_shows_a_secret(workspace: InProcessWorkspace, old: str, new: str, form: list[str]) -> None:
    """The error about a mistake in the configuration has no secret."""
    assert old in CONFIG
    (workspace.directory / "config.yaml").write_text(CONFIG.replace(old, new))
    for words in (["config", "check"], ["config", "show"], ["config", "set", "service.name", "x"]):
        result = workspace.ductile(*words, *form)
        leaks = [name for name, canary in CANARIES.items() if canary in result.out + result.err]
        assert leaks == [], (words, result.out + result.err)
        assert "Traceback" not in result.err


def test_a_secret_that_is_set_is_not_echoed(workspace: InProcessWorkspace) -> None:
    """The new value and the old one are masked in the diff."""
    for value in ("canary-new-4711", "[canary-new-4711", '"\\x63anary-new-4711"'):
        result = workspace.ductile("config", "set", "plugins.echo.config.api_key", value, "--dry-run")
        assert "canary" not in result.out + result.err
