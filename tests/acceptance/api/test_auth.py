"""Authentication: both kinds of tokens, switched by a reload, and limits on wrong tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from builders.daemons import answering
from builders.http import SCOPES, Api, EventReader, an_api, an_api_workspace, token_for
from ductile.api.endpoints import ENDPOINTS


def test_tokens_switch_with_a_reload(tmp_path: Path) -> None:
    """The new token is accepted, the old one is refused, and no connection is dropped."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        assert api.ask("GET", "/jobs", token=token_for("jobs:ro")).status == 200
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace(token_for("jobs:ro"), "another-value"))
        assert workspace.ductile("config", "lock").status == 0
        assert api.post("/system/reload", status=200)["message"] == "The new configuration is in force."
        assert api.ask("GET", "/jobs", token=token_for("jobs:ro")).code == "unauthorized"
        assert api.ask("GET", "/jobs", token="another-value").status == 200


def test_a_repeated_call_is_one_after_another_token_is_gone(tmp_path: Path) -> None:
    """The keys of a token without a name are its own, whatever tokens stand before it."""
    workspace = an_api_workspace(tmp_path)
    text = workspace.config.read_text()
    first_token = '      - {token: first-of-two, scopes: ["*"]}\n'
    second_token = '      - {token: second-of-two, scopes: ["*"]}\n'
    workspace.config.write_text(text.replace("    tokens:\n", f"    tokens:\n{first_token}{second_token}"))
    call = partial(Api.post, path="/plugin/echo/poll", headers={"Idempotency-Key": "once"})
    with an_api(workspace) as api:
        first_job = call(api, token="second-of-two")
        other_job = call(api, token="first-of-two")
        assert other_job["deduplicated"] is False
        workspace.config.write_text(workspace.config.read_text().replace(first_token, ""))
        assert workspace.ductile("config", "lock").status == 0
        api.post("/system/reload", status=200)
        repeated = call(api, token="second-of-two")
        assert (repeated["job_id"], repeated["deduplicated"]) == (first_job["job_id"], True)


def test_a_command_in_the_body_needs_the_right_to_run_it(tmp_path: Path) -> None:
    """A token for the reading commands of a plugin may not run a writing one that the body names."""
    workspace = an_api_workspace(tmp_path, "  mixed: {}\n", scopes=(*SCOPES, "mixed:ro"))
    manifest = workspace.plugin("mixed", answering({"status": "ok"})) / "manifest.yaml"
    commands = "commands: [{name: poll, type: read}, {name: handle, type: write}]"
    manifest.write_text(manifest.read_text().replace("commands: [poll, handle, health]", commands))
    with an_api(workspace) as api:
        token = token_for("mixed:ro")
        for path, body in (
            ("/plugin/mixed/handle", {}),
            ("/plugin/mixed", {"command": "handle"}),
            ("/plugin/mixed", {"payload": {}}),
        ):
            response = api.ask("POST", path, body, token=token)
            assert (response.status, response.code) == (403, "denied"), (path, body)
        assert api.post("/plugin/mixed", {}, token=token)["command"] == "poll"


def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    """A token that is taken away reads nothing more, also on a stream that it has opened."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api, EventReader(api) as reader:
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace(token_for("events:ro"), "another-value"))
        assert workspace.ductile("config", "lock").status == 0
        api.post("/system/reload", status=200)
        reader.wait_for_end()
        assert api.ask("GET", "/events", token=token_for("events:ro")).code == "unauthorized"


def test_a_slow_body_does_not_keep_a_token_alive(tmp_path: Path) -> None:
    """A token that was taken away while its caller was still sending starts nothing."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api, api.connect() as caller:
        auth = f"Authorization: Bearer {token_for('plugin:rw')}\r\nExpect: 100-continue\r\n"
        head = f"POST /plugin/echo/poll HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 2\r\n\r\n"
        caller.sendall(head.encode())
        assert caller.recv(65536).startswith(b"HTTP/1.1 100 ")
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace(token_for("plugin:rw"), "another-value"))
        assert workspace.ductile("config", "lock").status == 0
        api.post("/system/reload", status=200)
        caller.sendall(b"{}")
        assert caller.recv(65536).startswith(b"HTTP/1.1 401 ")
        assert api.get("/jobs")["jobs"] == []


