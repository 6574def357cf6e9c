"""`ductile plugin authorize` connects an account, which stays connected after a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import PATIENCE, Workspace, a_daemon, a_workspace, answering
from builders.plugins import a_manifest, a_plugin
from builders.shipped import ROOT
from builders.terminal import DUCTILE
from fakes.oauth_server import Rotation
from fakes.service import Call
from fakes.withings import FakeWithings

PUBLIC = "https://ductile.example.com/oauth"


@pytest.fixture
def service() -> Iterator[FakeWithings]:
    with FakeWithings() as service:
        yield service


def a_withings_workspace(directory: Path, service: FakeWithings, **config: str) -> Workspace:
    workspace = a_workspace(directory)
    settings: dict[str, Any] = {
        "client_id": service.client_id,
        "client_secret": service.client_secret,
        "base_url": service.url,
        "auth_url": service.url,
        **config,
    }
    retry = "{max_attempts: 4, backoff_base: 1ms}"
    workspace.config.write_text(
        f"plugin_roots: [{ROOT}]\n"
        f"plugins:\n  withings: {{retry: {retry}, config: {json.dumps(settings)}}}\n  echo: {{}}\n"
    )
    return workspace


class AuthorizeCommand:
    """The running command, which waits for the user."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.output = ""

    def url(self) -> str:
        """Return the address that the command prints."""
        assert self.process.stderr is not None
        while (match := re.search(r"^  (http\S+)$", self.output, re.MULTILINE)) is None:
            line = self.process.stderr.readline()
            assert line, self.output
            self.output += line
        return match[1]

    def end(self, input_text: str | None = None) -> tuple[int, str]:
        out, err = self.process.communicate(input_text, timeout=PATIENCE)
        self.output += err
        return self.process.returncode, out


