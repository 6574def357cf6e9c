"""Runs a script in a forked process as the interpreter would: before its first line, when it fails, and after
its last line. Part of the fork server and, like it, standard library only.
"""

# The interpreter's own steps have private names, a script may raise anything, and pathlib would be one more
# module in every process:
# ruff: noqa: SLF001, BLE001, PTH120
from __future__ import annotations

import gc
import os
import signal
import sys
import time
import types
from _io import BytesIO, StringIO, _IOBase  # the originals of `io` and `weakref`, without one more module
from _weakref import ref
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import CodeType
    from typing import Any, NoReturn

#: Instead of an exit status: an interrupt ended the script, so the process kills itself with SIGINT.
KILLED_BY_SIGINT = -1
_LARGEST_STATUS = 2**63
#: The standard streams of this process with their buffers. They may still hold the response of a script that
#: has replaced `sys.stdout` or detached its buffer.
_STREAMS: list[Any] = []


def replace_environment(environment: dict[str, str]) -> None:
    """Make this the environment of the process."""
    # The interpreter itself sets this variable when it finds a C locale.
    coerced = os.environ.get("LC_CTYPE")
    os.environ.clear()
    os.environ.update(environment)
    if coerced is not None:
        os.environ.setdefault("LC_CTYPE", coerced)
    time.tzset()


def prepare_interpreter(argv0: str, path: str) -> None:
    """Set the arguments, module path, streams and thread id as a new interpreter has them for a script."""
    sys.argv = [path]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [argv0, path]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    renew_stdio()
    threading: Any = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()


def renew_stdio() -> None:
    """Create stream objects for the new pipes, with the settings the interpreter chose for the old ones."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        buffer: Any = open(number, mode + "b", -1, closefd=False)  # noqa: SIM115 - it stays open
        buffer.raw.name = "<" + name + ">"
        new = type(old)(
            buffer,
            encoding=old.encoding,
            errors=old.errors,
            newline="\n",
            line_buffering=old.line_buffering,
            write_through=old.write_through,
        )
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, "__" + name + "__", new)
        _STREAMS.extend(layers(new))


def layers(stream: Any) -> tuple[Any, ...]:
    """Return a text stream, its buffer and its raw file."""
    return (stream, stream.buffer, stream.buffer.raw)


def make_main(names: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Create a new `__main__` with the names that the interpreter defines. Returns its namespace."""
    main = types.ModuleType("__main__")
    namespace = main.__dict__
    namespace.clear()
    namespace.update(names)
    namespace["__doc__"] = None
    namespace["__file__"] = path
    namespace["__loader__"] = type(names["__loader__"])("__main__", path)
    if "__annotations__" in names:
        namespace["__annotations__"] = {}
    sys.modules["__main__"] = main
    return namespace


def run_script(code: CodeType, main: dict[str, Any]) -> int:
    """Run the code. Returns the exit status for the process, or `KILLED_BY_SIGINT`."""
    try:
        exec(code, main)  # noqa: S102 - running the plugin is the purpose
    except SystemExit as system_exit:
        return status_of(system_exit)
    except BaseException as error:
        uncaught = without_first_frame(error)
    else:
        flush_stdio()
        remove_file_names(main)
        return 0
    # Not inside `except`: an exception of a hook must not have the script's exception as its context.
    flush_stdio()
    return report_uncaught(uncaught, main)


def flush_stdio() -> None:
    """Flush the standard streams, as the interpreter does before it waits for threads.

    So the response is sent even if a thread never ends.
    """
    for name in ("stderr", "stdout"):
        with suppress(BaseException):
            getattr(sys, name).flush()


def without_first_frame(error: BaseException) -> BaseException:
    """Remove our own frame, which the interpreter would not have beneath the script's."""
    caught_here = error.__traceback__
    return error.with_traceback(caught_here and caught_here.tb_next)


def status_of(system_exit: SystemExit) -> int:
    """Return the exit status that the argument of `sys.exit` stands for."""
    if type(system_exit) is SystemExit:
        code: Any = 0 if system_exit.code is None else system_exit.code
        if type(code) in (int, bool) and -_LARGEST_STATUS <= code < _LARGEST_STATUS:
            flush_stdio()
            return int(code & 0xFF)
    # For a text, an object or a subclass, the interpreter itself prints the message and chooses the status.
    prepare_for_interpreter()
    raise system_exit


def report_uncaught(error: BaseException, main: dict[str, Any]) -> int:
    """Handle an uncaught exception as the interpreter does. Returns the same as `run_script`."""
    try:
        call_excepthook(error)
    except SystemExit as system_exit:
        return status_of(system_exit)
    remove_file_names(main)
    return KILLED_BY_SIGINT if isinstance(error, KeyboardInterrupt) else 1


