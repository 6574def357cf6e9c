"""Finds `config.yaml`: the named one, else the first one that exists in the usual directories."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ductile.errors import ConfigError

CONFIG_FILE = "config.yaml"
SYSTEM_DIRECTORY = Path("/etc/ductile")
#: Usual names of a directory with a configuration, below the working directory.
_USUAL_NAMES = ("demo", "conf", "config", "home")


def find_config(
    config_path: str | Path | None, environ: Mapping[str, str], *, system: Path = SYSTEM_DIRECTORY
) -> Path:
    """Return the absolute path of `config.yaml`. Raises ConfigError if a named one is missing, or all are."""
    chosen = config_path or environ.get("DUCTILE_CONFIG_DIR")
    if chosen:
        return _file_at(chosen)
    usual = [user_directory(environ), system]
    unreadable: ConfigError | None = None
    for directory in usual:
        try:
            if _file_type(directory / CONFIG_FILE) == stat.S_IFREG:
                return (directory / CONFIG_FILE).absolute()
        except ConfigError as error:
            unreadable = unreadable or error  # the next directory may do
    if unreadable is not None:
        raise unreadable
    # The working directory is not searched: its configuration may be anyone's.
    hint = "write one with `ductile init DIR`, or name one with --config or DUCTILE_CONFIG_DIR"
    for name in reversed((".", *_USUAL_NAMES)):
        if (Path(name) / CONFIG_FILE).is_file():
            where = "this directory" if name == "." else name
            hint = f"there is one in {where}: add `--config {name}`"
    directories = " or ".join(str(directory) for directory in usual)
    raise ConfigError(f"there is no {CONFIG_FILE} in {directories}", hint=hint)


def config_directories(
    config_path: str | Path | None, environ: Mapping[str, str], *, system: Path = SYSTEM_DIRECTORY
) -> tuple[Path, ...]:
    """Return the directories in which the configuration is searched, whether it exists or not."""
    chosen = config_path or environ.get("DUCTILE_CONFIG_DIR")
    if not chosen:
        return user_directory(environ), system
    path = Path(chosen).expanduser().absolute()
    return (path.parent if path.is_file() or path.name == CONFIG_FILE else path,)


def user_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's own configuration; a relative XDG_CONFIG_HOME does not count."""
    base = Path(environ.get("XDG_CONFIG_HOME") or "")
    if not base.is_absolute():
        base = (Path(environ["HOME"]) if environ.get("HOME") else Path.home()) / ".config"
    return base / "ductile"


def _file_at(config_path: str | Path) -> Path:
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
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.replace("+", "").replace(".", "").replace("-", "").isalnum()


def resolve_path(text: str, directory: Path) -> Path:
    """Return a path of the configuration as absolute; relative ones are relative to the config directory."""
    return directory / Path(text).expanduser()
