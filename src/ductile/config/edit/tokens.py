"""API tokens and shared secrets: created, listed, rotated and revoked in the configuration's own files.

A token has four parts: a line in an env file, a scope file, an entry under `tokens`, and their seal. They are
written in an order that lets the daemon start after every step: the entry refers to the other parts, so it is
written last and removed first.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.config.edit.rewrite import with_entry, with_value, without_entry
from ductile.config.edit.token_entries import (
    TokenEntry,
    count_references,
    find_editable_entry,
    read_token_entries,
)
from ductile.config.file_io import hash_bytes, lock_config_directory
from ductile.config.find_config import CONFIG_FILE, find_config
from ductile.config.load import LoadedConfig, SealMode, load_config
from ductile.config.names import NAME
from ductile.config.read.environment import load_environment_files, parse_environment
from ductile.config.read.includes import ConfigFiles, load_config_files
from ductile.config.seal import Tier, remove_sealed, write_new_sealed, write_sealed
from ductile.config.secrets import generate_token
from ductile.config.validate.access import suggest_scope
from ductile.errors import ConfigError, ConflictError, Problem, UsageError, file_error
from ductile.protocol.yaml_tree import MapNode, node_at
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from ductile.core.json import JsonObject

TOKENS_FILE = "tokens.yaml"
ENV_FILE = ".env"

_GROUP_AND_OTHERS = 0o077
#: Values that need no quotes in an env file.
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+=:-]+", re.ASCII)


@hide_in_repr("value")
class CreatedToken(Value):
    """The token that was created, or would be. `value` is returned this once."""

    name: str
    scopes: tuple[str, ...]
    variable: str
    files: tuple[str, ...]
    value: str | None
    written: bool
    #: Warnings about its scopes.
    warnings: tuple[Problem, ...] = ()


@hide_in_repr("value")
class RotatedToken(Value):
    """The new secret of a token, or the one that would be made. `value` is returned this once."""

    name: str
    scopes: tuple[str, ...]
    variable: str
    files: tuple[str, ...]
    value: str | None
    written: bool
    #: Until when the replaced secret is accepted; None if it is refused at once.
    previous_expires_at: datetime | None
    #: Until when the secret before that one would have been accepted; it is refused from now on.
    dropped_expires_at: datetime | None


class RevokedToken(Value):
    name: str
    files: tuple[str, ...]
    written: bool


# --------------------------------------------------------------------------------------------- create


def create_token(
    config_path: str | None,
    environ: Mapping[str, str],
    name: str,
    scopes: tuple[str, ...],
    *,
    value: str | None = None,
    dry_run: bool = False,
) -> CreatedToken:
    """Create a token, or without scopes a secret. The whole configuration is checked with it first.

    Raises UsageError for an unusable name, value or scope, ConflictError if the name is taken.
    """
    config_file = find_config(config_path, environ)
    if not NAME.fullmatch(name):
        hint = "letters, digits, - and _, and no digit first"
        raise UsageError(f"{name!r} cannot be the name of a token", hint=hint)
    secret, variable = _usable_secret(value), _variable_name(name)
    with lock_config_directory(config_file.parent):
        sources = load_config_files(config_file)
        _check_new(sources, name, scopes, variable, environ)
        files = _plan_files(config_file, sources, name, scopes, variable, secret)
        loaded = _check_result(config_file, environ, files)
        if not dry_run:
            _write(sources, files, loaded.tiers)
    index = next(index for index, entry in enumerate(loaded.model.tokens) if entry.name == name)
    return CreatedToken(
        name=name,
        scopes=scopes,
        variable=variable,
        files=_relative_paths(config_file.parent, files),
        value=None if dry_run else secret,
        written=not dry_run,
        warnings=tuple(
            warning for warning in loaded.warnings if (warning.key or "").startswith(f"tokens[{index}].")
        ),
    )


def _check_new(
    sources: ConfigFiles, name: str, scopes: tuple[str, ...], variable: str, environ: Mapping[str, str]
) -> None:
    """Raise ConflictError for a name or variable that is taken, UsageError for a misspelt scope."""
    if any(row.name == name for row in read_token_entries(sources)):
        raise ConflictError(f"there already is a token {name}", hint=f"ductile token revoke {name}")
    # A line of an env file without a reference was left by a crash, and is replaced.
    if variable in environ or count_references(sources, variable):
        raise ConflictError(
            f"the variable {variable} is already set", hint="choose another name, or unset the variable"
        )
    plugins = node_at(sources.root, ("plugins",))
    names = [key.text for key, _ in plugins.entries] if isinstance(plugins, MapNode) else []
    for scope in scopes:
        if hint := suggest_scope(scope, names):
            raise UsageError(f"unknown scope {scope!r}; nothing was written", hint=hint)


def scope_file(scopes: tuple[str, ...]) -> bytes:
    """Return the content of a scope file."""
    return json.dumps({"scopes": list(scopes)}, indent=2).encode() + b"\n"


def _plan_files(
    config_file: Path, sources: ConfigFiles, name: str, scopes: tuple[str, ...], variable: str, secret: str
) -> dict[Path, bytes]:
    """Return the new content of files, in the order in which they are written."""
    directory, config = config_file.parent, config_file.read_bytes()
    entry: JsonObject = {"name": name, "key": f"${{{variable}}}"}
    files: dict[Path, bytes] = {}
    if scopes:
        content = scope_file(scopes)
        entry |= {"scopes_file": f"scopes/{name}.json", "scopes_hash": hash_bytes(content)}
        files[directory / "scopes" / f"{name}.json"] = content
    env_file, config = _env_file(config_file, sources, config)
    files[env_file] = _with_variable(env_file, variable, secret)
    # New tokens go to `tokens.yaml`, or else to the first file that has tokens.
    tokens_files = [file.path for file in sources.files if file.path.name == TOKENS_FILE]
    other_files = [file.path for file in sources.files if file.tree.get("tokens") is not None]
    tokens_file = next(iter((*tokens_files, *other_files)), None)
    if tokens_file is None:
        tokens_file = _new_file(directory / TOKENS_FILE, f"add it to `include` in {CONFIG_FILE}")
        config = with_entry(config, ("include",), TOKENS_FILE, config_file)
        files[tokens_file] = with_entry(b"", ("tokens",), entry, tokens_file)
    elif tokens_file == config_file:
        config = with_entry(config, ("tokens",), entry, config_file)
    if config != config_file.read_bytes():
        files[config_file] = config
    if tokens_file not in files:
        files[tokens_file] = with_entry(tokens_file.read_bytes(), ("tokens",), entry, tokens_file)
    return files


def _usable_secret(value: str | None) -> str:
    """Return the value, or a new one without it. Raises UsageError if it cannot be sent or written."""
    secret = generate_token() if value is None else value.strip()
    if not secret or not secret.isprintable():
        raise UsageError("the secret has to be one line of printable text")
    return secret


def _variable_name(name: str) -> str:
    return f"DUCTILE_{name.replace('-', '_').upper()}_TOKEN"


def _env_file(config_file: Path, sources: ConfigFiles, config: bytes) -> tuple[Path, bytes]:
    """Return the env file for a new value, and the content of `config.yaml`, which names a new file."""
    env_files = load_environment_files(sources.root, sources.directory).files
    if env_files:
        return env_files[0].path, config
    env_file = _new_file(config_file.parent / ENV_FILE, "add it to `environment_vars.include`")
    return env_file, with_entry(config, ("environment_vars", "include"), ENV_FILE, config_file)


def _new_file(path: Path, hint: str) -> Path:
    """Return the path. Raises ConflictError if it exists."""
    if os.path.lexists(path):
        raise ConflictError(f"{path} already exists, and is not part of the configuration", hint=hint)
    return path


def _with_variable(env_file: Path, variable: str, secret: str) -> bytes:
    """Return the text of an env file with a variable set. Raises UsageError if it cannot hold the value."""
    before = _assignment_of(variable).sub(b"", env_file.read_bytes() if env_file.exists() else b"")
    if before and not before.endswith(b"\n"):
        before += b"\n"
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    written = secret if _PLAIN_VALUE.fullmatch(secret) else f'"{escaped}"'
    after = before + f"{variable}={written}\n".encode()
    if parse_environment(after, file=str(env_file))[0].get(variable) != secret:
        raise UsageError("the secret cannot be written to an env file", hint="use another one")
    return after


# --------------------------------------------------------------------------------------------- rotate


def rotate_token(
    config_path: str | None,
    environ: Mapping[str, str],
    name: str,
    *,
    keep_old: timedelta,
    now: datetime,
    value: str | None = None,
    dry_run: bool = False,
) -> RotatedToken:
    """Give a token a new secret. The old one stays valid for `keep_old`; not at all if that is zero.

    The new value gets a variable of its own, and the entry decides which one counts: after a crash before the
    entry is written, the old secret is still in force.
    Raises NotFoundError for an unknown name, ConflictError for an entry that cannot be rotated.
    """
    config_file = find_config(config_path, environ)
    secret = _usable_secret(value)
    expires_at = (now + keep_old).replace(microsecond=0) if keep_old else None
    with lock_config_directory(config_file.parent):
        sources = load_config_files(config_file)
        row = find_editable_entry(sources, name)
        _check_rotation(row)
        variable = _free_variable(sources, name, environ)
        config = config_file.read_bytes()
        env_file, new_config = _env_file(config_file, sources, config)
        files = {env_file: _with_variable(env_file, variable, secret)}
        if new_config != config:
            files[config_file] = new_config
        file = Path(row.file)
        files[file] = _rotated_entry(files.get(file, file.read_bytes()), row, variable, expires_at)
        loaded = _check_result(config_file, environ, files)
        replaced = {row.previous_variable} if expires_at else {row.previous_variable, row.variable}
        cleaned = _without_unused_variables(files[env_file], replaced, sources)
        if not dry_run:
            _write(sources, files, loaded.tiers)
            if cleaned != files[env_file]:
                _write(sources, {env_file: cleaned}, loaded.tiers)
    dropped = row.previous_expires_at
    return RotatedToken(
        name=name,
        scopes=row.scopes,
        variable=variable,
        files=_relative_paths(config_file.parent, files),
        value=None if dry_run else secret,
        written=not dry_run,
        previous_expires_at=expires_at,
        dropped_expires_at=dropped if dropped is not None and dropped > now else None,
    )


def _check_rotation(row: TokenEntry) -> None:
    """Raise ConflictError for a shared secret, or a value that is not in a variable."""
    if not row.scopes:
        raise ConflictError(
            f"{row.name} is a secret that another service signs with, and has one value at a time",
            hint="Create another secret, name it in `secret_ref`, and revoke this one.",
        )
    if row.variable is None:
        raise ConflictError(
            f"the value of {row.name} is written in the file itself",
            hint=f"Put it into a variable and refer to it as ${{NAME}}: {row.file}:{row.line}",
        )


def _free_variable(sources: ConfigFiles, name: str, environ: Mapping[str, str]) -> str:
    """Return the first of `DUCTILE_NAME_TOKEN`, `DUCTILE_NAME_TOKEN_2`, ... that nothing refers to."""
    base = _variable_name(name)
    names = (base if number == 1 else f"{base}_{number}" for number in count(1))
    return next(
        candidate
        for candidate in names
        if candidate not in environ and not count_references(sources, candidate)
    )


def _rotated_entry(data: bytes, row: TokenEntry, variable: str, expires_at: datetime | None) -> bytes:
    """Return the file with the new key in the entry. The old one becomes the previous key or is removed."""
    file = Path(row.file)
    data = with_value(data, (*row.path, "key"), f"${{{variable}}}", file)
    if expires_at is not None:
        data = with_value(data, (*row.path, "previous_key"), f"${{{row.variable}}}", file)
        written = expires_at.isoformat().replace("+00:00", "Z")
        return with_value(data, (*row.path, "previous_expires_at"), written, file)
    if row.previous_variable is not None or row.previous_expires_at is not None:
        for key in ("previous_key", "previous_expires_at"):
            data = without_entry(data, (*row.path, key), file)
    return data


# --------------------------------------------------------------------------------------------- revoke


def revoke_token(
    config_path: str | None, environ: Mapping[str, str], name: str, *, dry_run: bool = False
) -> RevokedToken:
    """Remove a token: its entry, its value and its scopes.

    Raises NotFoundError for an unknown name, ConfigError if the configuration needs the token.
    """
    config_file = find_config(config_path, environ)
    with lock_config_directory(config_file.parent):
        sources = load_config_files(config_file)
        row = find_editable_entry(sources, name)
        others = [other for other in read_token_entries(sources) if other != row]
        file = Path(row.file)
        files = {file: without_entry(file.read_bytes(), row.path, file)}
        loaded = _check_result(config_file, environ, files)
        unshared = {*row.variables}.difference(*(other.variables for other in others))
        for env_file in load_environment_files(sources.root, sources.directory).files:
            data = _without_unused_variables(env_file.data, unshared, sources)
            if data != env_file.data:
                files[env_file.path] = data
        removed = None  # the scope file, if only this token uses it and it is in the config directory
        if row.scopes_file is not None and all(other.scopes_file != row.scopes_file for other in others):
            path = (sources.directory / row.scopes_file).absolute()
            removed = path if path.is_relative_to(sources.directory) else None
        if not dry_run:
            _write(sources, files, loaded.tiers)
            if removed is not None:
                remove_sealed(config_file.parent, removed)
    changed = [*files, *([removed] if removed is not None else [])]
    return RevokedToken(name=name, files=_relative_paths(config_file.parent, changed), written=not dry_run)


# --------------------------------------------------------------------------------------------- shared


def _assignment_of(variable: str) -> re.Pattern[bytes]:
    """Return the pattern of the lines of an env file that set a variable."""
    return re.compile(rb"^[ \t]*(?:export[ \t]+)?%s[ \t]*=.*\n?" % variable.encode(), re.MULTILINE)


def _without_unused_variables(
    env_data: bytes, variables: Collection[str | None], sources: ConfigFiles
) -> bytes:
    """Return an env file without those of a token's variables that nothing but the token refers to."""
    for variable in variables:
        if variable is not None and count_references(sources, variable) == 1:
            env_data = _assignment_of(variable).sub(b"", env_data)
    return env_data


