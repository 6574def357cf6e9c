"""The life of fork servers: when they are started, shared, replaced and stopped, and what
happens to their jobs.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.bad_plugins import (
    AMPLE,
    OK,
    a_bad_plugin,
    a_launch,
    a_python_plugin,
    an_environment,
    an_executable,
    an_interpreter,
    start,
    wait_until_gone,
)
from ductile.core.jobs.model import Completed, Failed, JobReason
from ductile.runner.interpret import interpret
from ductile.runner.port import (
    CouldNotStart,
    DeadlinePassed,
    ForkServerLost,
    GracePeriods,
    Launch,
    Process,
    StartedBy,
    WarmStart,
)
from ductile.runner.warm.client import UnusableInterpreter, start_server
from ductile.runner.warm.pool import ColdStart, WarmPlan, WarmRunner, WarmTimeouts, plan_warm_start

IMPATIENT = GracePeriods(after_terminate=0.3, for_group_members=0.2)


@pytest.fixture
async def runner() -> AsyncIterator[WarmRunner]:
    runner = WarmRunner(IMPATIENT)
    yield runner
    await runner.close()


async def result_of(process: Process) -> Any:
    outcome = interpret(await process.wait()).outcome
    assert isinstance(outcome, Completed), outcome
    return outcome.response.result


async def run(runner: WarmRunner, launch: Launch, kind: StartedBy = StartedBy.WARM) -> Any:
    process = await start(runner, launch)
    assert process.started_by is kind
    return await result_of(process)


async def reason_for_cold_start(launch: Launch) -> str:
    plan = plan_warm_start(launch)
    assert isinstance(plan, WarmPlan)
    server = await start_server(plan.key, timeout_seconds=30, on_change=lambda _: None)
    assert isinstance(server, UnusableInterpreter)
    return server.reason


def script_with_result(result: str) -> str:
    return f"""print('{{"status": "ok", "result": "{result}"}}')\n"""


async def test_an_edited_plugin_takes_effect_at_once(runner: WarmRunner, tmp_path: Path) -> None:
    """The content decides, not the size and the times of the file."""
    plugin = a_python_plugin(tmp_path, script_with_result("earlier"))
    times = plugin.stat()
    assert await run(runner, a_launch(plugin)) == "earlier"
    assert await run(runner, a_launch(plugin)) == "earlier"
    with plugin.open("r+b") as file:
        content = file.read().replace(b"earlier", b"changed")
        file.seek(0)
        file.write(content)
    os.utime(plugin, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert await run(runner, a_launch(plugin)) == "changed"
    assert len(runner.server_pids) == 1


async def test_an_edited_neighbour_takes_effect_at_once(runner: WarmRunner, tmp_path: Path) -> None:
    """Modules in the plugin's directory are imported anew in every process."""
    plugin = a_python_plugin(tmp_path, "from words import answer\nprint(answer)\n")
    (tmp_path / "words.py").write_text(f"answer = '{OK}'\n")
    assert await run(runner, a_launch(plugin)) == "done"
    (tmp_path / "words.py").write_text(f"answer = '{OK}'.replace('done', 'more')\n")
    assert await run(runner, a_launch(plugin)) == "more"


PRELOADING = """\
import sys
import threading
loaded = "slow_library" in sys.modules
import json, slow_library
print(json.dumps({"status": "ok", "result": [loaded, slow_library.VALUE]}))
"""


def a_preloading_launch(
    directory: Path, *, library: str = "VALUE = 1\n", environment: dict[str, str] | None = None
) -> Launch:
    """Return a launch of a plugin with an interpreter of its own and a preloaded library."""
    python, packages = an_interpreter(directory / "venv")
    (packages / "slow_library.py").write_text(library)
    plugin = a_python_plugin(directory / "plugin", f"#!{python}\n{PRELOADING}")
    return a_launch(plugin, warm=WarmStart(preload=("slow_library",)), environment=environment)


def library_of(directory: Path) -> Path:
    return next(directory.rglob("slow_library.py"))


