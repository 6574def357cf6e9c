"""Values under secret-looking keys, and tokens in URLs, are neither shown nor stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builders.http import an_api, an_api_workspace
from ductile.errors import Exit

if TYPE_CHECKING:
    from pathlib import Path

KEYS = (
    *(
        "pass",
        "smtp_pass",
        "dbpassword",
        "PGPASSWORD",
        "clientsecret",
        "secretkey",
        "privatekey",
        "accesskey",
    ),
    *("accesstoken", "refreshtoken", "authtoken", "auth", "basic_auth", "secret_id", "sessionid", "tls_key"),
    *("github_pat", "webhook_url", "connection_string"),
)
VALUES = {key: f"literal-{index:02}-4711" for index, key in enumerate(KEYS)}
URLS = {
    "urls": ["tgram://literal-50-4711/chat", "pover://literal-51-4711@literal-52-4711"],
    "repository": "https://literal-53-4711@git.example/x",
    "proxy": "socks5://user:literal-54-4711@proxy.example",
}
PLAIN = {"author": "visible-1", "max_tokens": 77001, "compass": "visible-2", "store": "s3://visible-3/key"}


def test_no_surface_shows_or_stores_their_values(tmp_path: Path) -> None:
    config = json.dumps(VALUES | URLS | PLAIN)
    workspace = an_api_workspace(tmp_path, f"  noted:\n    uses: echo\n    config: {config}\n", scopes=("*",))
    outputs: dict[str, str] = {}
    commands = (
        ("config", "show"),
        ("config", "show", "--json"),
        ("config", "get", "plugins.noted.config"),
        ("config", "check"),
        ("config", "set", "plugins.noted.config.author", "author", "--dry-run"),
        ("plugin", "show", "noted"),
        ("plugin", "show", "noted", "--json"),
    )
    with an_api(workspace) as api:
        job = api.post("/plugin/noted/poll")
        api.ended(job["job_id"])
        for path in ("/config/view", "/plugin/noted", "/plugins", f"/job/{job['job_id']}"):
            outputs[path] = json.dumps(api.get(path))
        for words in commands:
            result = workspace.ductile(*words)
            assert result.status == Exit.OK, result
            outputs[" ".join(words)] = result.out + result.err
        outputs["log"] = json.dumps(api.daemon.whole_log())
    for file in (workspace.config.parent / "data").rglob("*"):
        if file.is_file():
            outputs[file.name] = file.read_bytes().decode(errors="replace")
    assert "state.db" in outputs
    for source, text in outputs.items():
        assert "literal-" not in text, source
    for source in ("/config/view", "config show", "plugin show noted --json", "state.db"):
        for value in ("visible-1", "77001", "visible-2", "s3://visible-3/key"):
            assert value in outputs[source], source


def test_each_of_them_has_one_warning(tmp_path: Path) -> None:
    config = json.dumps(VALUES | URLS | PLAIN)
    workspace = an_api_workspace(tmp_path, f"  noted:\n    uses: echo\n    config: {config}\n", scopes=("*",))
    assert workspace.ductile("config", "lock").status == Exit.OK
    warnings = workspace.json("config", "check")["warnings"]
    warned = [warning["key"] for warning in warnings if warning["key"].startswith("plugins.")]
    expected = [f"plugins.noted.config.{key}" for key in (*KEYS, "urls[0]", "urls[1]", "repository", "proxy")]
    assert sorted(warned) == sorted(expected)
