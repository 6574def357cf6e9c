"""`ductile init`: a small configuration that works, sealed, with a plugin to try and a token to use.

The files are kept as files, in `starter_files` and among the shipped plugins; here they are put in place.
All or nothing: what was written is taken away again if a later step fails.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import lock_configuration
from ductile.config.file_io import PRIVATE_DIRECTORY, PRIVATE_FILE
from ductile.config.find_config import CONFIG_FILE
from ductile.config.seal import CHECKSUMS_FILE, hash_bytes
from ductile.errors import ConflictError, NotFoundError, file_error
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "DUCTILE_ADMIN_TOKEN"  # noqa: S105 - the name of the variable, not the token
_TEMPLATES = Path(__file__).parent / "starter_files"
_EXAMPLE_PLUGIN = "echo"
_PRIVATE_PROGRAM = 0o700
#: Shipped plugins are inside an installed package, and beside `src` in a checkout of the source.
_SHIPPED = (
    Path(__file__).parents[1] / "shipped_plugins",
    Path(__file__).parents[3] / "plugins",
)


class StarterConfig(Value):
    """What was written, or would be. `token` is given this once and stored only in the env file."""

    directory: Path
    files: tuple[str, ...]
    token: str | None
    written: bool


class NewFile(Value):
    data: bytes
    mode: int = PRIVATE_FILE


def generate_token() -> str:
    """A new API token: 256 bits, with a prefix by which a leaked one can be recognised."""
    return f"dtl_{secrets.token_urlsafe(32)}"


def create_starter_config(
    named: str, environ: Mapping[str, str], *, token: str, dry_run: bool = False
) -> StarterConfig:
    """Write the starter configuration into a directory that has none."""
    directory = Path(named).expanduser().absolute()
    files = _plan_files(token)
    _refuse_to_overwrite(directory, files)
    if not dry_run:
        _write(directory, files, environ)
    names = (*files, CHECKSUMS_FILE)
    return StarterConfig(
        directory=directory, files=names, token=None if dry_run else token, written=not dry_run
    )


def shipped_plugin(name: str) -> Path:
    for root in _SHIPPED:
        if (root / name).is_dir():
            return root / name
    raise NotFoundError(f"the plugin {name} is not part of this installation", hint="install Ductile again")


def _plan_files(token: str) -> dict[str, NewFile]:
    scopes = (_TEMPLATES / "scopes" / "admin.json").read_bytes()
    tokens = (_TEMPLATES / "tokens.yaml").read_bytes().replace(b"@SCOPES_HASH@", hash_bytes(scopes).encode())
    return {
        CONFIG_FILE: NewFile(data=(_TEMPLATES / CONFIG_FILE).read_bytes()),
        "pipelines.yaml": NewFile(data=(_TEMPLATES / "pipelines.yaml").read_bytes()),
        "tokens.yaml": NewFile(data=tokens),
        "scopes/admin.json": NewFile(data=scopes),
        ".env": NewFile(data=(_TEMPLATES / "env").read_bytes().replace(b"@TOKEN@", token.encode())),
        **_plan_plugin(shipped_plugin(_EXAMPLE_PLUGIN)),
    }


def _plan_plugin(source: Path) -> dict[str, NewFile]:
    contents = {path.name: path.read_bytes() for path in sorted(source.iterdir()) if path.is_file()}
    return {f"plugins/{source.name}/{name}": _plugin_file(data) for name, data in contents.items()}


def _plugin_file(data: bytes) -> NewFile:
    """A program shows itself by its first line; not every installer keeps the mode of a file."""
    return NewFile(data=data, mode=_PRIVATE_PROGRAM if data.startswith(b"#!") else PRIVATE_FILE)


def _refuse_to_overwrite(directory: Path, files: Mapping[str, NewFile]) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConflictError(f"{directory} is not a directory", hint="name another place")
    present = [name for name in (*files, CHECKSUMS_FILE) if os.path.lexists(directory / name)]
    if CONFIG_FILE in present:
        raise ConflictError(
            f"{directory} already holds a configuration",
            hint=f"name another directory, or look at it with `ductile config check --config {directory}`",
        )
    if present:
        raise ConflictError(
            f"{directory} already has {', '.join(present)}",
            hint="name another directory",
        )


def _write(directory: Path, files: Mapping[str, NewFile], environ: Mapping[str, str]) -> None:
    made: list[Path] = []
    path = directory
    try:
        for name, file in files.items():
            path = directory / name
            _make_directories(path.parent, made)
            _write_new(path, file, made)
        lock_configuration(directory / CONFIG_FILE, environ)
    except OSError as error:
        _take_away(made)
        raise file_error(f"cannot write {error.filename or path}", error) from error
    except BaseException:
        _take_away(made)
        raise


def _make_directories(directory: Path, made: list[Path]) -> None:
    if not directory.is_dir():
        _make_directories(directory.parent, made)
        directory.mkdir(mode=PRIVATE_DIRECTORY)
        made.append(directory)


def _write_new(path: Path, file: NewFile, made: list[Path]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    made.append(path)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, file.mode)
        stream.write(file.data)


def _take_away(made: list[Path]) -> None:
    """Only what this call has made; a directory that holds anything else stays."""
    for path in reversed(made):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