async def test_preloaded_modules_are_there_before_the_plugin(runner: WarmRunner, tmp_path: Path) -> None:
    """One import in the server serves every process."""
    assert await run(runner, a_preloading_launch(tmp_path)) == [True, 1]


async def test_a_file_that_a_preloaded_module_has_opened_is_written(
    runner: WarmRunner, tmp_path: Path
) -> None:
    """The file object is from before the fork, its content from after it."""
    output_file = tmp_path / "kept"
    library = f"""
file = open({str(output_file)!r}, "a")
def __getattr__(name):
    if name == "VALUE":
        return file.write("one\\n")
    raise AttributeError(name)
"""
    launch = a_preloading_launch(tmp_path, library=library)
    assert await run(runner, launch) == [True, 4]
    assert await run(runner, launch) == [True, 4]
    assert output_file.read_text() == "one\none\n"


async def test_an_edited_preloaded_module_takes_effect_and_replaces_the_server(
    runner: WarmRunner, tmp_path: Path
) -> None:
    """The first run after the edit uses the new module; later runs are warm again."""
    launch = a_preloading_launch(tmp_path)
    assert await run(runner, launch) == [True, 1]
    (old,) = runner.server_pids
    library_of(tmp_path).write_text("VALUE = 2222\n")
    assert await run(runner, launch) == [False, 2222]
    assert await run(runner, launch) == [True, 2222]
    assert old not in runner.server_pids
    wait_until_gone(old)


async def test_a_module_that_is_edited_while_it_is_preloaded_takes_effect(
    runner: WarmRunner, tmp_path: Path
) -> None:
    """A daemon may be started while packages are still being copied."""
    importing, edited = tmp_path / "importing", tmp_path / "edited"
    os.mkfifo(importing)
    os.mkfifo(edited)
    waits = f"open({str(importing)!r}, 'w').close()\nopen({str(edited)!r}).close()\nVALUE = 1\n"
    launch = a_preloading_launch(tmp_path, library=waits)
    process = asyncio.create_task(start(runner, launch))
    await asyncio.to_thread(importing.read_bytes)
    library_of(tmp_path).write_text("VALUE = 2222\n")
    await asyncio.to_thread(edited.write_bytes, b"")
    assert await result_of(await process) == [False, 2222]
    assert await run(runner, launch) == [True, 2222]


DRAWING = """\
import multiprocessing, random
free, given, again = random.Random(), random.Random(42), random.Random(42)
again.seed()
class Own(random.Random):
    pass
own = Own()
def __getattr__(name):
    if name == "DRAWN":
        drawn = [generator.random() for generator in (free, again, own, random, given)]
        return [*drawn, multiprocessing.current_process().authkey.hex()]
    raise AttributeError(name)
"""


async def test_generators_of_preloaded_modules_are_reseeded_unless_they_have_a_seed(
    runner: WarmRunner, tmp_path: Path
) -> None:
    """Random names, keys and waiting times differ between processes."""
    python, packages = an_interpreter(tmp_path / "venv")
    (packages / "drawing.py").write_text(DRAWING)
    plugin = a_python_plugin(
        tmp_path / "plugin",
        f"#!{python}\nimport drawing, json\nprint(json.dumps({{'status': 'ok', 'result': drawing.DRAWN}}))\n",
    )
    launch = a_launch(plugin, warm=WarmStart(preload=("drawing",)))
    *first_numbers, first_seeded, first_key = await run(runner, launch)
    *second_numbers, second_seeded, second_key = await run(runner, launch)
    assert set(first_numbers).isdisjoint(second_numbers)
    assert len(set(first_numbers)) == len(first_numbers)
    assert first_key != second_key
    assert first_seeded == second_seeded == Random(42).random()


async def test_a_newly_installed_package_replaces_the_server(runner: WarmRunner, tmp_path: Path) -> None:
    """Packages beside the preloaded modules may change how an interpreter starts."""
    launch = a_preloading_launch(tmp_path)
    assert await run(runner, launch) == [True, 1]
    (library_of(tmp_path).parent / "more.pth").write_text(
        "import sys; sys.modules.setdefault('slow_library', sys); sys.VALUE = 'pth'\n"
    )
    assert await run(runner, launch) == [True, "pth"]


