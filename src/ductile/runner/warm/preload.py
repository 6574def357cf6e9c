"""Effects of a fork server's imports on the processes that it forks.

The functions decide whether the interpreter can be forked, which changed files make the server out of date,
and which random generators have to be reseeded.

Part of the fork server and, like it, standard library only.
"""

# pathlib would be one more module in every process:
# ruff: noqa: PTH116, PTH120, PTH208
from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OLDEST_PYTHON = (3, 8)
#: The signature of a file that counts as changed: no file has it.
CHANGED = ()
#: File times follow the kernel's ticks and may be behind our clock by this many nanoseconds.
_TICK = 10_000_000
_KEY_BYTES = 32


def file_signature(path: str) -> tuple[int, ...] | None:
    """Return the metadata that change with the file; None if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def files_to_watch(server: str) -> set[str]:
    """Return the imported files that may be edited, and the directories in which packages are installed.

    The standard library changes only with the interpreter, so the executable stands for it.
    """
    library = os.path.dirname(os.__file__) + os.sep
    files = {sys.executable}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file != server and not (file.startswith(library) and "-packages" not in file):
            files.add(file)
    files.update(package_directories())
    return files


def package_directories() -> list[str]:
    return [directory for directory in sys.path if "-packages" in directory]


class ImportChangeDetector:
    """Finds files that changed during the import: the old or the new version may have been imported."""

    def __init__(self) -> None:
        self.began = time.time_ns()
        self.before = {directory: names_in(directory) for directory in package_directories()}

    def file_signature(self, path: str) -> tuple[int, ...] | None:
        """Return the signature of a file; `CHANGED` if the file changed during the import."""
        signature = file_signature(path)
        if path in self.before:
            # Importing itself creates `__pycache__`; that is no change.
            changed = names_in(path) != self.before[path]
        else:
            # Its ctime decides. A ctime in the future is not from this import: the clock was set back.
            changed = signature is not None and self.began - _TICK <= signature[-1] <= time.time_ns()
        return CHANGED if changed else signature


def names_in(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory)) - {"__pycache__"}
    except OSError:
        return frozenset()


def unusable_reason() -> str | None:
    """Return why this interpreter must not be forked; None if it may be."""
    if sys.implementation.name != "cpython":
        return "it is not CPython"
    if sys.version_info < OLDEST_PYTHON:
        return "it is older than Python 3.8"
    if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():  # noqa: SLF001 - there is no other way
        return "it runs without the interpreter lock"
    with suppress(OSError):
        if len(os.listdir("/proc/self/task")) > 1:
            return "a preloaded module has started a thread"
    return None


def find_libc() -> Any:
    """Return the C library with the functions that forked processes call; None without ctypes."""
    try:
        import ctypes  # noqa: PLC0415 - not every Python has it

        libc = ctypes.PyDLL(None)
        libc.prctl, libc.exit  # noqa: B018 - looked up once, before the first fork
    except (ImportError, OSError, AttributeError):
        return None
    return libc


class RngTracker:
    """Records the random generators that preloaded modules create without a seed; reseeds them after a fork.

    Otherwise all processes would draw the same numbers. Generators with an explicit seed are meant to repeat,
    and Python itself reseeds the generator of `random.random()`.

    The tracker is also a finder of modules that waits for the import of `random`: importing it for servers
    that do not need it would make each of their processes slower.
    """

    def __init__(self) -> None:
        self._unseeded: dict[int, Any] = {}
        self._class: Any = None
        self._seed: Any = None

    def start(self) -> None:
        if "random" in sys.modules:
            self._replace_seed(sys.modules["random"])
        else:
            finders: list[Any] = sys.meta_path
            finders.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._class is not None:
            self._class.seed = self._seed

    def reseed(self) -> None:
        """Reseed the recorded generators. Called in the forked process."""
        for generator in self._unseeded.values():
            generator.seed()
        multiprocessing: Any = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None:
            multiprocessing.current_process().authkey = os.urandom(_KEY_BYTES)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "random":
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = spec and spec.loader
        if loader is not None and not isinstance(loader, type):

            def exec_module(module: Any) -> None:
                del loader.exec_module  # uncovers the method of the class
                loader.exec_module(module)
                self._replace_seed(module)

            loader.exec_module = exec_module
        return spec

    def _replace_seed(self, module: Any) -> None:
        self._class = module.Random
        original = self._seed = self._class.seed

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            original(generator, a, version)
            self._unseeded.pop(id(generator), None)
            if a is None:
                self._unseeded[id(generator)] = generator

        self._class.seed = seed
