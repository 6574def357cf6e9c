"""What the interpreter does around a script, done again for a forked process: before its first line, when
it fails, and after its last line. Belongs to `server` and, like it, is standard library only.
"""

# The interpreter's own steps have private names; it catches whatever a script raises; and pathlib would be
# one more module in every process:
# ruff: noqa: SLF001, BLE001, PTH120
from __future__ import annotations

import gc
import os
import signal
import sys
import time
import types
from _weakref import ref  # what `weakref` gives, without one more module
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType
    from typing import Any

#: How a process ends that died of an interrupt: by the signal, not with a status.
BY_SIGINT = -1
_LARGEST_STATUS = 2**63


def replace_environment(environment: dict[str, str]) -> None:
    # The interpreter itself sets this one when it finds a C locale, and every program of it has it.
    coerced = os.environ.get("LC_CTYPE")
    os.environ.clear()
    if coerced is not None:
        environment.setdefault("LC_CTYPE", coerced)
    os.environ.update(environment)
    time.tzset()


def prepare_interpreter(argv0: str, path: str) -> None:
    sys.argv = [path]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [argv0, path]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    renew_stdio()
    threading: Any = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()


def renew_stdio() -> None:
    """New objects for the new pipes, with the settings the interpreter chose for the old ones."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        before = getattr(sys, name)
        buffer: Any = open(number, mode + "b", -1, closefd=False)  # noqa: SIM115 - it stays open
        buffer.raw.name = "<" + name + ">"
        after = type(before)(
            buffer,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n",
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )
        after.mode = mode
        setattr(sys, name, after)
        setattr(sys, "__" + name + "__", after)


def make_main(names: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A fresh `__main__`, holding what the interpreter puts there for a script; returns its names."""
    main = types.ModuleType("__main__")
    own = main.__dict__
    own.clear()
    own.update(names)
    own["__doc__"] = None
    own["__file__"] = path
    own["__loader__"] = type(names["__loader__"])("__main__", path)
    if "__annotations__" in names:
        own["__annotations__"] = {}
    sys.modules["__main__"] = main
    return own


def run_script(code: CodeType, main: dict[str, Any]) -> int:
    """Run it; returns the exit status its process is to have, or `BY_SIGINT`."""
    try:
        exec(code, main)  # noqa: S102 - running the plugin is what all of this is for
    except SystemExit as leaving:
        return status_of(leaving.code)
    except BaseException as error:
        uncaught = without_first_frame(error)
    else:
        forget_file(main)
        return 0
    # Not inside `except`: what a hook raises must not show the script's exception as its context.
    return tell_uncaught(uncaught, main)


def without_first_frame(error: BaseException) -> BaseException:
    """The frame that caught it is ours; a script would not have it beneath its own."""
    caught_here = error.__traceback__
    return error.with_traceback(caught_here and caught_here.tb_next)


def status_of(code: object) -> int:
    """The exit status that the argument of `sys.exit` stands for."""
    if code is None:
        return 0
    if isinstance(code, int):
        if not -_LARGEST_STATUS <= code < _LARGEST_STATUS:
            raise SystemExit(code)  # what is said about it differs from version to version
        return code & 0xFF
    flush_stdio()
    sys.stderr.write(str(code) + "\n")
    return 1


def tell_uncaught(error: BaseException, main: dict[str, Any]) -> int:
    """What the interpreter does with an exception that a script did not catch."""
    try:
        call_excepthook(error)
    except SystemExit as leaving:
        return status_of(leaving.code)
    forget_file(main)
    return BY_SIGINT if isinstance(error, KeyboardInterrupt) else 1


def call_excepthook(error: BaseException) -> None:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failure:
        failed = without_first_frame(failure)
    else:
        return
    sys.stderr.write("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failed), failed, failed.__traceback__)
    sys.stderr.write("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, error.__traceback__)


def forget_file(main: dict[str, Any]) -> None:
    """The interpreter takes these away when a script has run to its end, before `atexit` is run."""
    main.pop("__file__", None)
    main.pop("__cached__", None)


def end(status: int, known: frozenset[str], libc: Any) -> None:
    """End the process as the interpreter ends it, in the same order.

    Letting the interpreter do all of it would write to every page that is shared with the server, and
    take longer than all the rest. What was there before the fork has nothing to flush; what the script
    has made and imported is let go here, so that its files are written and its finalisers run. Where
    threads are left over, which only the interpreter can hold still, or stdout cannot be written, which
    it has its own words for, it is left to the interpreter after all.
    """
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    if len(sys._current_frames()) > 1:
        leave_to_the_interpreter(status)
    atexit: Any = sys.modules.get("atexit")
    if atexit is not None:
        with suppress(BaseException):  # before 3.10 it also raises what it has told already
            atexit._run_exitfuncs()
    if not flush_stdio():
        leave_to_the_interpreter(status)
    let_go(known)
    if not flush_stdio():
        leave_to_the_interpreter(status)
    if status == BY_SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if libc is not None:
        libc.exit(status)  # unlike `_exit` it lets C libraries write what they still hold
    os._exit(status)


def leave_to_the_interpreter(status: int) -> None:
    if status == BY_SIGINT:
        sys.excepthook = lambda *_: None  # told already
        raise KeyboardInterrupt
    sys.exit(status)


def let_go(known: frozenset[str]) -> None:
    """Drop the script's names and its modules; what is still held by others is emptied."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    held = []
    for name in list(sys.modules):
        if name not in known or name == "__main__":
            module = sys.modules.pop(name)
            if isinstance(module, types.ModuleType):
                held.append(ref(module))
            del module
    gc.collect()
    for reference in reversed(held):
        left = reference()
        if left is not None:
            empty(left.__dict__)
        del left
    gc.collect()


def empty(names: dict[str, Any]) -> None:
    """As the interpreter does: names with one underscore first, `__builtins__` never."""
    for name in list(names):
        if name.startswith("_") and not name.startswith("__"):
            names[name] = None
    for name in list(names):
        if name != "__builtins__":
            names[name] = None


def flush_stdio() -> bool:
    """Whether stdout could be written."""
    written = True
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            written = written and name != "stdout"
    return written
