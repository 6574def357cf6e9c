"""Starts a program with `posix_spawn` of the C library, without holding the GIL.

`Popen` holds the GIL until the new program is loaded, which stops every thread of the daemon, and needs a
tenth of a millisecond of its own. A call through ctypes releases the GIL. `Popen` is used where the C
library lacks a function (glibc before 2.34, musl), where Python was built without ctypes, and on other
systems than Linux, where the constants below differ.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

_NEEDED_FUNCTIONS = ("posix_spawn_file_actions_addchdir_np", "posix_spawn_file_actions_addclosefrom_np")
#: POSIX_SPAWN_SETSIGDEF and POSIX_SPAWN_SETSID of <spawn.h>.
_FLAGS = 0x04 | 0x80
#: Python ignores these signals; a program that it starts must not.
_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
#: More bytes than any C library needs for one of its structures.
_STRUCT_BYTES = 1024
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

#: The C library, loaded twice. PyDLL keeps the GIL, for calls that take less time than releasing it.
_libc = ctypes.PyDLL(None)
_libc_without_gil = ctypes.CDLL(None)


def can_spawn(descriptors: Sequence[int]) -> bool:
    """Return whether `spawn` can be used here. Descriptors must not be among their targets 0, 1, 2 …"""
    return min(descriptors) >= len(descriptors) and _has_needed_functions


def spawn(
    command: Sequence[str], environment: Mapping[str, str], directory: str, descriptors: Sequence[int]
) -> int:
    """Start a program in a session of its own, with these descriptors as 0, 1, 2 … Returns its pid."""
    words = [os.fsencode(word) for word in command]
    arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    # `os.fsencode` does the same, but slowly for a dozen variables in every job.
    entries = [f"{name}={value}".encode(_ENCODING, _ERRORS) for name, value in environment.items()]
    # A C string ends at its first NUL.
    if b"\0" in b"".join((*words, *entries)) or "=" in "".join(environment):
        raise ValueError("no process can have such arguments or such an environment")
    environ = (ctypes.c_char_p * (len(entries) + 1))(*entries, None)
    actions = ctypes.create_string_buffer(_STRUCT_BYTES)
    pid = ctypes.c_int()
    _check(_libc.posix_spawn_file_actions_init(actions))
    try:
        for number, descriptor in enumerate(descriptors):
            _check(_libc.posix_spawn_file_actions_adddup2(actions, descriptor, number))
        _check(_libc.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(directory)))
        _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, len(descriptors)))
        _check(
            _libc_without_gil.posix_spawn(
                ctypes.byref(pid), words[0], actions, _attributes, arguments, environ
            )
        )
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))


def _make_attributes() -> ctypes.Array[ctypes.c_char]:
    """Return the attributes of every spawned process: its own session, and default handling of signals."""
    signals = ctypes.create_string_buffer(_STRUCT_BYTES)
    _libc.sigemptyset(signals)
    for number in _RESET_SIGNALS:
        _libc.sigaddset(signals, int(number))
    attributes = ctypes.create_string_buffer(_STRUCT_BYTES)
    _libc.posix_spawnattr_init(attributes)
    _libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_FLAGS))
    _libc.posix_spawnattr_setsigdefault(attributes, signals)
    return attributes


_has_needed_functions = sys.platform == "linux" and all(hasattr(_libc, name) for name in _NEEDED_FUNCTIONS)
_attributes = _make_attributes() if _has_needed_functions else ctypes.create_string_buffer(0)
