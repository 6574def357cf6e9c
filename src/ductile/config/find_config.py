"""Where the configuration is: the first that is named, then the first that exists."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE = "config.yaml"
SYSTEM_DIRECTORY = Path("/etc/ductile")
#: Directories beside the working one that people keep a configuration in.
_USUAL_NAMES = ("demo", "conf", "config", "home")


def find_config(
    named: str | Path | None, environ: Mapping[str, str], *, system: Path = SYSTEM_DIRECTORY
) -> Path:
    """The absolute path of `config.yaml`. A place that was named has to exist; the usual ones may not."""
    chosen = named or environ.get("DUCTILE_CONFIG_DIR")
    if chosen:
        return _file_at(chosen)
    usual = [user_directory(environ), system]
    closed: ConfigError | None = None
    for directory in usual:
        try:
            if _kind(directory / CONFIG_FILE) == stat.S_IFREG:
                return (directory / CONFIG_FILE).absolute()
        except ConfigError as error:
            closed = closed or error  # the next place may do
    if closed is not None:
        raise closed
    looked = " or ".join(str(directory) for directory in usual)
    raise ConfigError(f"there is no {CONFIG_FILE} in {looked}", hint=_where_else())


def config_directories(
    named: str | Path | None, environ: Mapping[str, str], *, system: Path = SYSTEM_DIRECTORY
) -> tuple[Path, ...]:
    """The directories where the configuration is looked for, whether it is there or not."""
    chosen = named or environ.get("DUCTILE_CONFIG_DIR")
    if not chosen:
        return user_directory(environ), system
    path = Path(chosen).expanduser().absolute()
    return (path.parent if path.is_file() or path.name == CONFIG_FILE else path,)


def _where_else() -> str:
    """The directory one is in is no usual place: whose configuration lies there is not known."""
    if Path(CONFIG_FILE).is_file():
        return "there is one in this directory: add `--config .`"
    for name in _USUAL_NAMES:
        if (Path(name) / CONFIG_FILE).is_file():
            return f"there is one in {name}: add `--config {name}`"
    return "write one with `ductile init DIR`, or name one with --config or DUCTILE_CONFIG_DIR"


def user_directory(environ: Mapping[str, str]) -> Path:
    """The directory of the user's own configuration; a relative XDG_CONFIG_HOME does not count."""
    base = Path(environ.get("XDG_CONFIG_HOME") or "")
    if not base.is_absolute():
        base = (Path(environ["HOME"]) if environ.get("HOME") else Path.home()) / ".config"
    return base / "ductile"


def _file_at(named: str | Path) -> Path:
    if is_url(str(named)):
        raise ConfigError(f"{named} is a URL, and the configuration has to be a local file")
    path = Path(named).expanduser().absolute()
    inside = _kind(path) == stat.S_IFDIR
    file = path / CONFIG_FILE if inside else path
    if _kind(file) == stat.S_IFREG:
        return file
    missing = f"there is no {CONFIG_FILE} in {path}" if inside else f"there is no configuration at {path}"
    raise ConfigError(missing, hint="write one with `ductile init DIR`")


def _kind(path: Path) -> int | None:
    """What it is, if anything. Where one may not look, pathlib's own questions say no or fail, depending on
    the version of Python; neither helps who mounted a directory of somebody else.
    """
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except PermissionError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=_whose(path)) from None
    except (OSError, ValueError):
        return None


def _whose(path: Path) -> str:
    """Who keeps us out of it: the deepest directory on the way that can be looked at, and its owner."""
    for place in path.parents:
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        if owner != os.geteuid():
            return (
                f"{place} belongs to user {owner}, and this runs as user {os.geteuid()}:"
                " run it as the owner, or give it the directory with chown -R"
            )
        return f"look at the permissions of {place}"
    return "look at the permissions of every directory on the way"


def is_url(text: str) -> bool:
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.replace("+", "").replace(".", "").replace("-", "").isalnum()


def resolve_path(text: str, directory: Path) -> Path:
    """A path of the configuration, absolute: relative ones are relative to the config directory."""
    return directory / Path(text).expanduser()