@contextmanager
def an_authorize_command(workspace: Workspace, *words: str) -> Iterator[AuthorizeCommand]:
    process = subprocess.Popen(
        [DUCTILE, "plugin", "authorize", "withings", "--config", str(workspace.config), *words],
        env={"PATH": os.environ["PATH"], "HOME": str(workspace.config.parent), "LANG": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield AuthorizeCommand(process)
    finally:
        process.kill()
        process.communicate()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Stay: the browser of another machine cannot reach the redirect address."""


def agree_elsewhere(url: str) -> str:
    """Agree, and return the address that the browser is sent to."""
    with pytest.raises(urllib.error.HTTPError) as redirect:
        urllib.request.build_opener(_NoRedirect).open(url)
    redirect.value.close()
    return str(redirect.value.headers["Location"])


def agree(url: str) -> str:
    """Agree in a browser on this machine, and return the page where the browser ends."""
    with urllib.request.urlopen(url) as page:  # noqa: S310 - of the fake
        return str(page.read().decode())


def poll_result(workspace: Workspace) -> str:
    return str(workspace.json("run", "withings", "poll")["result"]["result"])


@pytest.mark.parametrize("running", [True, False], ids=["daemon", "offline"])
def test_an_account_is_connected_by_a_browser(running: bool, service: FakeWithings, tmp_path: Path) -> None:
    """The browser returns to a port of this machine, with a daemon and without one."""
    workspace = a_withings_workspace(tmp_path, service)
    service.weigh(80)

    def connect() -> None:
        with an_authorize_command(workspace) as command:
            assert "You can close this page" in agree(command.url())
            assert command.end() == (0, "withings is connected.\n")
        assert poll_result(workspace) == "1 new"

    if running:
        with a_daemon(workspace):
            connect()
    else:
        connect()


def test_no_token_and_no_verifier_is_shown(service: FakeWithings, tmp_path: Path) -> None:
    """Neither jobs nor the state show them. The payload has the code, which can be used only once."""
    workspace = a_withings_workspace(tmp_path, service)
    with an_authorize_command(workspace) as command:
        agree(command.url())
        command.end()
    tokens = [*service.grants[0].access_tokens, *service.grants[0].refresh_tokens]
    (exchange,) = service.calls_to("/v2/oauth2")
    secrets = [*tokens, exchange.form["code_verifier"], service.client_secret]
    outputs = [json.dumps(workspace.json("plugin", "state", "withings"))]
    jobs = workspace.json("job", "list")["jobs"]
    assert [job["command"] for job in jobs] == ["oauth_callback", "oauth_start"]
    outputs += [json.dumps(workspace.json("job", "show", job["job_id"])) for job in jobs]
    outputs += [workspace.ductile("job", "logs", job["job_id"], "--json").out for job in jobs]
    assert not [text for text in secrets if any(text in output for output in outputs)]


def test_the_address_can_be_pasted(service: FakeWithings, tmp_path: Path) -> None:
    """The browser runs on another machine. The command names the fault of another address and asks again."""
    workspace = a_withings_workspace(tmp_path, service)
    with an_authorize_command(workspace, "--no-browser") as command:
        address = agree_elsewhere(command.url())
        assert command.process.stdin is not None
        command.process.stdin.write("https://example.com/?nothing=1\n")
        command.process.stdin.flush()
        assert command.process.stderr is not None
        while "neither `code` nor `error`" not in command.output:
            command.output += command.process.stderr.readline()
        assert command.end(address + "\n")[0] == 0


def test_an_authorisation_can_be_completed_later(service: FakeWithings, tmp_path: Path) -> None:
    """If this machine cannot listen at the redirect address, `--code` completes the authorisation."""
    workspace = a_withings_workspace(tmp_path, service, redirect_uri=PUBLIC)
    with an_authorize_command(workspace) as command:
        address = agree_elsewhere(command.url())
        assert address.startswith(PUBLIC)
        status, _ = command.end("")
        assert status == 2
    assert workspace.ductile("plugin", "authorize", "withings", "--code", address).status == 0
    assert poll_result(workspace) == "0 new"
    repeated = workspace.ductile(
        "plugin", "authorize", "withings", "--code", address.replace("code=", "code=x")
    )
    assert repeated.status == 1
    assert "completed already" in repeated.err


def test_a_redirect_of_another_authorisation_is_passed_over(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_withings_workspace(tmp_path, service)
    with an_authorize_command(workspace) as command:
        url = command.url()
        address = agree_elsewhere(url)
        for wrong_url in (
            re.sub(r"state=\w", "state=!", address),
            address.replace("/callback", "/favicon.ico"),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(wrong_url)  # noqa: S310 - of the command itself
            refused.value.close()
        assert command.process.poll() is None
        agree(address)
        assert command.end()[0] == 0


def test_a_refusal_of_the_user_is_reported(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_withings_workspace(tmp_path, service)
    service.denies = True
    with an_authorize_command(workspace) as command:
        assert "Not authorised" in agree(command.url())
        assert command.end()[0] == 1
        assert "access_denied" in command.output


def test_a_dry_run_prints_the_address_and_stores_nothing(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_withings_workspace(tmp_path, service)
    result = workspace.ductile("plugin", "authorize", "withings", "--dry-run")
    assert result.status == 0
    assert result.out.startswith(f"{service.url}/oauth2_user/authorize2?")
    assert workspace.json("job", "list")["jobs"] == []
    assert workspace.json("plugin", "state", "withings")["state"] == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("echo",), "does not connect to accounts by OAuth"),
        (("withings", "--device", "--dry-run"), "cannot be combined"),
        (("withings", "--port", "x"), "--port needs a number"),
        (("withings", "--code", "https://example.com/"), "expected the whole address"),
        (("withings", "--device"), "has no device flow"),
    ],
)
def test_mistakes_are_named(
    words: tuple[str, ...], message: str, service: FakeWithings, tmp_path: Path
) -> None:
    workspace = a_withings_workspace(tmp_path, service)
    result = workspace.ductile("plugin", "authorize", *words)
    assert result.status in (1, 2)
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("victim", ["plugin", "both"])
def test_a_grant_survives_the_death_of_the_plugin_and_of_the_daemon(
    victim: str, service: FakeWithings, tmp_path: Path
) -> None:
    """The kill comes at the first use of a new access token. By then the old refresh token is invalid, the
    state still has it, and the provider gives no grace period.
    """
    service.rotation = Rotation.STRICT
    workspace = a_withings_workspace(tmp_path, service)
    with an_authorize_command(workspace) as command:
        agree(command.url())
        assert command.end()[0] == 0
    service.expire_access_tokens()
    service.weigh(80)
    with a_daemon(workspace) as daemon:
        killed_pids: list[int] = []

        def kill(call: Call) -> None:
            is_new = service.calls_to("/v2/oauth2")[1:] and call.path == "/measure"
            if is_new and not killed_pids:
                victims = [int(pid) for pid in processes_of(workspace)]
                killed_pids.extend(victims)
                if victim == "both":
                    daemon.process.send_signal(signal.SIGKILL)
                for pid in victims:
                    with suppress(ProcessLookupError):  # it may end with the daemon
                        os.kill(pid, signal.SIGKILL)

        service.before = kill
        submitted = workspace.json("run", "withings", "poll", "--no-wait")
        if victim == "both":
            daemon.process.wait(PATIENCE)
        else:
            job = workspace.json("job", "wait", submitted["job_id"])
            assert (job["status"], job["execution"]) == ("succeeded", 2)
        assert killed_pids
    if victim == "both":
        with a_daemon(workspace):
            assert workspace.json("job", "wait", submitted["job_id"])["status"] == "succeeded"
    grant = workspace.json("plugin", "state", "withings")["state"]["oauth"]["grant"]
    assert grant["number"] == 2, "the state has the grant that the killed process obtained"
    assert len(service.calls_to("/v2/oauth2")) == 2, "one exchange, one refresh"


def processes_of(workspace: Workspace) -> Iterator[str]:
    """Yield the ids of the processes that run the plugin of this workspace."""
    variable = f"DUCTILE_DATA_DIR={workspace.config.parent}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if variable in environment and b"DUCTILE_PLUGIN=withings" in environment:
                yield entry.name


def test_what_a_service_sends_does_not_control_the_terminal(tmp_path: Path) -> None:
    """The code and the address of the device flow come from the service."""
    workspace = a_workspace(tmp_path, "  lamp: {}\n")
    authorization = {
        "flow": "device",
        "user_code": "\x1b]0;owned\x07AB-12",
        "url": "https://x.example/\x1b[2J",
    }
    script = answering({"status": "ok", "result": {**authorization, "expires_in": 0}})
    manifest = a_manifest("lamp").replace("health]", "health, oauth_start, oauth_callback]")
    a_plugin(workspace.config.parent / "plugins", "lamp", manifest=manifest, script=script)
    result = workspace.ductile("plugin", "authorize", "lamp", "--device")
    assert "AB-12" in result.err, result
    assert "\x1b" not in result.err
