"""Finds `config.yaml`: as named, else in or below the working directory, else that of the user or system."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ductile.errors import ConfigError

CONFIG_FILE = "config.yaml"
#: The seal of a configuration.
CHECKSUMS_FILE = ".checksums"
SYSTEM_DIRECTORY = Path("/etc/ductile")
#: Where a configuration is found without --config, relative to the working directory, in this order.
LOCAL_DIRECTORIES = (".", "demo", "conf")
#: The sections of a configuration. Written out, because a command that only asks the daemon does not load
#: the schema; a test compares them.
SECTIONS = frozenset(
    (
        *("include", "environment_vars", "service", "state", "plugin_roots", "plugins_dir", "plugins"),
        *("routes", "pipelines", "api", "webhooks", "tokens", "state_webhooks", "artifacts"),
    )
)
#: A key at the beginning of a line is one of the document itself: nested keys are indented.
_TOP_LEVEL_KEY = re.compile(rb"^[\"']?([A-Za-z_][\w.-]*)[\"']?\s*:(?:\s|$)", re.MULTILINE)
_MAX_SEARCHED = 1 << 20
_HINT_TO_NAME_ONE = "name one with --config or DUCTILE_CONFIG_DIR"


class FoundConfig(NamedTuple):
    """A configuration, how it was found, and why others in or below the working directory are not used."""

    path: Path
    origin: str
    skipped_reasons: tuple[str, ...] = ()


def find_config(
    config_path: str | Path | None,
    environ: Mapping[str, str],
    *,
    system: Path = SYSTEM_DIRECTORY,
    working_directory: Path | None = None,
) -> Path:
    """Return the absolute path of `config.yaml`. Raises ConfigError if there is none."""
    return locate_config(config_path, environ, system=system, working_directory=working_directory).path


def locate_config(
    config_path: str | Path | None,
    environ: Mapping[str, str],
    *,
    system: Path = SYSTEM_DIRECTORY,
    working_directory: Path | None = None,
) -> FoundConfig:
    """Return the configuration and how it was found. Raises as `find_config` does."""
    if config_path:
        return FoundConfig(_find_named_config(config_path), "named by --config")
    if variable := environ.get("DUCTILE_CONFIG_DIR"):
        return FoundConfig(_find_named_config(variable), "named by DUCTILE_CONFIG_DIR")
    local = _find_local_config(working_directory or _working_directory())
    if isinstance(local, FoundConfig):
        return local
    unreadable: ConfigError | None = None
    standard_directories = (user_directory(environ), system)
    for directory in standard_directories:
        try:
            if _file_type(directory / CONFIG_FILE) == stat.S_IFREG:
                file = (directory / CONFIG_FILE).absolute()
                origin = "the system's" if directory == system else "the user's own"
                return FoundConfig(file, origin, local)
        except ConfigError as error:
            unreadable = unreadable or error  # the next directory may have one
    if unreadable is not None:
        raise unreadable
    if local:
        raise ConfigError(f"no configuration was found: {local[0]}", hint=_HINT_TO_NAME_ONE)
    directories = " or ".join(str(directory) for directory in standard_directories)
    raise ConfigError(
        f"there is no {CONFIG_FILE} in this directory, ./demo, ./conf, {directories}",
        hint=f"write one with `ductile init DIR`, or {_HINT_TO_NAME_ONE}",
    )


def _find_local_config(working_directory: Path | None) -> FoundConfig | tuple[str, ...]:
    """Return the configuration in or below the working directory, else why each candidate is not used."""
    faults: list[str] = []
    if working_directory is None:
        return ()
    for name in LOCAL_DIRECTORIES:
        file = Path(os.path.normpath(working_directory / name / CONFIG_FILE))
        fault = _local_config_fault(file)
        if fault is None:
            where = "the working directory" if name == "." else f"./{name}"
            return FoundConfig(file, f"found in {where}", tuple(faults))
        if fault:
            faults.append(fault)
    return tuple(faults)


def config_directories(
    config_path: str | Path | None, environ: Mapping[str, str], *, system: Path = SYSTEM_DIRECTORY
) -> tuple[Path, ...]:
    """Return the directories that are searched for the configuration, whether they have one or not.

    The working directory and those below it are among them only if they have one.
    """
    named_path = config_path or environ.get("DUCTILE_CONFIG_DIR")
    if named_path:
        path = Path(named_path).expanduser().absolute()
        return (path.parent if path.is_file() or path.name == CONFIG_FILE else path,)
    local: list[Path] = []
    if (working_directory := _working_directory()) is not None:
        local = [Path(os.path.normpath(working_directory / name)) for name in LOCAL_DIRECTORIES]
    with_config = [directory for directory in local if _local_config_fault(directory / CONFIG_FILE) is None]
    return *with_config, user_directory(environ), system


def user_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's own configuration; a relative XDG_CONFIG_HOME does not count."""
    base = Path(environ.get("XDG_CONFIG_HOME") or "")
    if not base.is_absolute():
        base = (Path(environ["HOME"]) if environ.get("HOME") else Path.home()) / ".config"
    return base / "ductile"


