"""API tokens and shared secrets: created, listed and revoked in the configuration's own files.

A token has four parts: a line in an env file, a scope file, an entry under `tokens`, and their seal. They are
written in an order that lets the daemon start after every step: the entry refers to the other parts, so it is
written last and removed first.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.init_config import generate_token
from ductile.config.edit.rewrite import with_entry, without_entry
from ductile.config.file_io import hash_bytes, lock_config_directory, read_regular_file
from ductile.config.find_config import CONFIG_FILE, find_config, resolve_path
from ductile.config.load import LoadedConfig, SealMode, load_config
from ductile.config.names import NAME
from ductile.config.read.environment import load_environment_files, parse_environment
from ductile.config.read.includes import ConfigFiles, load_config_files
from ductile.config.seal import Tier, remove_sealed, write_new_sealed, write_sealed
from ductile.config.validate.access import suggest_scope
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, ConflictError, NotFoundError, Problem, UsageError, file_error
from ductile.protocol.yaml_tree import ListNode, MapNode, Node, ScalarNode, node_at
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from ductile.core.json import JsonObject
    from ductile.protocol.yaml_tree import KeyPath

TOKENS_FILE = "tokens.yaml"
ENV_FILE = ".env"
#: Where tokens are written: entries with a scope file, and entries with their scopes.
_TOKENS: KeyPath = ("tokens",)
_INLINE_TOKENS: KeyPath = ("api", "auth", "tokens")

_GROUP_AND_OTHERS = 0o077
#: Values that need no quotes in an env file.
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+=:-]+", re.ASCII)
_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-.*)?\}", re.DOTALL)


class TokenRow(Value):
    """An entry of a token, or of a secret, which has no scopes and signs requests."""

    name: str | None
    scopes: tuple[str, ...]
    file: str
    line: int
    #: The place of the entry in its file.
    path: KeyPath
    #: The environment variable of the value; None for a value in the file itself.
    variable: str | None
    scopes_file: str | None
    #: Whether the entry is under `api.auth.tokens`.
    inline: bool

    @property
    def kind(self) -> str:
        return "token" if self.scopes else "secret"


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


class RevokedToken(Value):
    name: str
    files: tuple[str, ...]
    written: bool


# ------------------------------------------------------------------------------------------------ list


def list_tokens(config_path: str | None, environ: Mapping[str, str]) -> tuple[TokenRow, ...]:
    """Every token and secret, in the order of the files, without its value."""
    return _list_rows(load_config_files(find_config(config_path, environ)))


def _list_rows(sources: ConfigFiles) -> tuple[TokenRow, ...]:
    return tuple(
        _token_row(entry, (*place, index), sources.directory)
        for file in sources.files
        for place in (_TOKENS, _INLINE_TOKENS)
        for index, entry in enumerate(_items(node_at(file.tree, place)))
        if isinstance(entry, MapNode)
    )


def _token_row(entry: MapNode, path: KeyPath, directory: Path) -> TokenRow:
    inline = path[:-1] == _INLINE_TOKENS
    scopes_file = None if inline else _text(entry.get("scopes_file"))
    if scopes_file is not None:
        scopes = _read_scopes(resolve_path(scopes_file, directory))
    else:
        listed = _items(entry.get("scopes")) if inline else ()
        scopes = tuple(item.text for item in listed if isinstance(item, ScalarNode))
    value = _text(entry.get("token" if inline else "key"))
    reference = _REFERENCE.fullmatch(value.strip()) if value else None
    return TokenRow(
        name=_text(entry.get("name")),
        scopes=scopes,
        file=entry.location.file,
        line=entry.location.line,
        path=path,
        variable=reference["name"] if reference else None,
        scopes_file=scopes_file,
        inline=inline,
    )


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if isinstance(node, ListNode) else ()


def _text(node: Node | None) -> str | None:
    return node.text if isinstance(node, ScalarNode) else None


def _read_scopes(path: Path) -> tuple[str, ...]:
    """The scopes of a scope file; none if it cannot be read, which `config check` reports."""
    try:
        scopes = json.loads(read_regular_file(path))["scopes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()


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

    UsageError for an unusable name, value or scope; ConflictError if the name is taken.
    """
    config_file = find_config(config_path, environ)
    if not NAME.fullmatch(name):
        hint = "letters, digits, - and _, and no digit first"
        raise UsageError(f"{name!r} cannot be the name of a token", hint=hint)
    secret = generate_token() if value is None else value.strip()
    if not secret or not secret.isprintable():
        raise UsageError("the secret has to be one line of printable text")
    variable = f"DUCTILE_{name.replace('-', '_').upper()}_TOKEN"
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
        files=_names(config_file.parent, files),
        value=None if dry_run else secret,
        written=not dry_run,
        warnings=tuple(each for each in loaded.warnings if (each.key or "").startswith(f"tokens[{index}].")),
    )


def _check_new(
    sources: ConfigFiles, name: str, scopes: tuple[str, ...], variable: str, environ: Mapping[str, str]
) -> None:
    """ConflictError for a name or variable that is taken; UsageError for a misspelt scope."""
    if any(row.name == name for row in _list_rows(sources)):
        raise ConflictError(f"there already is a token {name}", hint=f"ductile token revoke {name}")
    # A line of an env file without a reference was left by a crash, and is replaced.
    if variable in environ or _count_references(sources, variable):
        raise ConflictError(
            f"the variable {variable} is already set", hint="choose another name, or unset the variable"
        )
    plugins = node_at(sources.root, ("plugins",))
    names = [key.text for key, _ in plugins.entries] if isinstance(plugins, MapNode) else []
    for scope in scopes:
        if hint := suggest_scope(scope, names):
            raise UsageError(f"unknown scope {scope!r}; nothing was written", hint=hint)