@pytest.mark.parametrize(
    "library", ["raise SystemExit(3)", "import nothing_of_this_name", "1 / 0", "import os; os._exit(1)"]
)
async def test_a_module_that_cannot_be_preloaded_fails_in_the_plugin(
    runner: WarmRunner, tmp_path: Path, library: str
) -> None:
    """The plugin fails at its own import, with its own message."""
    process = await start(runner, a_preloading_launch(tmp_path, library=library))
    outcome = interpret(await process.wait()).outcome
    assert isinstance(outcome, Failed)
    assert outcome.reason is JobReason.BAD_EXIT


async def test_a_module_that_starts_threads_makes_it_cold(runner: WarmRunner, tmp_path: Path) -> None:
    """Threads do not survive a fork, so such a server is not used."""
    threads = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nVALUE = 1\n"
    )
    launch = a_preloading_launch(tmp_path, library=threads)
    assert await run(runner, launch, StartedBy.SPAWN) == [False, 1]
    assert "started a thread" in await reason_for_cold_start(launch)


async def test_a_server_that_does_not_get_ready_makes_it_cold(tmp_path: Path) -> None:
    """A module that hangs at import delays one job and fails none."""
    hanging = "import signal, sys\nif sys.argv[0].endswith('server.py'): signal.pause()\nVALUE = 1\n"
    runner = WarmRunner(IMPATIENT, WarmTimeouts(start=0.5))
    try:
        assert await run(runner, a_preloading_launch(tmp_path, library=hanging), StartedBy.SPAWN) == [
            False,
            1,
        ]
    finally:
        await runner.close()


async def test_a_lost_server_is_replaced(runner: WarmRunner, tmp_path: Path) -> None:
    """A server that dies between jobs makes no job fail."""
    launch = a_launch(a_bad_plugin(tmp_path, "answers"))
    await run(runner, launch)
    (old,) = runner.server_pids
    os.kill(old, signal.SIGKILL)
    await asyncio.to_thread(wait_until_gone, old)
    assert await result_of(await start(runner, launch)) == "done"
    assert await run(runner, launch) == "done"
    assert old not in runner.server_pids


async def test_a_server_lost_during_a_job_fails_the_attempt(runner: WarmRunner, tmp_path: Path) -> None:
    """The process is ended. It may have had effects, so the attempt has failed and may be retried."""
    os.mkfifo(tmp_path / "ready")
    process = await start(runner, a_launch(a_bad_plugin(tmp_path, "ignores SIGTERM")))
    await asyncio.to_thread((tmp_path / "ready").read_bytes)
    (server,) = runner.server_pids
    os.kill(server, signal.SIGKILL)
    outcome = interpret(await process.wait()).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.permanent) == (JobReason.RUNNER_LOST, False)
    await asyncio.to_thread(wait_until_gone, process.pid)


async def test_a_server_that_hangs_is_lost_and_replaced(tmp_path: Path) -> None:
    """A request without a response may have been carried out. The next job succeeds."""
    runner = WarmRunner(IMPATIENT, WarmTimeouts(start=5.0))
    try:
        launch = a_launch(a_bad_plugin(tmp_path, "answers"))
        await run(runner, launch)
        (old,) = runner.server_pids
        os.kill(old, signal.SIGSTOP)
        assert isinstance(await runner.start(launch), ForkServerLost)
        assert await run(runner, launch) == "done"
        assert old not in runner.server_pids
    finally:
        await runner.close()


async def test_a_server_that_hangs_cannot_hang_a_job(runner: WarmRunner, tmp_path: Path) -> None:
    """The deadline holds whether or not the server reports the exit."""
    os.mkfifo(tmp_path / "ready")
    launch = a_launch(a_bad_plugin(tmp_path, "sleeps"), timeout=timedelta(seconds=10))
    process = await start(runner, launch)
    await asyncio.to_thread((tmp_path / "ready").read_bytes)
    (server,) = runner.server_pids
    os.kill(server, signal.SIGSTOP)
    assert isinstance(await process.wait(), DeadlinePassed)
    os.kill(server, signal.SIGCONT)
    assert await run(runner, a_launch(a_bad_plugin(tmp_path / "next", "answers"))) == "done"