def has_ductile_sections(content: bytes) -> bool:
    """Return whether a `config.yaml` looks like one of Ductile: at least half of its sections are known.

    One name in common is no proof, because other programs have `plugins` and `api`, too. A file with some
    misspelt sections still counts, so that they are reported.
    """
    keys = {key.decode() for key in _TOP_LEVEL_KEY.findall(content)}
    known_count = len(keys & SECTIONS)
    return known_count > 0 and 2 * known_count >= len(keys)


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return None


def _local_config_fault(file: Path) -> str | None:
    """Return why a file is used only if it is named; "" if it does not exist, None if it is used.

    A user who can write to it, or put files beside it, decides what runs with the rights of this user.
    """
    local = Path(os.path.relpath(file)) if file.is_absolute() else file
    try:
        file_status, directory_status = file.lstat(), file.parent.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(file_status.st_mode) or not stat.S_ISDIR(directory_status.st_mode):
        return f"{local} is reached through a symbolic link, and is used only if it is named"
    if not stat.S_ISREG(file_status.st_mode):
        return f"{local} is not a file"
    for path, status in ((local, file_status), (local.parent, directory_status)):
        if status.st_uid not in (0, os.geteuid()):
            return f"{local} is not used without being named: {path} belongs to user {status.st_uid}"
        # A group with the number of the user is taken for a private one.
        shared_group = 0 if status.st_gid == status.st_uid else stat.S_IWGRP
        if status.st_mode & (stat.S_IWOTH | shared_group):
            return (
                f"{local} is not used without being named: others can write to {path} (`chmod go-w {path}`)"
            )
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_SEARCHED)
    except OSError as error:
        return f"{local} cannot be read: {error.strerror}"
    if not has_ductile_sections(content) and not os.path.lexists(file.parent / CHECKSUMS_FILE):
        return f"{local} looks like the configuration of another program: it has hardly a section of Ductile"
    return None


def _find_named_config(config_path: str | Path) -> Path:
    """Return the `config.yaml` at a path or in a directory. Raises ConfigError if there is none."""
    if is_url(str(config_path)):
        raise ConfigError(f"{config_path} is a URL, and the configuration has to be a local file")
    path = Path(config_path).expanduser().absolute()
    is_directory = _file_type(path) == stat.S_IFDIR
    file = path / CONFIG_FILE if is_directory else path
    if _file_type(file) == stat.S_IFREG:
        return file
    missing = f"{CONFIG_FILE} in" if is_directory else "configuration at"
    raise ConfigError(f"there is no {missing} {path}", hint="write one with `ductile init DIR`")


def _file_type(path: Path) -> int | None:
    """Return the type bits of a path, None if it does not exist. Raises ConfigError without permission.

    The predicates of pathlib return False or raise without permission, depending on the version of Python.
    """
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except PermissionError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=_permission_hint(path)) from None
    except (OSError, ValueError):
        return None


def _permission_hint(path: Path) -> str:
    """Name the deepest directory of the path that can be examined, and its owner."""
    for directory in path.parents:
        try:
            owner = directory.stat().st_uid
        except OSError:
            continue
        if owner != os.geteuid():
            return (
                f"{directory} belongs to user {owner}, and this runs as user {os.geteuid()}:"
                " run it as the owner, or give it the directory with chown -R"
            )
        return f"look at the permissions of {directory}"
    return "look at the permissions of every directory on the way"


def is_url(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.replace("+", "").replace(".", "").replace("-", "").isalnum()


def resolve_path(text: str, directory: Path) -> Path:
    """Return a path of the configuration as absolute; relative ones are relative to the config directory."""
    return directory / Path(text).expanduser()
