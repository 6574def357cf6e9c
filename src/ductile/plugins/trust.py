"""Decides whether a plugin may run. Each refusal has its own code, reason and hint.

Plugins run with the rights of the daemon. So their files must be under a plugin root, and only root and the
user of this process may be able to change them: every directory on the path to a plugin, and everything in
it. A directory that every user can write to is accepted on the path only if it is sticky, such as /tmp, where
others cannot rename or remove files that are not theirs. Write permission of the group is left to the
operator. The checks read the disk and change nothing.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from ductile.config.file_io import find_symlinks
from ductile.struct import Value, field

#: Symbolic links in one path, as many as the kernel follows.
_MAX_LINKS = 40


class RefusalCode(StrEnum):
    """The reasons why a plugin is not loaded; documented in `docs/reference/manifest.md`."""

    SYMLINK = "symlink"
    SYMLINK_ESCAPES = "symlink_escapes"
    ENTRYPOINT_OUTSIDE = "entrypoint_outside"
    ENTRYPOINT_MISSING = "entrypoint_missing"
    ENTRYPOINT_NOT_EXECUTABLE = "entrypoint_not_executable"
    WORLD_WRITABLE = "world_writable"
    FOREIGN_OWNER = "foreign_owner"
    PROTOCOL_UNSUPPORTED = "protocol_unsupported"
    MANIFEST_INVALID = "manifest_invalid"
    UNREADABLE = "unreadable"


@dataclass(eq=False)
class NotTrustedError(Exception):
    """A plugin may not run. The discovery of plugins and scripts returns a `RefusedPlugin` for it."""

    refusal: RefusalCode
    reason: str
    hint: str

    def __str__(self) -> str:
        return self.reason


class TrustPolicy(Value):
    """The roots of plugins, whether symbolic links are followed, and the users who may change plugins."""

    roots: Sequence[Path]
    allow_symlinks: bool = False
    #: Root and the user of this process.
    owners: Collection[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))


def check_symlinks(path: Path, *, root: Path, policy: TrustPolicy) -> None:
    """Raise NotTrustedError for a symbolic link from the root to the path that is not allowed.

    With `allow_symlinks` the target must be inside some root. A link is refused before its target is opened.
    """
    links = find_symlinks(path, root)
    if not links:
        return
    link = links[0]
    if not policy.allow_symlinks:
        raise NotTrustedError(
            RefusalCode.SYMLINK,
            f"{link} is a symbolic link",
            "replace it by what it points to, or set service.allow_symlinks: true",
        )
    # Unlike `Path.resolve`, `realpath` accepts a link that leads in a circle.
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(os.path.realpath(allowed)) for allowed in policy.roots):
        raise NotTrustedError(
            RefusalCode.SYMLINK_ESCAPES,
            f"{link} leads to {target}, which is outside every plugin root",
            "move the target under a plugin root, or add its directory to plugin_roots",
        )


def entrypoint_path(directory: Path, written: str) -> Path:
    """Return the entrypoint of a manifest as a path inside the plugin's directory. Raises NotTrustedError."""
    relative = PurePosixPath(written)
    if relative.is_absolute() or ".." in relative.parts or "\0" in written or relative == PurePosixPath():
        raise NotTrustedError(
            RefusalCode.ENTRYPOINT_OUTSIDE,
            f"the entrypoint {written!r} does not lie inside the plugin's directory",
            "write it relative to manifest.yaml and without .. , for example run.py",
        )
    return directory / relative


def check_entrypoint(entrypoint: Path) -> None:
    """Raise NotTrustedError unless the entrypoint is a file that this process may execute."""
    hint = "put it there, or correct entrypoint in manifest.yaml"
    check_program(entrypoint, f"the entrypoint {entrypoint}", hint)


def check_program(program: Path, subject: str, hint: str) -> None:
    """Raise NotTrustedError unless `program` is a file that this process may execute.

    `subject` names the program in messages. `hint` is for a program that does not exist.
    """
    try:
        mode = program.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotTrustedError(RefusalCode.ENTRYPOINT_MISSING, f"{subject} does not exist", hint) from None
    if not stat.S_ISREG(mode):
        reason = f"{subject} is not a file"
        raise NotTrustedError(RefusalCode.ENTRYPOINT_MISSING, reason, "name the executable file itself")
    if not os.access(program, os.X_OK):
        reason = f"{subject} is not executable"
        command = f"chmod +x {shlex.quote(str(program))}"
        raise NotTrustedError(RefusalCode.ENTRYPOINT_NOT_EXECUTABLE, reason, command)


def check_path_permissions(path: Path, owners: Collection[int]) -> None:
    """Raise NotTrustedError if another user can replace the path or anything on the way to it."""
    steps = list(_path_steps(path))
    for number, (step, status) in enumerate(steps, start=1):
        is_last = number == len(steps)
        if status.st_uid not in owners:
            command = _chown(_user_name(os.geteuid()) if is_last else "root", step)
            hint = command if is_last else f"move the plugins to another directory, or run `{command}`"
            raise _foreign_owner_error(step, status, hint)
        if _is_world_writable(status) and (is_last or not status.st_mode & stat.S_ISVTX):
            command = f"chmod o-w {shlex.quote(str(step))}"
            hint = command if is_last else f"run `{command}`, or move the plugins to another directory"
            raise _world_writable_error(step, status, hint)


def check_directory_contents(directory: Path, owners: Collection[int]) -> None:
    """Raise NotTrustedError if another user can change a file or directory below this one.

    Symbolic links are checked where they are followed. Anything but a file or directory holds no code.
    """
    pending = [str(directory)]
    while pending:
        # A directory that has vanished, or that this process cannot read, is of no use to the plugin.
        with suppress(FileNotFoundError, PermissionError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(entry.path)
                elif not stat.S_ISREG(status.st_mode):
                    continue
                if status.st_uid not in owners:
                    hint = _chown(f"-R {_user_name(os.geteuid())}", directory)
                    raise _foreign_owner_error(entry.path, status, hint)
                if _is_world_writable(status):
                    hint = f"chmod -R o-w {shlex.quote(str(directory))}"
                    raise _world_writable_error(entry.path, status, hint)


def _path_steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every directory and symbolic link on the way to a path, and the path itself."""
    current, remaining, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    yield current, current.lstat()
    while remaining:
        part = remaining.pop()
        step = current.parent if part == ".." else current / part
        status = step.lstat()
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            current = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        if target.is_absolute():
            current = Path("/")
        remaining += reversed([part for part in target.parts if part != "/"])


def _is_world_writable(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)


def _foreign_owner_error(path: Path | str, status: os.stat_result, hint: str) -> NotTrustedError:
    names = " or ".join(dict.fromkeys(("root", _user_name(os.geteuid()))))
    reason = (
        f"the {_file_type(status)} {path} belongs to user {_user_name(status.st_uid)}, who can change it; "
        f"it has to belong to {names}"
    )
    return NotTrustedError(RefusalCode.FOREIGN_OWNER, reason, hint)


def _world_writable_error(path: Path | str, status: os.stat_result, hint: str) -> NotTrustedError:
    reason = f"every user of this machine can change the {_file_type(status)} {path}"
    return NotTrustedError(RefusalCode.WORLD_WRITABLE, reason, hint)


def _file_type(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "symbolic link"
    return "directory" if stat.S_ISDIR(status.st_mode) else "file"


def _chown(owner: str, path: Path) -> str:
    """Return the shell command that changes the owner of a path."""
    option = "-h " if path.is_symlink() else ""
    command = f"chown {option}{owner} {shlex.quote(str(path))}"
    return command if os.geteuid() == 0 else f"sudo {command}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
