"""Checks who else can change a plugin: every directory on the path to it, and everything in it.

Only root and the user of this process may. A directory that every user can write to is accepted on the path
only if it is sticky, such as /tmp, where others cannot rename or remove files that are not theirs. Write
permission of the group is left to the operator.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.plugins.trust import NotTrustedError, RefusalCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: As many as the kernel follows.
_MAX_LINKS = 40


def trusted_owners() -> frozenset[int]:
    """Return the user ids of root and of this process."""
    return frozenset({0, os.geteuid()})


def check_path_permissions(path: Path, owners: Collection[int]) -> None:
    """Raise NotTrustedError if another user can replace the path or anything on the way to it."""
    steps = list(_steps(path))
    for number, (step, found) in enumerate(steps, start=1):
        is_last = number == len(steps)
        if found.st_uid not in owners:
            command = _chown(_user_name(os.geteuid()) if is_last else "root", step)
            hint = command if is_last else f"move the plugins to another directory, or run `{command}`"
            raise _foreign_owner(step, found, hint)
        if _is_world_writable(found) and (is_last or not found.st_mode & stat.S_ISVTX):
            command = f"chmod o-w {shlex.quote(str(step))}"
            hint = command if is_last else f"run `{command}`, or move the plugins to another directory"
            raise _world_writable(step, found, hint)


def check_directory_contents(directory: Path, owners: Collection[int]) -> None:
    """Raise NotTrustedError if another user can change a file or directory below this one.

    Symbolic links are checked where they are followed. Anything but a file or directory holds no code.
    """
    pending = [str(directory)]
    while pending:
        # A directory that has vanished, or that this process cannot read, is of no use to the plugin.
        with suppress(FileNotFoundError, PermissionError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    pending.append(entry.path)
                elif not stat.S_ISREG(found.st_mode):
                    continue
                if found.st_uid not in owners:
                    hint = _chown(f"-R {_user_name(os.geteuid())}", directory)
                    raise _foreign_owner(entry.path, found, hint)
                if _is_world_writable(found):
                    hint = f"chmod -R o-w {shlex.quote(str(directory))}"
                    raise _world_writable(entry.path, found, hint)


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every directory and symbolic link on the way to a path, and the path itself."""
    here, left, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    yield here, here.lstat()
    while left:
        part = left.pop()
        step = here.parent if part == ".." else here / part
        found = step.lstat()
        yield step, found
        if not stat.S_ISLNK(found.st_mode):
            here = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        if target.is_absolute():
            here = Path("/")
        left += reversed([part for part in target.parts if part != "/"])


def _is_world_writable(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH) and not stat.S_ISLNK(found.st_mode)


def _foreign_owner(path: Path | str, found: os.stat_result, hint: str) -> NotTrustedError:
    names = " or ".join(dict.fromkeys(("root", _user_name(os.geteuid()))))
    reason = (
        f"the {_file_type(found)} {path} belongs to user {_user_name(found.st_uid)}, who can change it; "
        f"it has to belong to {names}"
    )
    return NotTrustedError(RefusalCode.FOREIGN_OWNER, reason, hint)


def _world_writable(path: Path | str, found: os.stat_result, hint: str) -> NotTrustedError:
    reason = f"every user of this machine can change the {_file_type(found)} {path}"
    return NotTrustedError(RefusalCode.WORLD_WRITABLE, reason, hint)


def _file_type(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "symbolic link"
    return "directory" if stat.S_ISDIR(found.st_mode) else "file"


def _chown(owner: str, path: Path) -> str:
    option = "-h " if path.is_symlink() else ""
    command = f"chown {option}{owner} {shlex.quote(str(path))}"
    return command if os.geteuid() == 0 else f"sudo {command}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