async def test_a_module_that_hides_one_beside_the_plugin_still_hides_it(
    runner: WarmRunner, tmp_path: Path
) -> None:
    """The `json.py` of the plugin has precedence over the module that the server has imported."""
    plugin = a_python_plugin(tmp_path, "import json\nprint(json.answer)\n")
    (tmp_path / "json.py").write_text(f"answer = '{OK}'\n")
    assert await run(runner, a_launch(plugin)) == "done"


@pytest.mark.parametrize(
    ("first_line", "more", "reason"),
    [
        (f"#!{sys.executable} -B", {}, "options"),
        (f"#!/usr/bin/env -S {sys.executable} -B", {}, "options"),
        (f"#!{sys.executable}", {"PYTHONHASHSEED": "0"}, "PYTHONHASHSEED"),
        (f"#!{sys.executable}", {"LD_PRELOAD": ""}, "LD_PRELOAD"),
        ("#!/bin/sh", {}, "no Python"),
    ],
)
async def test_doubtful_cases_start_cold(
    runner: WarmRunner, tmp_path: Path, first_line: str, more: dict[str, str], reason: str
) -> None:
    """Options, and variables that change the start of an interpreter, need a real start."""
    body = f"echo '{OK}'\n" if first_line == "#!/bin/sh" else f"print('{OK}')\n"
    plugin = an_executable(tmp_path, f"{first_line}\n{body}")
    launch = a_launch(plugin, environment=an_environment(tmp_path, **more))
    assert await run(runner, launch, StartedBy.SPAWN) == "done"
    plan = plan_warm_start(launch)
    assert isinstance(plan, ColdStart)
    assert reason in plan.reason


async def test_warm_start_can_be_turned_off(runner: WarmRunner, tmp_path: Path) -> None:
    """The setting is `warm: false`."""
    launch = a_launch(a_bad_plugin(tmp_path, "answers"), warm=None)
    assert await run(runner, launch, StartedBy.SPAWN) == "done"
    assert runner.server_pids == frozenset()


async def test_a_wrapper_around_an_interpreter_starts_cold(runner: WarmRunner, tmp_path: Path) -> None:
    """The shim of a version manager chooses an interpreter at each start."""
    shim = an_executable(tmp_path / "shims", f'#!/bin/sh\nexec {sys.executable} "$@"\n', name="python3")
    plugin = a_python_plugin(tmp_path / "plugin", f"#!/usr/bin/env python3\n{script_with_result('shimmed')}")
    launch = a_launch(plugin, environment=an_environment(tmp_path, PATH=f"{shim.parent}:/usr/bin:/bin"))
    assert await run(runner, launch, StartedBy.SPAWN) == "shimmed"
    assert "wrapper" in await reason_for_cold_start(launch)


async def test_a_program_only_named_python_starts_cold(runner: WarmRunner, tmp_path: Path) -> None:
    """The server program reports its interpreter."""
    odd = an_executable(tmp_path / "odd", f"#!/bin/sh\necho '{OK}'\n", name="python3")
    plugin = an_executable(tmp_path / "plugin", f"#!/usr/bin/env {odd.name}\n")
    launch = a_launch(plugin, environment=an_environment(tmp_path, PATH=f"{odd.parent}:/usr/bin:/bin"))
    assert await run(runner, launch, StartedBy.SPAWN) == "done"


async def test_a_request_too_large_for_the_server_starts_cold(runner: WarmRunner, tmp_path: Path) -> None:
    """A launch that was never sent may be spawned."""
    large = {f"V{number}": "x" * 60_000 for number in range(20)}
    launch = a_launch(a_bad_plugin(tmp_path, "answers"), environment=an_environment(tmp_path, **large))
    assert await run(runner, launch, StartedBy.SPAWN) == "done"