def _plan_files(
    config_file: Path, sources: ConfigFiles, name: str, scopes: tuple[str, ...], variable: str, secret: str
) -> dict[Path, bytes]:
    """The new content of files, in the order in which they are written."""
    directory, config = config_file.parent, config_file.read_bytes()
    entry: JsonObject = {"name": name, "key": f"${{{variable}}}"}
    files: dict[Path, bytes] = {}
    if scopes:
        content = json.dumps({"scopes": list(scopes)}, indent=2).encode() + b"\n"
        entry |= {"scopes_file": f"scopes/{name}.json", "scopes_hash": hash_bytes(content)}
        files[directory / "scopes" / f"{name}.json"] = content
    env_files = load_environment_files(sources.root, sources.directory).files
    if env_files:
        env_file = env_files[0].path
    else:
        env_file = _new_file(directory / ENV_FILE, "add it to `environment_vars.include`")
        config = with_entry(config, ("environment_vars", "include"), ENV_FILE, config_file)
    files[env_file] = _with_variable(env_file, variable, secret)
    # New tokens go to `tokens.yaml`, or else to the first file that has tokens.
    named = [file.path for file in sources.files if file.path.name == TOKENS_FILE]
    others = [file.path for file in sources.files if file.tree.get("tokens") is not None]
    tokens_file = next(iter((*named, *others)), None)
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


def _new_file(path: Path, hint: str) -> Path:
    if os.path.lexists(path):
        raise ConflictError(f"{path} already exists, and is not part of the configuration", hint=hint)
    return path


def _with_variable(env_file: Path, variable: str, secret: str) -> bytes:
    before = _line_of(variable).sub(b"", env_file.read_bytes() if env_file.exists() else b"")
    if before and not before.endswith(b"\n"):
        before += b"\n"
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    written = secret if _PLAIN_VALUE.fullmatch(secret) else f'"{escaped}"'
    after = before + f"{variable}={written}\n".encode()
    if parse_environment(after, file=str(env_file))[0].get(variable) != secret:
        raise UsageError("the secret cannot be written to an env file", hint="use another one")
    return after


# --------------------------------------------------------------------------------------------- revoke


def revoke_token(
    config_path: str | None, environ: Mapping[str, str], name: str, *, dry_run: bool = False
) -> RevokedToken:
    """Remove a token: its entry, its value and its scopes.

    NotFoundError for an unknown name; ConfigError if the configuration needs the token.
    """
    config_file = find_config(config_path, environ)
    with lock_config_directory(config_file.parent):
        sources = load_config_files(config_file)
        row = _find_row(sources, name)
        others = [other for other in _list_rows(sources) if other != row]
        file = Path(row.file)
        files = {file: without_entry(file.read_bytes(), row.path, file)}
        loaded = _check_result(config_file, environ, files)
        files |= _without_variable(sources, row, others)
        scopes = _unshared_scopes_file(sources.directory, row, others)
        if not dry_run:
            _write(sources, files, loaded.tiers)
            if scopes is not None:
                remove_sealed(config_file.parent, scopes)
    changed = [*files, *([scopes] if scopes is not None else [])]
    return RevokedToken(name=name, files=_names(config_file.parent, changed), written=not dry_run)


def _find_row(sources: ConfigFiles, name: str) -> TokenRow:
    rows = _list_rows(sources)
    for row in rows:
        if row.name == name and not row.inline:
            return row
        if row.name == name:
            raise ConflictError(
                f"{name} is written under `api.auth.tokens`", hint=f"remove it there: {row.file}:{row.line}"
            )
    raise NotFoundError(
        f"there is no token {name}",
        hint=did_you_mean(name, [row.name for row in rows if row.name]) or "See `ductile token list`.",
    )


def _without_variable(sources: ConfigFiles, row: TokenRow, others: list[TokenRow]) -> dict[Path, bytes]:
    """The env files without the token's value, unless something else refers to it."""
    if row.variable is None or any(other.variable == row.variable for other in others):
        return {}
    if _count_references(sources, row.variable) > 1:
        return {}
    line = _line_of(row.variable)
    files = load_environment_files(sources.root, sources.directory).files
    return {file.path: line.sub(b"", file.data) for file in files if line.search(file.data)}


def _unshared_scopes_file(directory: Path, row: TokenRow, others: list[TokenRow]) -> Path | None:
    """The scope file of a token, if no other token uses it and it is in the configuration's directory."""
    if row.scopes_file is None or any(other.scopes_file == row.scopes_file for other in others):
        return None
    path = (directory / row.scopes_file).absolute()
    return path if path.is_relative_to(directory) else None


# --------------------------------------------------------------------------------------------- shared


def _count_references(sources: ConfigFiles, variable: str) -> int:
    reference = re.compile(rb"\$\{%s[}:]" % variable.encode())
    return sum(len(reference.findall(file.data)) for file in sources.files)


def _line_of(variable: str) -> re.Pattern[bytes]:
    return re.compile(rb"^[ \t]*(?:export[ \t]+)?%s[ \t]*=.*\n?" % variable.encode(), re.MULTILINE)


def _check_result(config_file: Path, environ: Mapping[str, str], files: Mapping[Path, bytes]) -> LoadedConfig:
    """The configuration with these files. ConfigError, before anything is written, if it cannot be used."""
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


def _names(directory: Path, files: Mapping[Path, bytes] | list[Path]) -> tuple[str, ...]:
    return tuple(os.path.relpath(path, directory) for path in files)
