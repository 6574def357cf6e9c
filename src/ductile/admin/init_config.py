"""`ductile init`: a small, sealed configuration that works, with a plugin to try and a token.

The files are in `starter_files` and in the shipped plugins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.new_files import NewFile, write_new_files
from ductile.admin.seal import seal_configuration
from ductile.config.file_io import PRIVATE_DIRECTORY, PRIVATE_FILE, hash_bytes
from ductile.config.find_config import CHECKSUMS_FILE, CONFIG_FILE
from ductile.errors import ConflictError, NotFoundError
from ductile.plugins.shipped import shipped_root
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "DUCTILE_ADMIN_TOKEN"  # noqa: S105 - the name of the variable, not the token
_TEMPLATES = Path(__file__).parent / "starter_files"
_EXAMPLE_PLUGIN = "echo"
_PRIVATE_PROGRAM = 0o700


class StarterConfig(Value):
    """The written files, or those that would be. `token` is returned this once, and kept in the env file."""

    directory: Path
    files: tuple[str, ...]
    token: str | None
    written: bool


def create_starter_config(
    target: str, environ: Mapping[str, str], *, token: str, dry_run: bool = False
) -> StarterConfig:
    """Write the starter configuration. Raises ConflictError if one of its files exists already."""
    directory = Path(target).expanduser().absolute()
    files = _plan_files(token)
    names = (*files, CHECKSUMS_FILE)
    if directory.exists() and not directory.is_dir():
        raise ConflictError(f"{directory} is not a directory", hint="name another place")
    present = [name for name in names if os.path.lexists(directory / name)]
    if CONFIG_FILE in present:
        raise ConflictError(
            f"{directory} already holds a configuration",
            hint=f"name another directory, or look at it with `ductile config check --config {directory}`",
        )
    if present:
        raise ConflictError(f"{directory} already has {', '.join(present)}", hint="name another directory")
    if not dry_run:
        with write_new_files(directory, files, directory_mode=PRIVATE_DIRECTORY):
            seal_configuration(directory / CONFIG_FILE, environ)
    return StarterConfig(
        directory=directory, files=names, token=None if dry_run else token, written=not dry_run
    )


def _plan_files(token: str) -> dict[str, NewFile]:
    """Return the files of a starter configuration, by their path in its directory."""

    def template(name: str) -> bytes:
        return (_TEMPLATES / name).read_bytes()

    scopes = template("scopes/admin.json")
    contents = {
        CONFIG_FILE: template(CONFIG_FILE),
        "pipelines.yaml": template("pipelines.yaml"),
        "tokens.yaml": template("tokens.yaml").replace(b"@SCOPES_HASH@", hash_bytes(scopes).encode()),
        "scopes/admin.json": scopes,
        ".env": template("env").replace(b"@TOKEN@", token.encode()),
    }
    root = shipped_root()
    if root is None:
        message = f"the plugin {_EXAMPLE_PLUGIN} is not part of this installation"
        raise NotFoundError(message, hint="install Ductile again")
    for path in sorted((root / _EXAMPLE_PLUGIN).iterdir()):
        if path.is_file():
            contents[f"plugins/{_EXAMPLE_PLUGIN}/{path.name}"] = path.read_bytes()
    # A program is recognised by its first line: not every installer keeps the mode of a file.
    return {
        name: NewFile(data=data, mode=_PRIVATE_PROGRAM if data.startswith(b"#!") else PRIVATE_FILE)
        for name, data in contents.items()
    }
