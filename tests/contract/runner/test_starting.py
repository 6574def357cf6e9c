"""The start of a process: its environment, and the result if it cannot start."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from builders.bad_plugins import (
    OK,
    a_bad_plugin,
    a_launch,
    a_python_plugin,
    an_environment,
    an_executable,
    open_descriptors,
    start,
)
from ductile.core.jobs.model import Completed, Failed, JobReason
from ductile.runner.interpret import interpret
from ductile.runner.port import (
    NO_LIMITS,
    CouldNotStart,
    Exited,
    ForkServerLost,
    Launch,
    ResourceLimits,
    Runner,
)
from ductile.struct import replace


@pytest.fixture(params=["posix_spawn", "popen"], autouse=True)
def _each_way_of_spawning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with posix_spawn and with the Popen fallback."""
    if request.param == "popen":
        monkeypatch.setattr("ductile.runner.process.spawn.can_spawn", lambda _stdio: False)


LOOK = """\
import json, os, sys

def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

answer = {
    "argv": sys.argv,
    "environment": {name: os.fsencode(value).hex() for name, value in os.environ.items()},
    "directory": os.getcwd(),
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "descriptors": [number for number in range(256) if is_open(number)],
    "request": sys.stdin.read(),
}
print(json.dumps({"status": "ok", "result": answer}))
"""


async def result_of(runner: Runner, launch: Launch) -> Any:
    outcome = interpret(await (await start(runner, launch)).wait()).outcome
    assert isinstance(outcome, Completed), outcome
    return outcome.response.result


@pytest.mark.parametrize("limits", [NO_LIMITS, ResourceLimits(open_files=200)])
async def test_arguments_arrive_as_they_are(runner: Runner, tmp_path: Path, limits: ResourceLimits) -> None:
    """Blanks, quotes, options and bytes that are not UTF-8 are passed on unchanged, without a shell."""
    plugin = a_python_plugin(
        tmp_path, LOOK.replace("sys.argv,", "[os.fsencode(word).hex() for word in sys.argv],")
    )
    arguments = ("", "two words", "$HOME", "'; rm -rf *", "--help", "ä€", os.fsdecode(b"\xff"))
    launch = replace(a_launch(plugin, limits=limits), arguments=arguments)
    argv = [os.fsdecode(bytes.fromhex(argument)) for argument in (await result_of(runner, launch))["argv"]]
    assert argv == [str(plugin), *arguments]


@pytest.mark.parametrize("limits", [NO_LIMITS, ResourceLimits(open_files=200)])
async def test_an_impossible_argument_is_a_permanent_failure(
    runner: Runner, tmp_path: Path, limits: ResourceLimits
) -> None:
    launch = replace(a_launch(a_bad_plugin(tmp_path, "answers"), limits=limits), arguments=("a\0b",))
    ending = await runner.start(launch)
    assert isinstance(ending, CouldNotStart)
    assert ending.permanent
    assert "no process can have" in ending.error
    assert "a\0b" not in ending.error


async def test_arguments_beyond_the_limit_of_the_system_are_named(runner: Runner, tmp_path: Path) -> None:
    launch = replace(a_launch(a_bad_plugin(tmp_path, "answers")), arguments=("x" * 10_000_000,))
    ending = await runner.start(launch)
    assert isinstance(ending, CouldNotStart)
    assert ending.permanent
    assert "arguments are larger than the system allows" in ending.error


@pytest.mark.parametrize("limits", [NO_LIMITS, ResourceLimits(open_files=200)])
async def test_a_process_gets_what_it_is_given_and_nothing_else(
    runner: Runner, tmp_path: Path, limits: ResourceLimits
) -> None:
    """The process has its own session and group, the given environment and directory, and three
    descriptors.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    plugin = a_python_plugin(tmp_path / "plugin", LOOK)
    environment = an_environment(tmp_path, WORD="grüß\udcff", EMPTY="")
    leaking = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaking, True)
    try:
        launch = a_launch(
            plugin, environment=environment, directory=elsewhere, request=b"all of it", limits=limits
        )
        result = await result_of(runner, launch)
    finally:
        os.close(leaking)
    assert result == {
        "argv": [str(plugin)],
        "environment": {name: os.fsencode(value).hex() for name, value in environment.items()},
        "directory": str(elsewhere),
        "leads": True,
        "descriptors": [0, 1, 2],
        "request": "all of it",
    }


START = """
import asyncio, sys
from datetime import timedelta
from ductile.runner.port import Launch
from ductile.runner.process.spawn import SpawnRunner

