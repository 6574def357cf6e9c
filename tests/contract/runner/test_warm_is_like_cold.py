"""A plugin cannot distinguish a warm start from a cold one, except by documented differences. Each script
runs once cold and twice warm (the second time its code is cached), and its stdout, stderr, exit status or
signal and its file are compared.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from builders.bad_plugins import a_launch, a_python_plugin, an_environment, start
from builders.interpreters import other_interpreters
from ductile.runner.port import (
    Exited,
    GracePeriods,
    Launch,
    ProcessOutput,
    ProcessResult,
    ResourceLimits,
    StartedBy,
    WarmStart,
)
from ductile.runner.process.spawn import SpawnRunner
from ductile.runner.warm.pool import WarmRunner

#: No script leaves processes behind, but trackers of `multiprocessing` may exit late on a busy machine.
PATIENT = GracePeriods(after_terminate=0.3, for_group_members=20.0)

HERE = Path(__file__).parent
#: Scripts by name. Some of them break rules of style, encoding or syntax, so they are in a text file.
SCRIPTS = dict(part.partition("\n")[::2] for part in (HERE / "scripts.txt").read_text().split("=== ") if part)
#: A script that prints everything it can query about its surroundings as JSON. Names with DIFFERS are
#: documented in docs/explanation/warm-start.md.
SURROUNDINGS = (HERE / "surroundings.txt").read_text()


class BothRunners:
    """The runner for cold starts and the runner for warm starts."""

    def __init__(self) -> None:
        self.cold = SpawnRunner(PATIENT)
        self.warm = WarmRunner(PATIENT)

    async def run(self, launch: Launch) -> tuple[ProcessOutput, ProcessOutput, ProcessOutput]:
        """Run a launch cold, warm and warm again, and return the outputs."""
        cold = await (await start(self.cold, launch)).wait()
        warm = []
        for _ in range(2):
            process = await start(self.warm, launch)
            assert process.started_by is StartedBy.WARM
            warm.append(await process.wait())
        return output_of(cold), output_of(warm[0]), output_of(warm[1])

    async def observe(self, launch: Launch) -> list[dict[str, Any]]:
        """Run a launch cold, warm and warm again. Return the comparable output of each with the
        files `kept*` that it left.
        """
        observations = []
        for runner in (self.cold, self.warm, self.warm):
            process = await start(runner, launch)
            assert process.started_by is (StartedBy.WARM if runner is self.warm else StartedBy.SPAWN)
            observation = observable_parts(output_of(await process.wait()))
            observations.append(observation | {"kept": take_kept_files(Path(launch.environment["HOME"]))})
        return observations

    async def close(self) -> None:
        await self.warm.close()
        await self.cold.close()


def output_of(ending: ProcessResult) -> ProcessOutput:
    assert isinstance(ending, Exited), ending
    return ending.output


def take_kept_files(home: Path) -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in home.glob("kept*")}
    for name in files:
        (home / name).unlink()
    return files


def observable_parts(output: ProcessOutput) -> dict[str, Any]:
    """Return everything that can be compared: addresses of objects are removed."""
    return {
        "status": output.status,
        "stdout": output.stdout,
        "stderr": re.sub(rb" at 0x[0-9a-f]+", b"", output.stderr),
        "leftovers": output.leftovers,
    }


def comparable(output: ProcessOutput) -> dict[str, Any]:
    """Return the result of the surroundings script without the documented differences."""
    assert output.stderr == b""
    return {
        name: value for name, value in json.loads(output.stdout).items() if not name.startswith("DIFFERS")
    }


@pytest.fixture
async def runners() -> AsyncIterator[BothRunners]:
    runners = BothRunners()
    yield runners
    await runners.close()


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_script_does_the_same(runners: BothRunners, tmp_path: Path, name: str) -> None:
    """The output, the error text and the exit status are equal."""
    plugin = a_python_plugin(tmp_path / "plugin", SCRIPTS[name])
    environment = an_environment(tmp_path)
    launch = a_launch(plugin, environment=environment, request=b"one\ntwo\r\nthree")
    cold, warm, second_warm = await runners.observe(launch)
    assert warm == cold
    assert second_warm == cold
    if name == "unclosed file":
        assert cold["kept"] == {"kept": b"written at the end"}


def environments(directory: Path) -> dict[str, dict[str, str]]:
    return {
        "usual": an_environment(directory),
        "zone and language": an_environment(directory, TZ="Asia/Tokyo", LC_TIME="C", XDG_X="1"),
        "C locale": an_environment(directory, LANG="C"),
        "POSIX for all": an_environment(directory, LC_ALL="POSIX"),
        "no locale": {"PATH": "/usr/bin:/bin", "HOME": str(directory)},
        "bytes": an_environment(directory, ODD="\udcff\udcfe", EMPTY=""),
        "nothing": {},
    }


@pytest.mark.parametrize("name", environments(Path()))
async def test_the_surroundings_are_the_same(runners: BothRunners, tmp_path: Path, name: str) -> None:
    """Every value that a script can query is equal, except for the documented differences."""
    plugin = a_python_plugin(tmp_path / "plugin", SURROUNDINGS)
    environment = environments(tmp_path)[name]
    launch = a_launch(plugin, environment=environment, directory=tmp_path, request=b"request")
    cold, warm, second_warm = [comparable(output) for output in await runners.run(launch)]
    assert warm == cold
    assert second_warm == cold


async def test_preloaded_modules_do_not_change_the_surroundings(runners: BothRunners, tmp_path: Path) -> None:
    """Values that modules cache about their process are those of the forked process."""
    plugin = a_python_plugin(tmp_path / "plugin", SURROUNDINGS)
    warm_start = WarmStart(preload=("asyncio", "http.client", "logging", "multiprocessing", "threading"))
    cold, warm, second_warm = [
        comparable(output) for output in await runners.run(a_launch(plugin, warm=warm_start))
    ]
    assert warm == cold
    assert second_warm == cold


async def test_files_are_written_whatever_was_preloaded(runners: BothRunners, tmp_path: Path) -> None:
    """Objects from before the fork write values from after it."""
    preload = ("asyncio", "codecs", "gzip", "json", "logging", "socket", "sqlite3", "threading")
    differing = {}
    for name in (name for name in SCRIPTS if name.startswith("unclosed")):
        plugin = a_python_plugin(tmp_path / name, SCRIPTS[name])
        launch = a_launch(plugin, environment=an_environment(tmp_path), warm=WarmStart(preload=preload))
        cold, *warm = await runners.observe(launch)
        if any(output != cold for output in warm):
            differing[name] = [cold, *warm]
    assert differing == {}


async def test_the_documented_differences_are_differences(runners: BothRunners, tmp_path: Path) -> None:
    """Every documented difference exists, so that the list stays true."""
    plugin = a_python_plugin(tmp_path / "plugin", SURROUNDINGS)
    cold, warm, _ = [json.loads(output.stdout) for output in await runners.run(a_launch(plugin))]
    differing = [name for name in cold if name.startswith("DIFFERS")]
    assert [name for name in differing if cold[name] == warm[name]] == []


async def test_a_plugin_found_through_env_does_the_same(runners: BothRunners, tmp_path: Path) -> None:
    """`env python3` is looked up on the PATH of the job."""
    python = Path(sys.executable)
    plugin = a_python_plugin(tmp_path / "plugin", f"#!/usr/bin/env {python.name}\n{SURROUNDINGS}")
    environment = an_environment(tmp_path, PATH=f"/nowhere:{python.parent}:/usr/bin:/bin")
    cold, warm, second_warm = [
        comparable(output) for output in await runners.run(a_launch(plugin, environment=environment))
    ]
    assert warm == cold
    assert second_warm == cold


async def test_a_plugin_that_cannot_be_preloaded_starts_cold(runners: BothRunners, tmp_path: Path) -> None:
    """Here no directory can be read, which must not make the plugin fail."""
    plugin = a_python_plugin(tmp_path / "plugin", "print('hello')\n")
    launch = a_launch(plugin, environment=an_environment(tmp_path), limits=ResourceLimits(open_files=3))
    cold, warm, second_warm = await runners.observe(launch)
    assert warm == cold
    assert second_warm == cold


async def test_bytes_that_are_no_text_are_found_in_comments_too(runners: BothRunners, tmp_path: Path) -> None:
    """The interpreter refuses such a file with an error message."""
    plugin = a_python_plugin(tmp_path / "plugin", "print('hello')\n# caf\n")
    plugin.write_bytes(plugin.read_bytes().replace(b"caf", b"caf\xe9"))
    cold, warm, second_warm = await runners.observe(a_launch(plugin, environment=an_environment(tmp_path)))
    assert b"Non-UTF-8" in cold["stderr"]
    assert warm == cold
    assert second_warm == cold


@pytest.fixture(params=other_interpreters() or [pytest.param("", marks=pytest.mark.skip("no other CPython"))])
def interpreter(request: pytest.FixtureRequest) -> Path:
    """Return each other CPython of this machine in turn."""
    return other_interpreters()[request.param]


async def test_scripts_do_the_same_under_another_interpreter(
    runners: BothRunners, tmp_path: Path, interpreter: Path
) -> None:
    """A `#!` line may name any supported version, and the fork server has to work in it."""
    differing = {}
    for number, (name, text) in enumerate(SCRIPTS.items()):
        plugin = a_python_plugin(tmp_path / str(number), for_interpreter(text, interpreter))
        launch = a_launch(
            plugin, environment=an_environment(tmp_path / str(number)), request=b"one\ntwo\r\nthree"
        )
        cold, *warm = await runners.observe(launch)
        if any(output != cold for output in warm):
            differing[name] = [cold, *warm]
    assert differing == {}


async def test_the_surroundings_are_the_same_under_another_interpreter(
    runners: BothRunners, tmp_path: Path, interpreter: Path
) -> None:
    """Every value that a script can query is equal."""
    plugin = a_python_plugin(tmp_path / "plugin", for_interpreter(SURROUNDINGS, interpreter))
    cold, warm, second_warm = [comparable(output) for output in await runners.run(a_launch(plugin))]
    assert warm == cold
    assert second_warm == cold


def for_interpreter(text: str, interpreter: Path) -> str:
    """Return the script with a first line that names this interpreter."""
    return f"#!{interpreter}\n" + (text.partition("\n")[2] if text.startswith("#!") else text)
