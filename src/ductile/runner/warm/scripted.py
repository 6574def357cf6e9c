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
from _io import BytesIO, StringIO, _IOBase  # what `io` and `weakref` give, without one more module
from _weakref import ref
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import CodeType
    from typing import Any, NoReturn

#: How a process ends that died of an interrupt: by the signal, not with a status.
BY_SIGINT = -1
_LARGEST_STATUS = 2**63
#: The streams of this process with their buffers: the script may have put something else in the place of
#: `sys.stdout`, or taken its buffer, and its answer still waits in these.
_STREAMS: list[Any] = []


def replace_environment(environment: dict[str, str]) -> None:
    # The interpreter itself sets this one when it finds a C locale, and every program of it has it.
    coerced = os.environ.get("LC_CTYPE")
    os.environ.clear()
    os.environ.update(environment)
    if coerced is not None:
        os.environ.setdefault("LC_CTYPE", coerced)
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
        _STREAMS.extend(layers(after))


def layers(stream: Any) -> tuple[Any, ...]:
    return (stream, stream.buffer, stream.buffer.raw)


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
        return status_of(leaving)
    except BaseException as error:
        uncaught = without_first_frame(error)
    else:
        flush_at_the_last_line()
        forget_file(main)
        return 0
    # Not inside `except`: what a hook raises must not show the script's exception as its context.
    flush_at_the_last_line()
    return tell_uncaught(uncaught, main)


def flush_at_the_last_line() -> None:
    """The interpreter does it before it waits for threads: whatever they do then, the answer is out."""
    for name in ("stderr", "stdout"):
        with suppress(BaseException):
            getattr(sys, name).flush()


def without_first_frame(error: BaseException) -> BaseException:
    """The frame that caught it is ours; a script would not have it beneath its own."""
    caught_here = error.__traceback__
    return error.with_traceback(caught_here and caught_here.tb_next)


def status_of(leaving: SystemExit) -> int:
    """The exit status that the argument of `sys.exit` stands for."""
    if type(leaving) is SystemExit:
        code: Any = 0 if leaving.code is None else leaving.code
        if type(code) in (int, bool) and -_LARGEST_STATUS <= code < _LARGEST_STATUS:
            flush_at_the_last_line()
            return int(code & 0xFF)
    # A text, an object, a class of the script's own: what is said about it, and where, is best known by
    # the interpreter.
    make_way()
    raise leaving


def tell_uncaught(error: BaseException, main: dict[str, Any]) -> int:
    """What the interpreter does with an exception that a script did not catch."""
    try:
        call_excepthook(error)
    except SystemExit as leaving:
        return status_of(leaving)
    forget_file(main)
    return BY_SIGINT if isinstance(error, KeyboardInterrupt) else 1


def call_excepthook(error: BaseException) -> None:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        say("sys.excepthook is missing\n")
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failure:
        failed = without_first_frame(failure)
    else:
        return
    say("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failed), failed, failed.__traceback__)
    say("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, error.__traceback__)


def say(text: str) -> None:
    """To `sys.stderr`, or where it would have led if that does not work any more."""
    try:
        sys.stderr.write(text)
    except BaseException:
        os.write(2, text.encode())


def forget_file(main: dict[str, Any]) -> None:
    """The interpreter takes these away when a script has run to its end, before `atexit` is run."""
    main.pop("__file__", None)
    main.pop("__cached__", None)


def end(status: int, known: frozenset[str], older: Sequence[Any], libc: Any) -> None:
    """End the process as the interpreter ends it, in the same order.

    Letting the interpreter do all of it writes to most pages that are shared with the server, and takes
    longer than all the rest. It is not needed where nothing is left that could be seen to end: no thread
    but this one, no file that is open, no object with a finaliser, and nothing odd about stdout. Where
    there is, only the interpreter knows the right order, the right words and what to leave out, so it is
    left to it. `older` is what had a finaliser before the fork.
    """
    if len(sys._current_frames()) > 1:
        leave_to_the_interpreter(status)
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        with suppress(BaseException):
            threading._shutdown()
    atexit: Any = sys.modules.get("atexit")
    if atexit is not None:
        with suppress(BaseException):  # before 3.10 it also raises what it has told already
            atexit._run_exitfuncs()
    if len(sys._current_frames()) > 1 or not flush_streams() or find_last_words(older):
        leave_to_the_interpreter(status)
    if find_last_words(gc.get_objects()):
        gc.collect()  # perhaps it was garbage
        if find_last_words(gc.get_objects()):
            leave_to_the_interpreter(status)
    let_go(known)
    if not flush_streams():
        leave_to_the_interpreter(status)
    if status == BY_SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if libc is not None:
        libc.exit(status)  # unlike `_exit` it lets C libraries write what they still hold
    os._exit(status)


def leave_to_the_interpreter(status: int) -> NoReturn:
    make_way()
    if status == BY_SIGINT:
        sys.excepthook = lambda *_: None  # told already
        raise KeyboardInterrupt
    sys.exit(status)


def make_way() -> None:
    """Before the interpreter takes over: nothing may be kept from it, by us or by the freeze."""
    _STREAMS.clear()
    gc.unfreeze()


def find_last_words(things: Sequence[Any], apart: Iterable[Any] = ()) -> list[Any]:
    """Those among them that may do or say something when they are destroyed, apart from these."""
    kinds = {kind for kind in set(map(type, things)) if hasattr(kind, "__del__")} - {BytesIO, StringIO}
    ours = set(map(id, [*apart, *_STREAMS]))
    return [
        thing for thing in things if type(thing) in kinds and id(thing) not in ours and not is_over(thing)
    ]


def is_over(thing: Any) -> bool:
    """Whether its finaliser has nothing to do: a file is closed, a generator has run to its end."""
    kind = type(thing)
    if kind is types.GeneratorType:
        return thing.gi_frame is None
    try:
        return kind.__del__ is _IOBase.__del__ and bool(thing.closed)
    except Exception:
        return False


class Mark:
    """What is in the names of a module lives as long as they do."""

    __slots__ = ("__weakref__",)


def let_go(known: frozenset[str]) -> None:
    """Drop the script's names and its modules, and empty those names that others still hold.

    Nothing here has a finaliser; but there are objects made in C that write what they hold when they go.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    marks = []
    for name in list(sys.modules):
        if name not in known or name == "__main__":
            module = sys.modules.pop(name)
            if isinstance(module, types.ModuleType):
                mark = module.__dict__["__mark__"] = Mark()
                marks.append(ref(mark))
                del mark
            del module
    gc.collect()
    held = [mark for mark in (reference() for reference in marks) if mark is not None]
    for names in gc.get_referrers(*held) if held else ():
        if type(names) is dict and "__mark__" in names:
            empty(names)
    del held
    gc.collect()


def empty(names: dict[str, Any]) -> None:
    """As the interpreter does: names with one underscore first, `__builtins__` never."""
    for name in list(names):
        if name.startswith("_") and not name.startswith("__"):
            names[name] = None
    for name in list(names):
        if name != "__builtins__":
            names[name] = None


def flush_streams() -> bool:
    """Whether everything that was printed is out; not if the script prints to something of its own."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not any(stream is own for own in _STREAMS):
                return False
        for stream in _STREAMS:
            with suppress(ValueError):  # it is closed, or its buffer was taken from it, which is the next one
                stream.flush()
    except Exception:
        return False
    return True
