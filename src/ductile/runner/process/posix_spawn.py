"""Starting a program with the C library's `posix_spawn`, and without Python's lock.

`Popen` keeps the lock until the new program is loaded, so that every thread of the daemon stands still
meanwhile, and does a tenth of a millisecond of work of its own. A call through ctypes lets go of the
lock. `Popen` has to serve where the C library lacks a function (glibc before 2.34, musl), where Python
was built without ctypes, and elsewhere than on Linux, where the numbers below mean something else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

_NEEDED = ("posix_spawn_file_actions_addchdir_np", "posix_spawn_file_actions_addclosefrom_np")
#: The numbers of <spawn.h>: put some signals back to their default, and make a session.
_FLAGS = 0x04 | 0x80
#: Python ignores these two; a program that it starts must not.
_BACK_TO_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)
#: More than any C library needs for one of its structures.
_ROOM = 1024
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

#: The same library twice: with the lock, for what takes less time than to let go of it, and without.
_brief = ctypes.PyDLL(None)
_lengthy = ctypes.CDLL(None)


def can_spawn(descriptors: Sequence[int]) -> bool:
    """Whether `spawn` can be used here, for these descriptors: it puts one after the other into place."""
    return min(descriptors) >= len(descriptors) and _has_all


def spawn(
    command: Sequence[str], environment: Mapping[str, str], directory: str, descriptors: Sequence[int]
) -> int:
    """Start a program in a session of its own, with these descriptors, from 0, and no others; its pid."""
    words = [os.fsencode(word) for word in command]
    arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    environ = _entries(environment)
    actions = ctypes.create_string_buffer(_ROOM)
    pid = ctypes.c_int()
    _check(_brief.posix_spawn_file_actions_init(actions))
    try:
        for number, descriptor in enumerate(descriptors):
            _check(_brief.posix_spawn_file_actions_adddup2(actions, descriptor, number))
        _check(_brief.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(directory)))
        _check(_brief.posix_spawn_file_actions_addclosefrom_np(actions, len(descriptors)))
        _check(_lengthy.posix_spawn(ctypes.byref(pid), words[0], actions, _attributes, arguments, environ))
    finally:
        _brief.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _entries(environment: Mapping[str, str]) -> ctypes.Array[ctypes.c_char_p]:
    # As `os.fsencode` does it, which is not made for a dozen of them in every job.
    entries = [f"{name}={value}".encode(_ENCODING, _ERRORS) for name, value in environment.items()]
    # C would end the text there without a word.
    if b"\0" in b"".join(entries) or "=" in "".join(environment):
        raise ValueError("no process can have such an environment")
    return (ctypes.c_char_p * (len(entries) + 1))(*entries, None)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))


def _make_attributes() -> ctypes.Array[ctypes.c_char]:
    signals = ctypes.create_string_buffer(_ROOM)
    _brief.sigemptyset(signals)
    for number in _BACK_TO_DEFAULT:
        _brief.sigaddset(signals, int(number))
    attributes = ctypes.create_string_buffer(_ROOM)
    _brief.posix_spawnattr_init(attributes)
    _brief.posix_spawnattr_setflags(attributes, ctypes.c_short(_FLAGS))
    _brief.posix_spawnattr_setsigdefault(attributes, signals)
    return attributes


_has_all = sys.platform == "linux" and all(hasattr(_brief, name) for name in _NEEDED)
_attributes = _make_attributes() if _has_all else ctypes.create_string_buffer(0)
