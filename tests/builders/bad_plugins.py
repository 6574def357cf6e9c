"""Plugins that behave badly, as files, and the launches that start them."""

from __future__ import annotations

import os
import select
import sys
import venv
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ductile.runner.port import (
    NO_LIMITS,
    CouldNotStart,
    ForkServerLost,
    Launch,
    Process,
    ResourceLimits,
    Runner,
    WarmStart,
)

OK = '{"status": "ok", "result": "done"}'
REQUEST = b'{"protocol": 2, "job_id": "j1", "command": "poll"}'
#: Python plugins may start warm, if the runner can do that.
WARM = WarmStart()
#: Long enough for the slowest machine; no test waits for it.
AMPLE = timedelta(seconds=60)

#: Bodies of Python plugins. `say` prints and flushes; `ready` signals the test through a FIFO.
BAD_PLUGINS = {
    "answers": "sys.stdin.read(); say(OK)",
    "prints garbage": "say('this is not JSON')",
    "prints nothing": "pass",
    "prints blanks": "say(' \\n\\t ')",
    "prints a list": "say('[1, 2]')",
    "prints two objects": "say(OK + OK)",
    "prints trailing text": "say(OK + ' bye')",
    "prints NaN": 'say(\'{"status": "ok", "result": NaN}\')',
    "prints 5,000 levels": 'say(\'{"status": "ok", "result": \' + "[" * 5000 + "]" * 5000 + "}")',
    "prints invalid UTF-8": 'os.write(1, b\'{"status": "ok", "result": "\\xff"}\')',
    "prints a lone surrogate": 'say(\'{"status": "ok", "result": "\' + chr(92) + \'ud800"}\')',
    "prints NUL bytes": "os.write(1, bytes(100))",
    "prints 11 MiB": "say('x' * (11 * 1024 * 1024))",
    "prints without end": "while True: say('x' * 65536)",
    "complains 1 MiB": "sys.stderr.write('e' * (1024 * 1024)); say(OK)",
    "complains without end": "while True: os.write(2, b'e' * 65536)",
    "closes stdin": "os.close(0); say(OK)",
    "never reads": "say(OK)",
    "exits 3 after an answer": "say(OK); sys.exit(3)",
    "exits 3 without an answer": "sys.stderr.write('no idea\\n'); sys.exit(3)",
    "exits 78": "sys.exit(78)",
    "exits 78 with an error": 'say(\'{"status": "error", "error": "no key"}\'); sys.exit(78)',
    "exits 78 with an ok": "say(OK); sys.exit(78)",
    "tells an error": 'say(\'{"status": "error", "error": "no luck"}\')',
    "tells a lasting error": 'say(\'{"status": "error", "error": "no luck", "retry": false}\')',
    "kills itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "dumps core": "os.abort()",
    "answers and sleeps": "say(OK); wait_forever()",
    "sleeps": "ready(); wait_forever()",
    "ignores SIGTERM": "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); wait_forever()",
    "answers at SIGTERM": (
        "signal.signal(signal.SIGTERM, lambda *_: (say(OK), os._exit(0))); ready(); wait_forever()"
    ),
    "answers and leaves a thread": (
        "import threading\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), ready(), wait_forever())).start()\n"
        "sys.stdout.write(OK)"
    ),
    "leaves a child with its pipes": "in_background(lambda: None); say(OK)",
    "leaves a child without pipes": "in_background(lambda: [os.close(n) for n in range(3)]); say(OK)",
    "leaves a child that finishes by itself": (
        "after_its_end(lambda: open(os.environ['CHILD'] + '-done', 'w').close()); say(OK)"
    ),
    "leaves a child in another group": "in_background(lambda: os.setpgid(0, 0)); say(OK)",
    "leaves a daemon": "in_background(os.setsid); say(OK)",
    "leaves a child that ignores SIGTERM": (
        "in_background(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)); ready(); wait_forever()"
    ),
}

_HEAD = """\
#!{interpreter}
import os, signal, sys

OK = {ok!r}


def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def ready():
    with open(os.environ["READY"], "w") as written_to:
        written_to.write(str(os.getpid()))


def wait_forever():
    while True:
        signal.pause()


def in_background(prepare):
    reading, writing = os.pipe()
    if os.fork() == 0:
        prepare()
        with open(os.environ["CHILD"], "w") as file:
            file.write(str(os.getpid()))
        os.close(reading)
        os.close(writing)
        wait_forever()
    os.close(writing)
    os.read(reading, 1)


def after_its_end(work):
    reading, writing = os.pipe()
    if os.fork() == 0:
        for number in range(3):
            os.close(number)
        os.close(writing)
        os.read(reading, 1)
        work()
        os._exit(0)


"""


def a_bad_plugin(directory: Path, name: str) -> Path:
    """Write a plugin of `BAD_PLUGINS` and return its script."""
    return a_python_plugin(
        directory, _HEAD.format(interpreter=sys.executable, ok=OK) + BAD_PLUGINS[name] + "\n"
    )


def a_python_plugin(directory: Path, text: str, *, name: str = "run.py") -> Path:
    """Write a script with this text and return its path. A missing `#!` line is added."""
    if not text.startswith("#!"):
        text = f"#!{sys.executable}\n{text}"
    return an_executable(directory, text, name=name)


def an_executable(directory: Path, text: str, *, name: str = "run.py", mode: int = 0o755) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def an_interpreter(directory: Path) -> tuple[Path, Path]:
    """Return the interpreter of a new virtual environment, and its directory for packages."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    return directory / "bin" / "python3", next((directory / "lib").glob("python3*/site-packages"))


def an_environment(directory: Path, **more: str) -> dict[str, str]:
    """Return a small environment, with paths where plugins can leave messages."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "READY": str(directory / "ready"),
        "CHILD": str(directory / "child"),
        **more,
    }


def a_launch(
    entrypoint: Path,
    *,
    request: bytes = REQUEST,
    timeout: timedelta = AMPLE,
    limits: ResourceLimits = NO_LIMITS,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    warm: WarmStart | None = WARM,
) -> Launch:
    plugin_directory = entrypoint.parent
    return Launch(
        entrypoint=str(entrypoint),
        request=request,
        environment=an_environment(plugin_directory) if environment is None else environment,
        directory=str(directory or plugin_directory),
        timeout=timeout,
        limits=limits,
        warm=warm,
    )


async def start(runner: Runner, launch: Launch) -> Process:
    """Start a launch; the test fails if it cannot start."""
    process = await runner.start(launch)
    assert not isinstance(process, CouldNotStart | ForkServerLost), process
    return process


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], AMPLE.total_seconds())
        finally:
            os.close(descriptor)
        assert ended, f"process {pid} still runs"


def open_descriptors() -> dict[str, str]:
    """Return the open descriptors of this process: number -> target."""
    descriptors = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            descriptors[entry.name] = str(entry.readlink())
    return descriptors


def children() -> list[str]:
    """Return the process ids of children that are not reaped, of all threads."""
    pids: list[str] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            pids += listing.read_text().split()
    return pids
