"""The SDK for Python plugins: a plugin in a few lines that keeps the protocol."""

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


def a_plugin_that(directory: Path, body: str) -> Path:
    """Whose command `go` has this body."""
    place = directory / "it"
    place.mkdir()
    place.chmod(0o755)
    manifest = a_manifest("it", entrypoint="run.py").replace("[poll, handle, health]", "[go]")
    (place / "manifest.yaml").write_text(manifest)
    (place / "ductile_sdk.py").write_bytes(PACKAGE.read_bytes())
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (place / "run.py").write_text(f"{HEAD}def go(request):\n{lines}plugin.run()\n")
    (place / "run.py").chmod(0o755)
    return place


def go(directory: Path, body: str, **given: Any) -> PluginResult:
    return ask(a_plugin_that(directory, body), "go", **given)


def test_the_copy_that_shipped_plugins_use_is_the_package_s() -> None:
    """One SDK; `cp src/ductile/sdk/__init__.py plugins/lib/ductile_sdk/` after a change."""
    assert (ROOT / "lib" / "ductile_sdk" / "__init__.py").read_bytes() == PACKAGE.read_bytes()


def test_it_imports_little() -> None:
    """Every job imports it: no typing, pathlib, urllib or datetime unless needed."""
    code = "import sys; before = set(sys.modules); import ductile_sdk; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT / 'lib')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"typing", "pathlib", "urllib", "datetime", "traceback", "asyncio", "http"})


def test_the_return_value_of_a_command_is_the_result(tmp_path: Path) -> None:
    """Any JSON value."""
    assert go(tmp_path, "return {'n': 2**60}").answer == {"status": "ok", "result": {"n": 2**60}}


@pytest.mark.parametrize("returned", ["", "return None", "return '  '"])
def test_nothing_returned_is_still_a_result(tmp_path: Path, returned: str) -> None:
    """An ok answer needs a result that is neither null nor blank."""
    assert go(tmp_path, f"pass\n{returned}").answer == {"status": "ok", "result": "done"}


def test_everything_an_answer_can_hold(tmp_path: Path) -> None:
    """Events, state, logs and artifacts are gathered on the way."""
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
    said = go(tmp_path, body, state={"count": 4}, payload={"x": 7}, config={"y": 8})
    assert said.answer == {
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
    """`retry`."""
    said = go(tmp_path, f"raise Failure('no paper', retry={retry})")
    assert said.answer == {"status": "error", "error": "no paper", "retry": retry}
    assert said.stderr == ""


def test_a_fault_of_the_configuration_is_an_answer_with_exit_status_78(tmp_path: Path) -> None:
    """People see the message, and the status says that a retry cannot help."""
    said = go(tmp_path, "raise ConfigFailure('`url` is missing')")
    assert said.answer == {"status": "error", "error": "`url` is missing", "retry": False}
    assert said.exit_code == 78


def test_costs_add_up(tmp_path: Path) -> None:
    """The answer has one number."""
    said = go(tmp_path, "request.report_cost(0.5)\nrequest.report_cost(1)\nreturn 'done'")
    assert said.answer == {"status": "ok", "result": "done", "cost": 1.5}


def test_an_exception_is_an_error_with_its_traceback_on_stderr(tmp_path: Path) -> None:
    """Never a crash without an answer; it may be tried again."""
    said = go(tmp_path, "return 1 / 0")
    assert said.may_be_tried_again("ZeroDivisionError: division by zero")
    assert "Traceback" in said.stderr
    assert said.exit_code == 0


def test_prints_do_not_spoil_the_response(tmp_path: Path) -> None:
    """Stdout holds one object; prints, also of programs that are started, go to stderr."""
    body = "import os\nprint('by print')\nos.system('echo by a program')\nreturn 'fine'"
    said = go(tmp_path, body)
    assert said.answer["result"] == "fine"
    assert "by print" in said.stderr
    assert "by a program" in said.stderr


@pytest.mark.parametrize("value", ["float('nan')", "object()", "{1, 2}", "'\\udcff'"])
def test_an_answer_that_is_no_json_fails_for_good(tmp_path: Path, value: str) -> None:
    """NaN would be a protocol error; the plugin says what is wrong instead."""
    assert go(tmp_path, f"return {value}").failed_for_good("cannot be written as JSON")


def test_an_error_with_invalid_unicode_is_reported(tmp_path: Path) -> None:
    """File names need not be UTF-8, responses must be."""
    assert go(tmp_path, "raise Failure('no \\udcff', retry=False)").failed_for_good("no ?")


def test_a_command_that_it_does_not_have_is_an_error(tmp_path: Path) -> None:
    """Unknown commands are permanent."""
    plugin = a_plugin_that(tmp_path, "return 1")
    assert ask(plugin, "stop").failed_for_good("there is no command 'stop'")


@pytest.mark.parametrize("request_", [{"protocol": 3, "command": "go"}, {"command": "go"}, [2], None])
def test_another_protocol_is_a_configuration_fault(tmp_path: Path, request_: Any) -> None:
    """Exit 78 without an answer, which is permanent."""
    body = b"" if request_ is None else json.dumps(request_).encode()
    said = ask_raw(a_plugin_that(tmp_path, "return 1"), body)
    assert (said.kind, said.exit_code) == ("config", 78)
    assert said.stderr


def test_a_command_can_know_how_long_it_has(tmp_path: Path) -> None:
    """`deadline_at`."""
    assert 50 < go(tmp_path, "return request.seconds_left()", seconds=60).answer["result"] <= 60


def test_a_name_that_python_reserves_takes_an_underscore(tmp_path: Path) -> None:
    plugin = a_plugin_that(tmp_path, "return 1")
    text = (plugin / "run.py").read_text().replace("def go(", "def import_(")
    (plugin / "run.py").write_text(text)
    assert ask(plugin, "import").kind == "ok"


def call_back(directory: Path, url: str, **given: Any) -> PluginResult:
    body = f"return request.gateway({url!r}, 'tok').call('/plugin/echo/poll', {{'payload': {{}}}})"
    return go(directory, body, **given)


def test_calls_of_the_gateway_say_which_job_makes_them(tmp_path: Path) -> None:
    """X-Ductile-Job, by which hops and trace are inherited."""
    with a_service(lambda _: Reply(status=202, body=b'{"job_id": "j2"}')) as service:
        assert call_back(tmp_path, service.url + "/").answer["result"] == {"job_id": "j2"}
    (asked,) = service.requests
    assert (asked.method, asked.path, asked.body) == ("POST", "/plugin/echo/poll", b'{"payload": {}}')
    assert asked.headers["x-ductile-job"] == "j1"
    assert asked.headers["authorization"] == "Bearer tok"


@pytest.mark.parametrize(("status", "retry"), [(404, False), (422, False), (429, True), (503, True)])
def test_a_gateway_that_refuses(tmp_path: Path, status: int, retry: bool) -> None:
    """What may be different next time is tried again."""
    with a_service(lambda _: Reply(status=status, body=b'{"message": "no"}')) as service:
        said = call_back(tmp_path, service.url)
    assert said.answer["retry"] is retry
    assert f"with {status}" in said.answer["error"]


def test_a_gateway_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    with a_service(lambda _: Reply()) as service:
        pass
    assert call_back(tmp_path, service.url).may_be_tried_again("does not answer")


def test_a_gateway_is_reached_over_http_only(tmp_path: Path) -> None:
    assert call_back(tmp_path, "file:///etc").failed_for_good("http://")
