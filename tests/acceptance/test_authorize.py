"""`ductile plugin authorize`: an account is connected as a user does it, and stays connected after a kill."""

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


def a_workspace_with(directory: Path, service: FakeWithings, **config: str) -> Workspace:
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


class Authorizing:
    """The command while it waits for the user."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.shown = ""

    def url(self) -> str:
        """The address that it prints."""
        assert self.process.stderr is not None
        while (found := re.search(r"^  (http\S+)$", self.shown, re.MULTILINE)) is None:
            line = self.process.stderr.readline()
            assert line, self.shown
            self.shown += line
        return found[1]

    def end(self, typed: str | None = None) -> tuple[int, str]:
        out, err = self.process.communicate(typed, timeout=PATIENCE)
        self.shown += err
        return self.process.returncode, out


@contextmanager
def authorizing(workspace: Workspace, *words: str) -> Iterator[Authorizing]:
    process = subprocess.Popen(
        [DUCTILE, "plugin", "authorize", "withings", "--config", str(workspace.config), *words],
        env={"PATH": os.environ["PATH"], "HOME": str(workspace.config.parent), "LANG": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Authorizing(process)
    finally:
        process.kill()
        process.communicate()


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """The browser of another machine, which cannot reach the redirect address."""


def agree_elsewhere(url: str) -> str:
    """Agree, and return the address that the browser is sent to."""
    with pytest.raises(urllib.error.HTTPError) as sent:
        urllib.request.build_opener(_Stay).open(url)
    sent.value.close()
    return str(sent.value.headers["Location"])


def agree(url: str) -> str:
    """Agree in a browser on this machine; the page that it ends at."""
    with urllib.request.urlopen(url) as page:  # noqa: S310 - of the fake
        return str(page.read().decode())


def polled(workspace: Workspace) -> str:
    return str(workspace.json("run", "withings", "poll")["result"]["result"])


@pytest.mark.parametrize("running", [True, False], ids=["daemon", "offline"])
def test_an_account_is_connected_by_a_browser(running: bool, service: FakeWithings, tmp_path: Path) -> None:
    """The browser returns to a port of this machine. With a daemon and without one."""
    workspace = a_workspace_with(tmp_path, service)
    service.weigh(80)

    def connect() -> None:
        with authorizing(workspace) as waiting:
            assert "You can close this page" in agree(waiting.url())
            assert waiting.end() == (0, "withings is connected.\n")
        assert polled(workspace) == "1 new"

    if running:
        with a_daemon(workspace):
            connect()
    else:
        connect()


def test_no_token_and_no_verifier_is_shown(service: FakeWithings, tmp_path: Path) -> None:
    """Neither in jobs nor in the state; the code is in the payload, and can be used once."""
    workspace = a_workspace_with(tmp_path, service)
    with authorizing(workspace) as waiting:
        agree(waiting.url())
        waiting.end()
    tokens = [*service.grants[0].access_tokens, *service.grants[0].refresh_tokens]
    (exchange,) = service.calls_to("/v2/oauth2")
    hidden = [*tokens, exchange.form["code_verifier"], service.client_secret]
    shown = [json.dumps(workspace.json("plugin", "state", "withings"))]
    jobs = workspace.json("job", "list")["jobs"]
    assert [job["command"] for job in jobs] == ["oauth_callback", "oauth_start"]
    shown += [json.dumps(workspace.json("job", "show", job["job_id"])) for job in jobs]
    shown += [workspace.ductile("job", "logs", job["job_id"], "--json").out for job in jobs]
    assert not [text for text in hidden if any(text in each for each in shown)]


def test_the_address_can_be_pasted(service: FakeWithings, tmp_path: Path) -> None:
    """The browser runs on another machine. What is no such address is named, and asked for again."""
    workspace = a_workspace_with(tmp_path, service)
    with authorizing(workspace, "--no-browser") as waiting:
        address = agree_elsewhere(waiting.url())
        assert waiting.process.stdin is not None
        waiting.process.stdin.write("https://example.com/?nothing=1\n")
        waiting.process.stdin.flush()
        assert waiting.process.stderr is not None
        while "neither `code` nor `error`" not in waiting.shown:
            waiting.shown += waiting.process.stderr.readline()
        assert waiting.end(address + "\n")[0] == 0


def test_an_authorisation_can_be_completed_later(service: FakeWithings, tmp_path: Path) -> None:
    """For a redirect address that this machine cannot listen at: begin, agree, then --code."""
    workspace = a_workspace_with(tmp_path, service, redirect_uri=PUBLIC)
    with authorizing(workspace) as waiting:
        address = agree_elsewhere(waiting.url())
        assert address.startswith(PUBLIC)
        status, _ = waiting.end("")
        assert status == 2
    assert workspace.ductile("plugin", "authorize", "withings", "--code", address).status == 0
    assert polled(workspace) == "0 new"
    again = workspace.ductile("plugin", "authorize", "withings", "--code", address.replace("code=", "code=x"))
    assert again.status == 1
    assert "completed already" in again.err


def test_a_redirect_of_another_authorisation_is_passed_over(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, service)
    with authorizing(workspace) as waiting:
        url = waiting.url()
        address = agree_elsewhere(url)
        for wrong in (re.sub(r"state=\w", "state=!", address), address.replace("/callback", "/favicon.ico")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(wrong)  # noqa: S310 - of the command itself
            refused.value.close()
        assert waiting.process.poll() is None
        agree(address)
        assert waiting.end()[0] == 0


def test_a_refusal_of_the_user_is_reported(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, service)
    service.denies = True
    with authorizing(workspace) as waiting:
        assert "Not authorised" in agree(waiting.url())
        assert waiting.end()[0] == 1
        assert "access_denied" in waiting.shown


def test_a_dry_run_prints_the_address_and_stores_nothing(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, service)
    shown = workspace.ductile("plugin", "authorize", "withings", "--dry-run")
    assert shown.status == 0
    assert shown.out.startswith(f"{service.url}/oauth2_user/authorize2?")
    assert workspace.json("job", "list")["jobs"] == []
    assert workspace.json("plugin", "state", "withings")["state"] == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("echo",), "does not connect to accounts by OAuth"),
        (("withings", "--device", "--dry-run"), "cannot be combined"),
        (("withings", "--port", "x"), "--port needs a number"),
        (("withings", "--code", "https://example.com/"), "expected the whole address"),
        (("withings", "--device"), "has no device flow"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], told: str, service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, service)
    ran = workspace.ductile("plugin", "authorize", *words)
    assert ran.status in (1, 2)
    assert told in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("victim", ["plugin", "both"])
def test_a_grant_survives_the_death_of_the_plugin_and_of_the_daemon(
    victim: str, service: FakeWithings, tmp_path: Path
) -> None:
    """Killed at the first use of a new access token, when the old refresh token is already invalid and the
    state still has it. The provider gives no grace.
    """
    service.rotation = Rotation.STRICT
    workspace = a_workspace_with(tmp_path, service)
    with authorizing(workspace) as waiting:
        agree(waiting.url())
        assert waiting.end()[0] == 0
    service.expire_access_tokens()
    service.weigh(80)
    with a_daemon(workspace) as daemon:
        killed: list[int] = []

        def kill(call: Call) -> None:
            is_new = service.calls_to("/v2/oauth2")[1:] and call.path == "/measure"
            if is_new and not killed:
                victims = [int(pid) for pid in processes_of(workspace)]
                killed.extend(victims)
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
        assert killed
    if victim == "both":
        with a_daemon(workspace):
            assert workspace.json("job", "wait", submitted["job_id"])["status"] == "succeeded"
    grant = workspace.json("plugin", "state", "withings")["state"]["oauth"]["grant"]
    assert grant["number"] == 2, "what the killed process had obtained is in the state"
    assert len(service.calls_to("/v2/oauth2")) == 2, "one exchange, one refresh"


def processes_of(workspace: Workspace) -> Iterator[str]:
    """The processes that run the plugin of this place."""
    wanted = f"DUCTILE_DATA_DIR={workspace.config.parent}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment and b"DUCTILE_PLUGIN=withings" in environment:
                yield entry.name


def test_what_a_service_sends_does_not_control_the_terminal(tmp_path: Path) -> None:
    """The code and the address of the device flow come from the service."""
    workspace = a_workspace(tmp_path, "  lamp: {}\n")
    sent = {"flow": "device", "user_code": "\x1b]0;owned\x07AB-12", "url": "https://x.example/\x1b[2J"}
    script = answering({"status": "ok", "result": {**sent, "expires_in": 0}})
    manifest = a_manifest("lamp").replace("health]", "health, oauth_start, oauth_callback]")
    a_plugin(workspace.config.parent / "plugins", "lamp", manifest=manifest, script=script)
    ran = workspace.ductile("plugin", "authorize", "lamp", "--device")
    assert "AB-12" in ran.err, ran
    assert "\x1b" not in ran.err