async def main():
    runner = SpawnRunner()
    run = Launch(entrypoint=sys.argv[1], request=b"all of it", environment={}, directory=sys.argv[2],
              timeout=timedelta(seconds=60))
    process = await runner.start(run)
    return (await process.wait()).output.stdout

answer = asyncio.run(main())
with open("answer", "wb") as file:
    file.write(answer)
"""


def test_a_daemon_without_the_usual_descriptors_starts_plugins(tmp_path: Path) -> None:
    """Pipes with the numbers of the daemon's closed descriptors reach the plugin."""
    plugin = a_python_plugin(tmp_path, LOOK)
    command = f'exec {sys.executable} -c "$0" {plugin} {tmp_path} <&- >&- 2>&-'
    subprocess.run(["/bin/sh", "-c", command, START], check=True, timeout=60, cwd=tmp_path)
    result = json.loads((tmp_path / "answer").read_text())["result"]
    assert (result["request"], result["descriptors"]) == ("all of it", [0, 1, 2])


def test_a_daemon_with_sigchld_ignored_gets_exit_statuses(tmp_path: Path) -> None:
    """Some supervisors ignore SIGCHLD, and processes inherit that. The plugin must not inherit it."""
    plugin = an_executable(tmp_path, "#!/bin/sh\ngrep ^SigIgn /proc/$$/status\nexit 3\n")
    program = f"import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{START}"
    changed = program.replace(".output.stdout", ".output.status.exit_code").replace(
        "(answer)", "(b'%d' % answer)"
    )
    subprocess.run([sys.executable, "-c", changed, plugin, tmp_path], check=True, timeout=60, cwd=tmp_path)
    assert (tmp_path / "answer").read_text() == "3"
    subprocess.run([sys.executable, "-c", program, plugin, tmp_path], check=True, timeout=60, cwd=tmp_path)
    ignored = int((tmp_path / "answer").read_text().split()[1], 16)
    assert not ignored & (1 << (signal.SIGCHLD - 1))


def test_a_python_without_ctypes_starts_plugins(tmp_path: Path) -> None:
    """A Python that was built without libffi has no ctypes."""
    plugin = a_python_plugin(tmp_path, LOOK)
    program = f"import sys\nsys.modules['ctypes'] = None\n{START}"
    subprocess.run([sys.executable, "-c", program, plugin, tmp_path], check=True, timeout=60, cwd=tmp_path)
    assert json.loads((tmp_path / "answer").read_text())["result"]["request"] == "all of it"


@pytest.mark.parametrize("limits", [NO_LIMITS, ResourceLimits(open_files=200)])
@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0o755, "there is no such file"),
        ("#!/bin/sh\n", 0o644, "not executable"),
        ("#!/nowhere/python3\n", 0o755, "/nowhere/python3, which does not exist"),
        ("no first line\n", 0o755, "begins with #!"),
        ("#!/bin/sh\r\n", 0o755, "Windows line break"),
        ("#!/usr/bin/python3\r\n", 0o755, "Windows line break"),
    ],
)
async def test_faults_of_the_plugin_are_permanent(
    runner: Runner, tmp_path: Path, text: str | None, mode: int, words: str, limits: ResourceLimits
) -> None:
    """ENOENT, EACCES and a bad first line are not retried, and have a readable message."""
    plugin = tmp_path / "run.py"
    if text is not None:
        an_executable(tmp_path, text, mode=mode)
    ending = await runner.start(a_launch(plugin, limits=limits))
    assert isinstance(ending, CouldNotStart)
    outcome = interpret(ending).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.permanent) == (JobReason.COULD_NOT_START, True)
    assert words in outcome.error
    assert str(plugin) in outcome.error


async def test_a_missing_directory_has_its_own_message(runner: Runner, tmp_path: Path) -> None:
    """The message names the directory, not the plugin that would have run in it."""
    launch = a_launch(a_bad_plugin(tmp_path, "answers"), directory=tmp_path / "gone")
    ending = await runner.start(launch)
    assert isinstance(ending, CouldNotStart)
    assert f"{tmp_path / 'gone'} does not exist" in ending.error


async def test_an_impossible_variable_is_refused_without_showing_it(runner: Runner, tmp_path: Path) -> None:
    """The value of a variable may be a secret, so no message shows it."""
    environment = an_environment(tmp_path, TOKEN="canary\0canary")
    ending = await runner.start(a_launch(a_bad_plugin(tmp_path, "answers"), environment=environment))
    assert isinstance(ending, CouldNotStart)
    assert ending.permanent
    assert "canary" not in repr(ending)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    previous = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, previous[1]))
    copies = []
    try:
        with suppress(OSError):
            while True:
                copies.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, previous)
        for descriptor in copies:
            os.close(descriptor)