async def test_a_server_never_sees_what_is_in_a_jobs_environment(runner: WarmRunner, tmp_path: Path) -> None:
    """A server starts with a minimal environment, which /proc shows for all its children."""
    environment = an_environment(tmp_path, SECRET_TOKEN="canary", DUCTILE_STORE_ID="s1", DUCTILE_JOB_ID="j1")
    await run(runner, a_launch(a_bad_plugin(tmp_path, "answers"), environment=environment))
    (server,) = runner.server_pids
    started_with = await asyncio.to_thread(Path(f"/proc/{server}/environ").read_bytes)
    assert b"canary" not in started_with
    assert b"DUCTILE_STORE_ID=s1" in started_with
    assert b"DUCTILE_JOB_ID" not in started_with


async def test_a_server_keeps_no_dead_processes(runner: WarmRunner, tmp_path: Path) -> None:
    """An ended process is reaped once its group is cleared."""
    environment = an_environment(tmp_path)
    await run(runner, a_launch(a_bad_plugin(tmp_path / "one", "answers"), environment=environment))
    process = await start(runner, a_launch(a_bad_plugin(tmp_path / "two", "sleeps"), environment=environment))
    (server,) = runner.server_pids
    children = await asyncio.to_thread(Path(f"/proc/{server}/task/{server}/children").read_text)
    assert [int(pid) for pid in children.split()] == [process.pid]
    process.stop(at_once=True)
    await process.wait()


async def test_plugins_share_a_server_unless_their_modules_differ(runner: WarmRunner, tmp_path: Path) -> None:
    """There is one server for each interpreter and set of modules."""
    environment = an_environment(tmp_path)
    for name, preload in (("a", ()), ("b", ()), ("c", ("csv",)), ("d", ("csv",))):
        plugin = a_bad_plugin(tmp_path / name, "answers")
        await run(runner, a_launch(plugin, environment=environment, warm=WarmStart(preload=preload)))
    assert len(runner.server_pids) == 2


async def test_an_idle_server_is_stopped(tmp_path: Path) -> None:
    """An unused server frees its memory; the next job starts a new one."""
    runner = WarmRunner(IMPATIENT, WarmTimeouts(idle=0.5))
    try:
        launch = a_launch(a_bad_plugin(tmp_path, "answers"))
        process = await start(runner, launch)
        (server,) = runner.server_pids
        assert await result_of(process) == "done"
        await asyncio.to_thread(wait_until_gone, server)
        assert await result_of(await start(runner, launch)) == "done"
    finally:
        await runner.close()


DAEMON = """\
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from builders.bad_plugins import a_launch
from ductile.runner.warm.pool import WarmRunner

async def main():
    runner = WarmRunner()
    process = await runner.start(a_launch(Path(sys.argv[1])))
    (server,) = runner.server_pids
    print(server, process.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


def test_a_server_and_its_processes_do_not_outlive_the_daemon(tmp_path: Path) -> None:
    """After SIGKILL of the daemon the server ends its warm jobs, so that none runs twice."""
    os.mkfifo(tmp_path / "ready")
    plugin = a_bad_plugin(tmp_path, "leaves a child that ignores SIGTERM")
    path = os.pathsep.join(["tests", "src"])
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(plugin)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )
    assert daemon.stdout is not None
    with daemon, daemon.stdout:
        (tmp_path / "ready").read_bytes()
        pids = [int(word) for word in daemon.stdout.readline().split()]
        pids.append(int((tmp_path / "child").read_text()))
        descriptors = [os.pidfd_open(pid) for pid in pids]
        daemon.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], AMPLE.total_seconds())[0]
        os.close(descriptor)


async def test_without_a_thread_there_is_no_server_and_no_process(runner: WarmRunner, tmp_path: Path) -> None:
    """A shortage of the machine makes the start fail. The next launch is warm."""
    launch = a_launch(a_python_plugin(tmp_path, script_with_result("later")))
    usual = threading.stack_size(2**46)  # more bytes than any address space has
    try:
        refused = await runner.start(launch)
    finally:
        threading.stack_size(usual)
    assert isinstance(refused, CouldNotStart)
    assert refused.resources_exhausted
    assert await run(runner, launch) == "later"
