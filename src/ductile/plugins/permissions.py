"""Who else can change a plugin: every directory on the way to it, and every file and directory in it.

Only root and the user of this process may be able to. A directory that every user can write to is accepted
on the way only if it is sticky, such as /tmp: others cannot rename or remove there what is not theirs.
Writing by the group is left to the operator.
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
_MOST_LINKS = 40


def trusted_owners() -> frozenset[int]:
    """Root and the user of this process, by their numbers."""
    return frozenset({0, os.geteuid()})


def check_path_permissions(path: Path, owners: Collection[int]) -> None:
    """Raise `NotTrustedError` if a stranger can replace the path or anything on the way to it."""
    steps = list(_steps(path))
    for number, (place, found) in enumerate(steps, start=1):
        is_last = number == len(steps)
        if found.st_uid not in owners:
            raise _foreign(place, found, is_last=is_last)
        if _is_open(found) and (is_last or not found.st_mode & stat.S_ISVTX):
            raise _open(place, found, is_last=is_last)


def check_directory_contents(directory: Path, owners: Collection[int]) -> None:
    """Raise `NotTrustedError` if a stranger can change a file or directory below this one.

    Symbolic links lead elsewhere, and are judged where they matter. What is neither a file nor a directory
    holds no code.
    """
    pending = [str(directory)]
    while pending:
        # Gone meanwhile, or closed to us and so of no use to the plugin.
        with suppress(FileNotFoundError, PermissionError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    pending.append(entry.path)
                elif not stat.S_ISREG(found.st_mode):
                    continue
                _judge_inside(Path(entry.path), found, directory, owners)


def _judge_inside(place: Path, found: os.stat_result, directory: Path, owners: Collection[int]) -> None:
    if found.st_uid not in owners:
        raise NotTrustedError(
            RefusalCode.FOREIGN_OWNER, _belongs(place, found), _chown(f"-R {_our_name()}", directory)
        )
    if _is_open(found):
        raise NotTrustedError(
            RefusalCode.WORLD_WRITABLE, _can_change(place, found), f"chmod -R o-w {_quoted(directory)}"
        )


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every directory and symbolic link that is met on the way to a path, and the path itself."""
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
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        if target.is_absolute():
            here = Path("/")
        left += reversed([part for part in target.parts if part != "/"])


def _is_open(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH) and not stat.S_ISLNK(found.st_mode)


def _foreign(place: Path, found: os.stat_result, *, is_last: bool) -> NotTrustedError:
    command = _chown(_our_name() if is_last else "root", place)
    hint = command if is_last else f"move the plugins to another directory, or run `{command}`"
    return NotTrustedError(RefusalCode.FOREIGN_OWNER, _belongs(place, found), hint)


def _open(place: Path, found: os.stat_result, *, is_last: bool) -> NotTrustedError:
    command = f"chmod o-w {_quoted(place)}"
    hint = command if is_last else f"run `{command}`, or move the plugins to another directory"
    return NotTrustedError(RefusalCode.WORLD_WRITABLE, _can_change(place, found), hint)


def _belongs(place: Path, found: os.stat_result) -> str:
    names = " or ".join(dict.fromkeys(("root", _our_name())))
    return (
        f"the {_kind(found)} {place} belongs to user {_name_of(found.st_uid)}, who can change it; "
        f"it has to belong to {names}"
    )


def _can_change(place: Path, found: os.stat_result) -> str:
    return f"every user of this machine can change the {_kind(found)} {place}"


def _kind(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "symbolic link"
    return "directory" if stat.S_ISDIR(found.st_mode) else "file"


def _chown(what: str, place: Path) -> str:
    command = f"chown -h {what} {_quoted(place)}" if place.is_symlink() else f"chown {what} {_quoted(place)}"
    return command if os.geteuid() == 0 else f"sudo {command}"


def _our_name() -> str:
    return _name_of(os.geteuid())


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _quoted(place: Path) -> str:
    return shlex.quote(str(place))