def call_excepthook(error: BaseException) -> None:
    """Have `sys.excepthook` print the exception, as the interpreter does, and print a failure of the hook."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        print_error("sys.excepthook is missing\n")
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failure:
        failed = without_first_frame(failure)
    else:
        return
    print_error("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failed), failed, failed.__traceback__)
    print_error("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, error.__traceback__)


def print_error(text: str) -> None:
    """Write to `sys.stderr`, or to descriptor 2 if that fails."""
    try:
        sys.stderr.write(text)
    except BaseException:
        os.write(2, text.encode())


def remove_file_names(main: dict[str, Any]) -> None:
    """Remove the names that the interpreter removes when a script has ended, before it runs `atexit`."""
    main.pop("__file__", None)
    main.pop("__cached__", None)


def end_process(status: int, preloaded: frozenset[str], finalisable: Sequence[Any], libc: Any) -> None:
    """End the process as the interpreter ends it (`Py_FinalizeEx`), in the same order.

    Full finalisation by the interpreter writes to most memory pages that are shared with the server, and
    takes longer than everything else. It is skipped when it would have no visible effect: no other thread,
    no open file, no object with a finaliser, and the original stdout. Otherwise the interpreter finalises
    itself, in the right order. `finalisable` are the objects that had a finaliser before the fork.
    """
    if len(sys._current_frames()) > 1:
        let_interpreter_finalise(status)
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        with suppress(BaseException):
            threading._shutdown()
    atexit: Any = sys.modules.get("atexit")
    if atexit is not None:
        with suppress(BaseException):  # before 3.10 it also raises the exception that it has printed
            atexit._run_exitfuncs()
    if len(sys._current_frames()) > 1 or not flush_streams() or find_finalisable(finalisable):
        let_interpreter_finalise(status)
    if find_finalisable(gc.get_objects()):
        gc.collect()  # the object may be unreachable already
        if find_finalisable(gc.get_objects()):
            let_interpreter_finalise(status)
    drop_modules(preloaded)
    if not flush_streams():
        let_interpreter_finalise(status)
    if status == KILLED_BY_SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if libc is not None:
        libc.exit(status)  # unlike `_exit` it lets C libraries flush their buffers
    os._exit(status)


def let_interpreter_finalise(status: int) -> NoReturn:
    """End the process by the exception that makes the interpreter finalise itself."""
    prepare_for_interpreter()
    if status == KILLED_BY_SIGINT:
        sys.excepthook = lambda *_: None  # printed already
        raise KeyboardInterrupt
    sys.exit(status)


def prepare_for_interpreter() -> None:
    """Release our references and the frozen objects, so that the interpreter finalises all of them."""
    _STREAMS.clear()
    gc.unfreeze()


def find_finalisable(objects: Sequence[Any], except_for: Iterable[Any] = ()) -> list[Any]:
    """Return the objects whose finaliser would have an effect, without those in `except_for`."""
    classes = {cls for cls in set(map(type, objects)) if hasattr(cls, "__del__")} - {BytesIO, StringIO}
    ignored = set(map(id, [*except_for, *_STREAMS]))
    return [
        candidate
        for candidate in objects
        if type(candidate) in classes and id(candidate) not in ignored and not is_finished(candidate)
    ]


def is_finished(candidate: Any) -> bool:
    """Return whether the finaliser of an object has no effect: a closed file, an exhausted generator."""
    cls = type(candidate)
    if cls is types.GeneratorType:
        return candidate.gi_frame is None
    try:
        return cls.__del__ is _IOBase.__del__ and bool(candidate.closed)
    except Exception:
        return False


class Mark:
    """Placed among the names of a module, to find out whether they are still referenced."""

    __slots__ = ("__weakref__",)


def drop_modules(preloaded: frozenset[str]) -> None:
    """Drop the script's modules, and clear the namespaces that are still referenced.

    Nothing in them has a Python finaliser, but objects implemented in C may flush their buffers.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    marks = []
    for name in list(sys.modules):
        if name not in preloaded or name == "__main__":
            module = sys.modules.pop(name)
            if isinstance(module, types.ModuleType):
                mark = module.__dict__["__mark__"] = Mark()
                marks.append(ref(mark))
                del mark
            del module
    gc.collect()
    referenced = [mark for mark in (reference() for reference in marks) if mark is not None]
    for names in gc.get_referrers(*referenced) if referenced else ():
        if type(names) is dict and "__mark__" in names:
            clear_namespace(names)
    del referenced
    gc.collect()


def clear_namespace(names: dict[str, Any]) -> None:
    """Clear as the interpreter does: names with one underscore first, `__builtins__` never."""
    for name in list(names):
        if name.startswith("_") and not name.startswith("__"):
            names[name] = None
    for name in list(names):
        if name != "__builtins__":
            names[name] = None


def flush_streams() -> bool:
    """Flush stdout and stderr. Returns False if that fails or the script has replaced them."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not any(stream is original for original in _STREAMS):
                return False
        for stream in _STREAMS:
            with suppress(ValueError):  # closed, or detached from its buffer, which is the next one
                stream.flush()
    except Exception:
        return False
    return True