def _check_result(config_file: Path, environ: Mapping[str, str], files: Mapping[Path, bytes]) -> LoadedConfig:
    """Load the configuration with these files. Raises ConfigError if it cannot be used."""
    try:
        return load_config(config_file, environ, seal=SealMode.IGNORE, overlay=files)
    except ConfigError as error:
        error.message = f"nothing was written: {error.message}"
        raise


def _write(sources: ConfigFiles, files: Mapping[Path, bytes], tiers: Mapping[str, Tier]) -> None:
    """Write the files one by one; the seal of each is verified before and renewed after."""
    directory = sources.directory
    variables = load_environment_files(sources.root, directory).files
    loaded = {file.path for file in sources.files} | {file.path for file in variables}
    try:
        for path, data in files.items():
            if path.suffix not in (".yaml", ".yml"):
                # Before the write: the new file gets the mode of the old one. A new file is private anyway.
                with suppress(FileNotFoundError):
                    mode = stat.S_IMODE(path.stat().st_mode)
                    if mode & _GROUP_AND_OTHERS:
                        path.chmod(mode & ~_GROUP_AND_OTHERS)
            if path in loaded:
                write_sealed(directory, path, data, tiers=tiers)
            else:
                write_new_sealed(directory, path, data, Tier.HIGH)
    except OSError as error:
        raise file_error(f"cannot write {error.filename}", error) from error


def _relative_paths(directory: Path, files: Mapping[Path, bytes] | list[Path]) -> tuple[str, ...]:
    return tuple(os.path.relpath(path, directory) for path in files)
