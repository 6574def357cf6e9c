"""The SDK for Python plugins: a plugin of a few lines keeps the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.plugins import a_manifest
from builders.services import Reply, a_service
from builders.shipped import ROOT, PluginResult, ask, ask_raw

PACKAGE = Path(__file__).parents[3] / "src" / "ductile" / "sdk" / "__init__.py"
HEAD = (
    "#!/usr/bin/env python3\nfrom ductile_sdk import ConfigFailure, Failure, Plugin\n"
    "plugin = Plugin()\n@plugin.command\n"
)


def a_plugin_with_body(directory: Path, body: str) -> Path:
    """Return a plugin whose command `go` has this body."""
    plugin_directory = directory / "it"
    plugin_directory.mkdir()
    plugin_directory.chmod(0o755)
    manifest = a_manifest("it", entrypoint="run.py").replace("[poll, handle, health]", "[go]")
    (plugin_directory / "manifest.yaml").write_text(manifest)
    (plugin_directory / "ductile_sdk.py").write_bytes(PACKAGE.read_bytes())
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (plugin_directory / "run.py").write_text(f"{HEAD}def go(request):\n{lines}plugin.run()\n")
    (plugin_directory / "run.py").chmod(0o755)
    return plugin_directory


def run_body(directory: Path, body: str, **request: Any) -> PluginResult:
    return ask(a_plugin_with_body(directory, body), "go", **request)


def test_the_copy_that_shipped_plugins_use_is_the_package_s() -> None:
    """After a change: `cp src/ductile/sdk/__init__.py plugins/lib/ductile_sdk/`."""
    assert (ROOT / "lib" / "ductile_sdk" / "__init__.py").read_bytes() == PACKAGE.read_bytes()


def test_it_imports_little() -> None:
    """Every job imports the SDK: typing, pathlib, urllib and datetime are imported only if needed."""
    code = "import sys; before = set(sys.modules); import ductile_sdk; print(*set(sys.modules) - before)"
    process = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT / 'lib')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {name.partition(".")[0] for name in process.stdout.split()}
    assert modules.isdisjoint({"typing", "pathlib", "urllib", "datetime", "traceback", "asyncio", "http"})


def test_the_return_value_of_a_command_is_the_result(tmp_path: Path) -> None:
    """Any JSON value is allowed."""
    assert run_body(tmp_path, "return {'n': 2**60}").answer == {"status": "ok", "result": {"n": 2**60}}


@pytest.mark.parametrize("returned", ["", "return None", "return '  '"])
def test_nothing_returned_is_still_a_result(tmp_path: Path, returned: str) -> None:
    """An ok response needs a result that is neither null nor blank."""
    assert run_body(tmp_path, f"pass\n{returned}").answer == {"status": "ok", "result": "done"}


def test_everything_an_answer_can_hold(tmp_path: Path) -> None:
    """Events, state, logs and artifacts are collected during the command."""
    body = """\