def test_a_reload_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    """The response lists the problems; a reload cannot change an address."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        text = workspace.config.read_text()
        workspace.config.write_text(text + "  nobody: {nonsense: 1}\n")
        response = api.ask("POST", "/system/reload")
        assert response.status == 422
        assert response.code in ("config_invalid", "integrity_violation")
        assert response.body["error"]["details"]["problems"]
        workspace.config.write_text(text.replace("listen: localhost:0", "listen: localhost:1"))
        assert workspace.ductile("config", "lock").status == 0
        assert api.ask("POST", "/system/reload").code == "conflict"
        assert api.ask("GET", "/jobs").status == 200


def test_scope_files_open_the_api_too(tmp_path: Path) -> None:
    """`tokens` with a scopes file authenticate; an entry without scopes is a secret only."""
    tokens = (
        "tokens:\n  - {name: bot, key: bots-key, scopes_file: bot.json}\n  - {name: hook, key: hooks-key}\n"
    )
    workspace = an_api_workspace(tmp_path, more=tokens)
    (workspace.config.parent / "bot.json").write_text('{"scopes": ["read:jobs", "echo:rw"]}')
    with an_api(workspace) as api:
        assert api.ask("GET", "/jobs", token="bots-key").status == 200
        assert api.post("/plugin/echo/poll", token="bots-key")["status"] == "queued"
        assert api.ask("POST", "/system/reload", token="bots-key").status == 403
        assert api.ask("GET", "/jobs", token="hooks-key").status == 401


def test_a_request_through_a_proxy_learns_little_about_health(tmp_path: Path) -> None:
    """Peers that are not loopback get `status` only; behind a proxy every peer seems to be loopback."""
    with an_api(an_api_workspace(tmp_path)) as api:
        for path in ("/healthz", "/readyz"):
            assert "queue_depth" in api.ask("GET", path).body
            for header in ("X-Forwarded-For", "Forwarded"):
                response = api.ask("GET", path, headers={header: "for=203.0.113.7"})
                assert (response.status, set(response.body)) == (200, {"status", "message"})


def test_guessing_is_slowed_down_and_honest_callers_are_not(tmp_path: Path) -> None:
    """Too many wrong tokens are answered 429 with Retry-After; a right token still passes."""
    with an_api(an_api_workspace(tmp_path)) as api:
        statuses = [api.ask("GET", "/jobs", token=f"guess-{number}").status for number in range(15)]
        assert statuses == [401] * 10 + [429] * 5
        response = api.ask("GET", "/jobs", token="guess")
        assert response.code == "too_many"
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert api.ask("GET", "/jobs").status == 200
        assert api.ask("GET", "/jobs", token=None).status == 401
        assert b"ductile_http_unauthorized_total 16.0\n" in api.ask("GET", "/metrics").content
        levels = [line["level"] for line in api.daemon.whole_log() if line["signal"] == "api.unauthorized"]
        assert levels == ["warn"] * 10 + ["debug"] * 6  # a flood of wrong tokens does not flood the log


def test_the_catalogue_is_closed_where_others_can_reach_it(tmp_path: Path) -> None:
    """The catalogue is open on loopback; elsewhere it needs `api.open_discovery` or any token."""
    workspace = an_api_workspace(tmp_path)
    workspace.config.write_text(
        workspace.config.read_text().replace("listen: localhost:0", "listen: 0.0.0.0:0")
    )
    with an_api(workspace) as api:
        catalogue = [endpoint.http.path for endpoint in ENDPOINTS if endpoint.access.discovery]
        assert len(catalogue) == 4
        for path in (path.replace("{plugin}", "echo") for path in catalogue):
            assert api.ask("GET", path, token=None).status == 401
            assert api.ask("GET", path, token="nobody's").status == 401
            for scope in SCOPES:
                assert api.ask("GET", path, token=token_for(scope)).status == 200
        assert api.ask("GET", "/topology", token=token_for("jobs:ro")).status == 403
        assert api.ask("GET", "/healthz", token=None).status == 200
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace("api:\n", "api:\n  open_discovery: true\n"))
        assert workspace.ductile("config", "lock").status == 0
        api.post("/system/reload", status=200)
        assert api.ask("GET", "/skills", token=None).status == 200


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    """The daemon names the address, says what to do, and does not start."""
    workspace = an_api_workspace(tmp_path / "one")
    with an_api(workspace) as api:
        second_workspace = an_api_workspace(tmp_path / "two")
        second_workspace.config.write_text(
            second_workspace.config.read_text().replace("localhost:0", f"127.0.0.1:{api.port}")
        )
        assert second_workspace.ductile("config", "lock").status == 0
        result = second_workspace.ductile("system", "start")
        assert result.status == 1
        assert f"the api cannot listen at 127.0.0.1:{api.port}" in result.err
        assert "`ductile config set api.listen 127.0.0.1:" in result.err
        assert "Traceback" not in result.err


def test_without_the_api_nothing_listens(tmp_path: Path) -> None:
    """The API is off by default."""
    from builders.daemons import a_daemon, a_workspace  # noqa: PLC0415 - the only daemon here without it

    with a_daemon(a_workspace(tmp_path)) as daemon:
        assert not [line for line in daemon.whole_log() if line["component"] == "api"]


def test_the_token_of_a_forbidden_request_is_named_in_the_log(tmp_path: Path) -> None:
    """Every request is logged with the name of its token, also a refused one."""
    with an_api(an_api_workspace(tmp_path)) as api:
        assert api.ask("POST", "/plugin/echo/poll", token=token_for("jobs:ro")).code == "denied"
        line = api.daemon.wait_for("api.request", lambda line: line["path"] == "/plugin/echo/poll")
        assert (line["status"], line["token"]) == (403, "jobs:ro")