async def test_a_shortage_of_descriptors_passes(runner: Runner, tmp_path: Path) -> None:
    """A shortage of the machine is not the plugin's fault; the job is retried."""
    launch = a_launch(a_bad_plugin(tmp_path, "answers"))
    await result_of(runner, launch)
    with no_descriptor_left():
        ending = await runner.start(launch)
    assert isinstance(ending, CouldNotStart)
    assert not ending.permanent
    await result_of(runner, launch)


ASK_LIMITS = """\
import json, resource, sys
sys.stdin.read()
names = ["RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_NPROC"]
limits = [resource.getrlimit(getattr(resource, name))[0] for name in names]
print(json.dumps({"status": "ok", "result": limits}))
"""


async def test_limits_are_the_kernels(runner: Runner, tmp_path: Path) -> None:
    """The kernel enforces each limit."""
    limits = ResourceLimits(memory=2**31, cpu_seconds=7, open_files=33, processes=4000)
    result = await result_of(runner, a_launch(a_python_plugin(tmp_path, ASK_LIMITS), limits=limits))
    assert result == [2**31, 7, 33, 4000]


LOOK_AT_ONCE = """\
#!/bin/sh
(ulimit -n; ulimit -v) >&2 &
wait
tr '\\0' '\\n' </proc/$$/environ >&2
grep ^SigIgn /proc/$$/status >&2
echo '{}'
"""


async def test_limits_are_there_before_the_first_line_and_change_nothing_else(
    runner: Runner, tmp_path: Path
) -> None:
    """The limits also hold for programs that ignore their request, and for processes that they
    start at once.
    """
    plugin = an_executable(tmp_path, LOOK_AT_ONCE)
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C", "WORD": "x=y"}
    free = await result_of_stderr(runner, a_launch(plugin, environment=environment))
    limits = ResourceLimits(open_files=77, memory=500_000_000)
    launch = a_launch(plugin, environment=environment, limits=limits)
    for _ in range(20):
        limited = await result_of_stderr(runner, launch)
        assert limited[:2] == ["77", str(500_000_000 // 1024)]
        assert limited[2:] == free[2:]


async def result_of_stderr(runner: Runner, launch: Launch) -> list[str]:
    ending = await (await start(runner, launch)).wait()
    assert isinstance(ending, Exited)
    return ending.output.stderr.decode().splitlines()


async def test_a_limit_above_what_the_daemon_may_give_is_lowered(runner: Runner, tmp_path: Path) -> None:
    """A generous setting does not keep a plugin from starting."""
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = ResourceLimits(open_files=highest + 1)
    result = await result_of(runner, a_launch(a_python_plugin(tmp_path, ASK_LIMITS), limits=limits))
    assert result[2] == highest


async def test_the_memory_limit_is_enforced(runner: Runner, tmp_path: Path) -> None:
    """Only the plugin fails, with a MemoryError."""
    hungry = "import sys\nsys.stdin.read()\nbytearray(2**30)\n"
    launch = a_launch(a_python_plugin(tmp_path, hungry), limits=ResourceLimits(memory=2**29))
    outcome = interpret(await (await start(runner, launch)).wait()).outcome
    assert isinstance(outcome, Failed)
    assert "MemoryError" in outcome.error


@pytest.mark.parametrize("limits", [NO_LIMITS, ResourceLimits(open_files=100)])
async def test_too_few_descriptors_are_not_the_plugins_fault(
    runner: Runner, tmp_path: Path, limits: ResourceLimits
) -> None:
    """The failure is a shortage of the machine, and the next launch succeeds."""
    launch = a_launch(an_executable(tmp_path, f"#!/bin/sh\necho '{OK}'\n"), limits=limits)
    assert isinstance(await (await start(runner, launch)).wait(), Exited)
    previous = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, previous[1]))
    try:
        refused = await runner.start(launch)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, previous)
    assert isinstance(refused, CouldNotStart)
    assert refused.resources_exhausted
    assert isinstance(await (await start(runner, launch)).wait(), Exited)


async def test_the_plugins_own_limit_is_no_shortage(runner: Runner, tmp_path: Path) -> None:
    """Otherwise a program that exceeds its limit would be retried for ever."""
    launch = a_launch(
        an_executable(tmp_path, f"#!/bin/sh\necho '{OK}'\n"), limits=ResourceLimits(memory=4096)
    )
    started = await runner.start(launch)
    if isinstance(started, CouldNotStart):
        assert not started.resources_exhausted
    else:
        assert not isinstance(started, ForkServerLost)
        assert not isinstance(interpret(await started.wait()).outcome, Completed)