request.emit("seen", {"a": 1}, dedupe_key="k")
request.emit("seen")
request.remember(count=request.state["count"] + 1)
request.remember(other=True)
request.log("looked", "debug")
request.attach("out", path="/tmp/out.csv", media_type="text/csv")
request.attach("page", url="http://example.org/")
return [request.payload["x"], request.config["y"], request.instance, request.baggage, request.event["type"]]
"""
    response = run_body(tmp_path, body, state={"count": 4}, payload={"x": 7}, config={"y": 8})
    assert response.answer == {
        "status": "ok",
        "result": [7, 8, "it", {"owner": "Ada"}, "test"],
        "events": [
            {"type": "seen", "payload": {"a": 1}, "dedupe_key": "k"},
            {"type": "seen", "payload": {}},
        ],
        "state_updates": {"count": 5, "other": True},
        "logs": [{"level": "debug", "message": "looked"}],
        "artifacts": [
            {"name": "out", "path": "/tmp/out.csv", "media_type": "text/csv"},  # noqa: S108 - never written
            {"name": "page", "url": "http://example.org/"},
        ],
    }


@pytest.mark.parametrize("retry", [True, False])
def test_a_failure_says_whether_to_try_again(tmp_path: Path, retry: bool) -> None:
    """The field is `retry`."""
    response = run_body(tmp_path, f"raise Failure('no paper', retry={retry})")
    assert response.answer == {"status": "error", "error": "no paper", "retry": retry}
    assert response.stderr == ""


def test_a_fault_of_the_configuration_is_an_answer_with_exit_status_78(tmp_path: Path) -> None:
    """People read the message, and the status says that a retry cannot help."""
    response = run_body(tmp_path, "raise ConfigFailure('`url` is missing')")
    assert response.answer == {"status": "error", "error": "`url` is missing", "retry": False}
    assert response.exit_code == 78


def test_costs_add_up(tmp_path: Path) -> None:
    """The response has the sum."""
    response = run_body(tmp_path, "request.report_cost(0.5)\nrequest.report_cost(1)\nreturn 'done'")
    assert response.answer == {"status": "ok", "result": "done", "cost": 1.5}


def test_an_exception_is_an_error_with_its_traceback_on_stderr(tmp_path: Path) -> None:
    """The response is an error that may be retried, never a crash."""
    response = run_body(tmp_path, "return 1 / 0")
    assert response.may_be_tried_again("ZeroDivisionError: division by zero")
    assert "Traceback" in response.stderr
    assert response.exit_code == 0


def test_prints_do_not_spoil_the_response(tmp_path: Path) -> None:
    """Stdout has one object; output of prints and child processes goes to stderr."""
    body = "import os\nprint('by print')\nos.system('echo by a program')\nreturn 'fine'"
    response = run_body(tmp_path, body)
    assert response.answer["result"] == "fine"
    assert "by print" in response.stderr
    assert "by a program" in response.stderr


@pytest.mark.parametrize("value", ["float('nan')", "object()", "{1, 2}", "'\\udcff'"])
def test_an_answer_that_is_no_json_fails_for_good(tmp_path: Path, value: str) -> None:
    """NaN would be a protocol error, so the SDK reports an error instead."""
    assert run_body(tmp_path, f"return {value}").failed_for_good("cannot be written as JSON")


def test_an_error_with_invalid_unicode_is_reported(tmp_path: Path) -> None:
    """File names need not be UTF-8; responses have to be."""
    assert run_body(tmp_path, "raise Failure('no \\udcff', retry=False)").failed_for_good("no ?")


def test_a_command_that_it_does_not_have_is_an_error(tmp_path: Path) -> None:
    """An unknown command is a permanent error."""
    plugin = a_plugin_with_body(tmp_path, "return 1")
    assert ask(plugin, "stop").failed_for_good("there is no command 'stop'")


@pytest.mark.parametrize("request_", [{"protocol": 3, "command": "go"}, {"command": "go"}, [2], None])
def test_another_protocol_is_a_configuration_fault(tmp_path: Path, request_: Any) -> None:
    """The exit status is 78 without a response, which is permanent."""
    body = b"" if request_ is None else json.dumps(request_).encode()
    response = ask_raw(a_plugin_with_body(tmp_path, "return 1"), body)
    assert (response.kind, response.exit_code) == ("config", 78)
    assert response.stderr


def test_a_command_can_know_how_long_it_has(tmp_path: Path) -> None:
    """The field is `deadline_at`."""
    assert 50 < run_body(tmp_path, "return request.seconds_left()", seconds=60).answer["result"] <= 60


def test_a_name_that_python_reserves_takes_an_underscore(tmp_path: Path) -> None:
    plugin = a_plugin_with_body(tmp_path, "return 1")
    text = (plugin / "run.py").read_text().replace("def go(", "def import_(")
    (plugin / "run.py").write_text(text)
    assert ask(plugin, "import").kind == "ok"


def call_gateway(directory: Path, url: str, **request: Any) -> PluginResult:
    body = f"return request.gateway({url!r}, 'tok').call('/plugin/echo/poll', {{'payload': {{}}}})"
    return run_body(directory, body, **request)


def test_calls_of_the_gateway_say_which_job_makes_them(tmp_path: Path) -> None:
    """The header X-Ductile-Job lets the new job inherit hops and trace."""
    with a_service(lambda _: Reply(status=202, body=b'{"job_id": "j2"}')) as service:
        assert call_gateway(tmp_path, service.url + "/").answer["result"] == {"job_id": "j2"}
    (request,) = service.requests
    assert (request.method, request.path, request.body) == ("POST", "/plugin/echo/poll", b'{"payload": {}}')
    assert request.headers["x-ductile-job"] == "j1"
    assert request.headers["authorization"] == "Bearer tok"


@pytest.mark.parametrize(("status", "retry"), [(404, False), (422, False), (429, True), (503, True)])
def test_a_gateway_that_refuses(tmp_path: Path, status: int, retry: bool) -> None:
    """Refusals that can be temporary are retried."""
    with a_service(lambda _: Reply(status=status, body=b'{"message": "no"}')) as service:
        response = call_gateway(tmp_path, service.url)
    assert response.answer["retry"] is retry
    assert f"with {status}" in response.answer["error"]


def test_a_gateway_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    with a_service(lambda _: Reply()) as service:
        pass
    assert call_gateway(tmp_path, service.url).may_be_tried_again("does not answer")


def test_a_gateway_is_reached_over_http_only(tmp_path: Path) -> None:
    assert call_gateway(tmp_path, "file:///etc").failed_for_good("http://")
