"""The first lines that name a Python for a warm start."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from builders.bad_plugins import an_executable
from ductile.runner.port import Launch, WarmStart
from ductile.runner.warm.pool import ColdStart, Interpreter, WarmPlan, find_interpreter, plan_warm_start


@pytest.mark.parametrize("name", ["python", "python3", "python3.12"])
def test_an_interpreter_is_named_by_its_path(name: str) -> None:
    """The line has no option."""
    path = f"/opt/x/bin/{name}"
    assert find_interpreter(path, None) == Interpreter(path=path, argv0=path)


@pytest.mark.parametrize(
    "first_line",
    [
        "",
        "/usr/bin/python3 -u",
        "/usr/bin/python2",
        "/usr/bin/python3-config",
        "/usr/bin/pypy3",
        "/usr/bin/env -S python3",
        "/usr/bin/env python3 -u",
        "/usr/bin/env uv run",
        "/usr/bin/env node",
        "/usr/bin/env ./python3",
        "python3",
        "bin/python3",
        "/bin/sh",
        "/usr/bin/python3\r",
    ],
)
def test_everything_else_starts_cold(first_line: str) -> None:
    """A doubtful line means a cold start."""
    assert isinstance(find_interpreter(first_line, "/usr/bin:/bin"), ColdStart)


def test_env_takes_the_first_on_the_path_that_can_be_run(tmp_path: Path) -> None:
    """`env` does the same; relative directories depend on the working directory and do not count."""
    an_executable(tmp_path / "a", "", name="python3", mode=0o644)
    (tmp_path / "b" / "python3").mkdir(parents=True)
    right = an_executable(tmp_path / "c", "", name="python3")
    an_executable(tmp_path / "d", "", name="python3")
    path = ":".join(["", ".", *(str(tmp_path / name) for name in "abcd")])
    assert find_interpreter("/usr/bin/env python3", path) == Interpreter(path=str(right), argv0="python3")
    assert isinstance(find_interpreter("/usr/bin/env python3", str(tmp_path / "a")), ColdStart)
    assert isinstance(find_interpreter("/usr/bin/env python3", None), ColdStart)


def test_a_first_line_that_was_edited_is_read_again(tmp_path: Path) -> None:
    """The line and the mode are cached until the file changes."""
    plugin = tmp_path / "run"
    run = Launch(
        entrypoint=str(plugin),
        request=b"",
        environment={},
        directory=str(tmp_path),
        timeout=timedelta(0),
        warm=WarmStart(),
    )
    plugin.write_text("#!/bin/sh\n", encoding="utf-8")
    plugin.chmod(0o755)
    assert isinstance(plan_warm_start(run), ColdStart)
    plugin.write_text("#!/opt/bin/python3\n", encoding="utf-8")
    assert isinstance(plan_warm_start(run), WarmPlan)
    plugin.chmod(0o644)
    assert isinstance(plan_warm_start(run), ColdStart)
