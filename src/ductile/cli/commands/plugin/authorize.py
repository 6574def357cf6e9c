"""`ductile plugin authorize`: connects a plugin to an account with the OAuth commands of the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ductile.cli.client import connect_to_daemon, send_request
from ductile.cli.console.console import escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.cli.client import Document
    from ductile.cli.commands.plugin.redirect import AuthorizationResponse
    from ductile.core.json import JsonObject

_START, _CALLBACK = "oauth_start", "oauth_callback"


@action(
    "authorize",
    "connect a plugin to an account (OAuth)",
    arguments=(Argument("NAME", "the plugin, as it is configured"),),
    options=(
        Option("--port NUMBER", "listen for the browser on this port of 127.0.0.1; if not given, a free one"),
        Option("--no-browser", "print the address and do not open a browser"),
        Option("--device", "with a code that you enter on another device, if the service has that"),
        Option(
            "--code ADDRESS",
            "complete what was begun: the address that the browser was sent to, or - to read it from "
            "standard input",
        ),
        Option("--dry-run", "print the address that would be opened, and store nothing"),
    ),
    about="Runs the plugin's command oauth_start, has you agree in a browser, and completes it with "
    "oauth_callback, which keeps the grant in the plugin's state. The browser returns to a port of this "
    "machine; from another machine, paste the address that it ends at. An authorisation has ten minutes.",
    examples=(
        Example("ductile plugin authorize withings", "open a browser and wait until you have agreed"),
        Example(
            "ductile plugin authorize withings --no-browser",
            "on a server: paste the address that a browser elsewhere ends at",
        ),
        Example("ductile plugin authorize withings --dry-run", "only see which address it would be"),
    ),
)
def authorize(invocation: Invocation) -> CommandResult:
    from ductile.errors import UsageError

    name = invocation.text("NAME")
    options = [option for option in ("device", "code", "dry_run") if invocation.arguments.get(option)]
    if len(options) > 1:
        names = " and ".join(f"--{option.replace('_', '-')}" for option in options)
        raise UsageError(f"{names} cannot be combined")
    if (address := invocation.optional("code")) is not None:
        import sys

        from ductile.cli.commands.plugin.redirect import parse_response

        response = parse_response(sys.stdin.readline() if address == "-" else address, None)
        return _complete(invocation, name, response)
    if invocation.switch("dry_run"):
        return _show_address(invocation, name)
    return _by_device(invocation, name) if invocation.switch("device") else _by_browser(invocation, name)


def _by_browser(invocation: Invocation, name: str) -> CommandResult:
    from contextlib import ExitStack
    from urllib.parse import parse_qs, urlsplit

    from ductile.cli.commands.plugin import redirect

    with ExitStack() as stack:
        port = _port(invocation)
        listener = stack.enter_context(redirect.listening_socket(port))
        local_uri = f"http://127.0.0.1:{listener.getsockname()[1]}{redirect.PATH}"
        start_result = _run_for_result(invocation, name, _START, {"redirect_uri": local_uri})
        url, uri = str(start_result["url"]), str(start_result["redirect_uri"])
        address = redirect.local_address(uri)
        if uri != local_uri:
            listener.close()
            if address is not None:
                listener = stack.enter_context(redirect.listening_socket(address.port or 0))
        _open_address(invocation, url, uri, listens=address is not None)
        state = parse_qs(urlsplit(url).query).get("state", [None])[0]
        path = (address.path if address is not None else "") or "/"
        response = redirect.wait_for_response(
            listener if address is not None else None, path, state, float(start_result["expires_in"]), _note
        )
    return _complete(invocation, name, response)


def _by_device(invocation: Invocation, name: str) -> CommandResult:
    """Run oauth_callback until the user has entered the code. Each job asks the service until its timeout."""
    from time import monotonic

    from ductile.errors import TooSlowError

    start_result = _run_for_result(invocation, name, _START, {"flow": "device"})
    _note(f"Open {start_result['url']} on any device and enter the code {start_result['user_code']}")
    deadline = monotonic() + float(start_result["expires_in"])
    while monotonic() < deadline:
        job = _run_job(invocation, name, _CALLBACK, {"flow": "device"})
        if job["status"] == "succeeded":
            return _connected(name, job)
        if "has not confirmed yet" not in str(job["last_error"]):
            raise _failure(job)
    raise TooSlowError("the code was not entered in time", hint="Run the command again.")


def _complete(invocation: Invocation, name: str, response: AuthorizationResponse) -> CommandResult:
    job = _run_job(invocation, name, _CALLBACK, dict(response))
    if job["status"] != "succeeded":
        raise _failure(job)
    return _connected(name, job)


def _connected(name: str, job: Document) -> CommandResult:
    data = {"plugin": name, "connected": True, "job_id": job["job_id"]}
    return CommandResult(data, f"{name} is connected.")


def _port(invocation: Invocation) -> int:
    from ductile.errors import UsageError

    text = invocation.optional("port") or "0"
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise UsageError(f"--port needs a number up to 65535, not {text!r}")
    return int(text)


def _open_address(invocation: Invocation, url: str, redirect_uri: str, *, listens: bool) -> None:
    """Open the address in a browser if there is a screen, and say on standard error what to do."""
    import sys
    import webbrowser

    opened = False
    if listens and not invocation.switch("no_browser") and sys.stderr.isatty():
        # Without a screen, a browser in this terminal would take it over.
        has_screen = sys.platform == "darwin" or any(
            map(invocation.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
        )
        opened = has_screen and webbrowser.open(url)
    _note(f"{'Your browser opens' if opened else 'Open'} this address and agree:\n\n  {url}\n")
    if listens:
        _note(
            f"Waiting for the browser at {redirect_uri}. If it runs on another machine, paste the address "
            "that it ends at:"
        )
    else:
        _note(
            f"Then paste the address that the browser ends at, which begins with {redirect_uri}. If a "
            "webhook endpoint receives it there, you are done: press Ctrl-C."
        )


def _note(text: str) -> None:
    """Print to standard error, escaped: addresses and codes of the service may hold escape sequences."""
    import sys

    print(escape_controls(text), file=sys.stderr, flush=True)


# -- the jobs


def _run_for_result(invocation: Invocation, name: str, command: str, payload: JsonObject) -> dict[str, Any]:
    """Return the result of a job, an object. Raises RefusedError with the reason if the job failed."""
    job = _run_job(invocation, name, command, payload)
    result = (job["result"] or {}).get("result")
    if job["status"] != "succeeded" or not isinstance(result, dict):
        raise _failure(job)
    return result


def _run_job(invocation: Invocation, name: str, command: str, payload: JsonObject) -> Document:
    """Run one job, in the daemon or in this process."""
    from ductile.cli import run_job
    from ductile.errors import NotFoundError

    fields: JsonObject = {"name": name, "command": command, "payload": payload, "max_attempts": 1}
    connection = connect_to_daemon(invocation)
    try:
        if connection is None:
            return run_job.run_in_process(invocation, operation="run.start", fields=fields).job
        submission = send_request(invocation, connection, "run.start", fields)
    except NotFoundError as missing:
        if command in missing.message:
            missing.hint = f"{name} does not connect to accounts by OAuth."
        raise
    with run_job.hint_on_interrupt(str(submission["job_id"])):
        return run_job.wait_for(invocation, submission).job


def _failure(job: Document) -> Exception:
    from ductile.errors import RefusedError

    return RefusedError(
        f"{job['plugin']} {job['command']} failed: {job['last_error'] or job['reason']}",
        hint=f"ductile job show {job['job_id']}",
        details={"job_id": job["job_id"]},
    )


def _show_address(invocation: Invocation, name: str) -> CommandResult:
    """Run the plugin outside of the queue, so that nothing is stored, and return the address."""
    import asyncio
    from datetime import UTC, datetime

    from ductile.admin.plugin_dev import run_once
    from ductile.cli.commands.plugin.redirect import PATH, listening_socket
    from ductile.core.jobs.model import Completed
    from ductile.errors import RefusedError, UsageError
    from ductile.protocol.plugin_messages import PluginRequest, encode_request

    if invocation.remote is not None:
        raise UsageError(
            "--dry-run is for the machine of the daemon: the plugin's configuration is there",
            hint="Without --dry-run it works from here.",
        )
    plugin = run_once.find_runnable_plugin(invocation.config, invocation.environ, name)
    with listening_socket(_port(invocation)) as listener:
        port = listener.getsockname()[1]
    request = PluginRequest(
        job_id="dry-run",
        command=_START,
        instance=name,
        config=plugin.config,
        state={},
        context={},
        deadline_at=datetime.now(UTC) + plugin.timeout_for(_START),
        payload={"redirect_uri": f"http://127.0.0.1:{port}{PATH}"},
        event=None,
    )
    execution = asyncio.run(
        run_once.run_request(invocation.config, invocation.environ, name, encode_request(request))
    )
    outcome = execution.interpretation.outcome
    if not isinstance(outcome, Completed) or not isinstance(outcome.response.result, dict):
        raise RefusedError(f"{name} {_START} failed: {execution.error or 'it gives no address'}")
    url = str(outcome.response.result.get("url"))
    return CommandResult({"plugin": name, "url": url, "dry_run": True}, escape_controls(url))
