"""shell runs listed programs and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.shipped import PluginResult, ask


def run(
    program: Any, *, args: Any = None, payload: dict[str, Any] | None = None, **config: Any
) -> PluginResult:
    request = {"program": "it", **({} if args is None else {"args": args}), **(payload or {})}
    return ask("shell", "handle", config={"programs": {"it": program}, **config}, payload=request)


def test_a_listed_program_is_run_and_its_output_is_the_result() -> None:
    response = run(["printf", "%s", "a b"])
    expected = {"program": "it", "exit_code": 0, "stdout": "a b", "stderr": "", "cut": False}
    assert response.answer["result"] == expected
    assert response.events == [{"type": "shell.done", "payload": expected}]


@pytest.mark.parametrize("name", ["sh", "other", "", 5, None])
def test_nothing_else_is_run(name: object) -> None:
    """A payload chooses a name, never a path or a command line."""
    response = ask("shell", "handle", config={"programs": {"it": ["true"]}}, payload={"program": name})
    assert response.failed_for_good("program")


def test_arguments_are_refused_unless_the_program_allows_them() -> None:
    assert run(["echo"], args=["x"]).failed_for_good("takes no arguments")
    assert run({"argv": ["echo"], "args": True}, args=[1]).failed_for_good("list of texts")
    assert (
        run({"argv": ["echo"], "args": True}, args=["$HOME; id"]).answer["result"]["stdout"] == "$HOME; id\n"
    )


def test_a_script_gets_arguments_as_parameters() -> None:
    """A payload never becomes part of the script."""
    response = run({"script": 'echo "$#: $1" | tr a-z A-Z', "args": True}, args=["`id`; x"])
    assert response.answer["result"]["stdout"] == "1: `ID`; X\n"


def test_a_program_can_be_given_the_payload_a_directory_and_variables(tmp_path: Path) -> None:
    program = {
        "script": "cat; pwd; echo $WORD",
        "stdin": "payload",
        "directory": str(tmp_path),
        "env": {"WORD": "w"},
    }
    assert run(program).answer["result"]["stdout"] == f'{{"program": "it"}}{tmp_path}\nw\n'


def test_an_unread_payload_does_not_block_the_program() -> None:
    program = {"argv": ["true"], "stdin": "payload"}
    assert run(program, payload={"much": "x" * 500_000}).kind == "ok"


def test_a_large_payload_reaches_a_program_that_answers_meanwhile() -> None:
    """Plugin and program do not block each other."""
    program = {"argv": ["cat"], "stdin": "payload", "max_output": 2_000_000}
    assert len(run(program, payload={"much": "x" * 500_000}).answer["result"]["stdout"]) > 500_000


def test_a_failure_is_not_tried_again_unless_it_is_said() -> None:
    """Only the operator knows whether a program may be run twice."""
    broken = {"script": "echo no paper >&2; exit 3"}
    assert run(broken).failed_for_good("it ended with 3: no paper")
    assert run({**broken, "retry": True}).may_be_tried_again("no paper")
    assert run({**broken, "ok": [0, 3]}).kind == "ok"
    assert run({"script": "exit 75"}).may_be_tried_again("75")
    assert run(broken).stderr == "no paper\n"


def test_a_program_has_only_so_much_time() -> None:
    """The response names the limit, before the deadline of the job ends the plugin."""
    response = run({"script": "echo begun; echo oops >&2; sleep 300 & wait"}, timeout=2)
    assert response.failed_for_good("ended after 2 s, by its timeout of 2 s")
    assert response.stderr == "stdout:\nbegun\nstderr:\noops\n"


def test_a_failure_keeps_stdout() -> None:
    response = run({"script": "echo begun; exit 3"})
    assert response.failed_for_good("it ended with 3: begun")
    assert response.stderr == "stdout:\nbegun\nstderr:\n"


def test_output_is_kept_up_to_a_limit() -> None:
    """Endless output fills neither the memory nor the response."""
    result = run({"script": "yes | head -c 1000000"}, max_output=10).answer["result"]
    assert (result["stdout"], result["cut"]) == ("y\ny\ny\ny\ny\n", True)


def test_poll_runs_the_program_that_is_configured_for_it() -> None:
    config = {"programs": {"it": ["echo", "polled"]}, "poll": "it"}
    assert ask("shell", "poll", config=config).answer["result"]["stdout"] == "polled\n"
    assert ask("shell", "poll", config={"programs": {}}).failed_for_good("`poll`")


def test_health_names_what_is_missing() -> None:
    config = {"programs": {"there": ["true"], "gone": ["/nowhere/gone"]}}
    assert ask("shell", "health", config=config).failed_for_good("cannot be executed: gone")
    assert ask("shell", "health", config={"programs": {"there": ["true"]}}).kind == "ok"


@pytest.mark.parametrize(
    "program", [[], "true", {}, {"argv": "true"}, {"argv": ["true"], "timeout": "x"}, {"argv": [1]}, 5]
)
def test_an_invalid_entry_is_reported(program: Any) -> None:
    assert run(program).failed_for_good("programs.it")


def test_a_program_that_cannot_be_started_is_reported() -> None:
    assert run(["/nowhere/at/all"]).failed_for_good("cannot be started")
