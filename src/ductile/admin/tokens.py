"""The tokens of a configuration as they are written, without their values and without needing them."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.init_config import generate_token
from ductile.config.edit.rewrite import with_entry, without_entry
from ductile.config.file_io import lock_config_directory, read_regular_file
from ductile.config.find_config import CONFIG_FILE, find_config, resolve_path
from ductile.config.load import LoadedConfig, SealCheck, load_config
from ductile.config.names import NAME
from ductile.config.read.environment import load_environment_files, parse_environment
from ductile.config.read.includes import ConfigFiles, load_config_files
from ductile.config.seal import Tier, hash_bytes, remove_sealed, write_new_sealed, write_sealed
from ductile.config.validate.access import suggest_scope
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, ConflictError, NotFoundError, Problem, UsageError, file_error
from ductile.protocol.yaml_tree import ListNode, MapNode, Node, ScalarNode, node_at
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from ductile.config.read.includes import ConfigFiles
    from ductile.core.json import JsonObject
    from ductile.protocol.yaml_tree import KeyPath


_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-.*)?\}", re.DOTALL)


class TokenRow(Value):
    """A token or a secret. One without scopes opens nothing; it signs."""

    name: str | None
    scopes: tuple[str, ...]
    file: str
    line: int
    #: Where it is in its own file.
    path: KeyPath
    #: The environment variable that holds the value; None if it is written in the clear.
    variable: str | None
    scopes_file: str | None
    #: Whether it stands under `api.auth.tokens`.
    inline: bool

    @property
    def kind(self) -> str:
        return "token" if self.scopes else "secret"


def list_rows(sources: ConfigFiles) -> tuple[TokenRow, ...]:
    """In the order in which they are loaded."""
    return tuple(row for file in sources.files for row in _rows_of(file.tree, sources.directory))


def _rows_of(tree: MapNode, directory: Path) -> Iterator[TokenRow]:
    for index, entry in _entries(tree, ("tokens",)):
        scopes_file = _text(entry, "scopes_file")
        yield TokenRow(
            name=_text(entry, "name"),
            scopes=() if scopes_file is None else _read_scopes(resolve_path(scopes_file, directory)),
            file=entry.location.file,
            line=entry.location.line,
            path=("tokens", index),
            variable=_variable(_text(entry, "key")),
            scopes_file=scopes_file,
            inline=False,
        )
    for index, entry in _entries(tree, ("api", "auth", "tokens")):
        scopes = entry.get("scopes")
        listed = scopes.items if isinstance(scopes, ListNode) else ()
        yield TokenRow(
            name=_text(entry, "name"),
            scopes=tuple(item.text for item in listed if isinstance(item, ScalarNode)),
            file=entry.location.file,
            line=entry.location.line,
            path=("api", "auth", "tokens", index),
            variable=_variable(_text(entry, "token")),
            scopes_file=None,
            inline=True,
        )


def _entries(tree: MapNode, path: tuple[str, ...]) -> Iterator[tuple[int, MapNode]]:
    node: Node | None = tree
    for part in path:
        node = node.get(part) if isinstance(node, MapNode) else None
    for index, item in enumerate(node.items if isinstance(node, ListNode) else ()):
        if isinstance(item, MapNode):
            yield index, item


def _text(entry: MapNode, key: str) -> str | None:
    node = entry.get(key)
    return node.text if isinstance(node, ScalarNode) else None


def _variable(written: str | None) -> str | None:
    found = _REFERENCE.fullmatch(written.strip()) if written else None
    return found["name"] if found else None


def _read_scopes(path: Path) -> tuple[str, ...]:
    """What a scope file grants; one that cannot be read grants nothing, and `config check` says why."""
    try:
        scopes = json.loads(read_regular_file(path))["scopes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()


TOKENS_FILE = "tokens.yaml"
ENV_FILE = ".env"

_GROUP_AND_OTHERS = 0o077
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+=:-]+", re.ASCII)


@hide_in_repr("value")
class CreatedToken(Value):
    """What was made, or would be. `value` is given this once."""

    name: str
    scopes: tuple[str, ...]
    variable: str
    files: tuple[str, ...]
    value: str | None
    written: bool
    #: What is doubtful about its scopes.
    warnings: tuple[Problem, ...] = ()


class RevokedToken(Value):
    name: str
    files: tuple[str, ...]
    written: bool


def list_tokens(named: str | None, environ: Mapping[str, str]) -> tuple[TokenRow, ...]:
    """Every entry that opens the API or signs something, without its value."""
    config_file = find_config(named, environ)
    return list_rows(load_config_files(config_file))


# --------------------------------------------------------------------------------------------- create


def create_token(
    named: str | None,
    environ: Mapping[str, str],
    name: str,
    scopes: tuple[str, ...],
    *,
    value: str | None = None,
    dry_run: bool = False,
) -> CreatedToken:
    """Make a token, or without scopes a secret. The whole configuration is checked with it beforehand."""
    config_file = find_config(named, environ)
    if not NAME.fullmatch(name):
        hint = "letters, digits, - and _, and no digit first"
        raise UsageError(f"{name!r} cannot be the name of a token", hint=hint)
    secret = generate_token() if value is None else _fit_value(value)
    variable = f"DUCTILE_{name.replace('-', '_').upper()}_TOKEN"
    with lock_config_directory(config_file.parent):
        sources = load_config_files(config_file)
        _refuse_taken(sources, name, variable, environ)
        _refuse_misspelt(sources, scopes)
        files = _plan_files(config_file, sources, name, scopes, variable, secret)
        loaded = _check(config_file, environ, files)
        if not dry_run:
            _write(sources, files, loaded.tiers)
    return CreatedToken(
        name=name,
        scopes=scopes,
        variable=variable,
        files=_names(config_file.parent, files),
        value=None if dry_run else secret,
        written=not dry_run,
        warnings=_about(loaded, name),
    )


def _about(loaded: LoadedConfig, name: str) -> tuple[Problem, ...]:
    """The warnings that are about this token: others are no news to whoever makes one."""
    index = next(index for index, entry in enumerate(loaded.model.tokens) if entry.name == name)
    return tuple(each for each in loaded.warnings if (each.key or "").startswith(f"tokens[{index}]."))


def _fit_value(value: str) -> str:
    stripped = value.strip()
    if not stripped or not stripped.isprintable():
        raise UsageError("the secret has to be one line of printable text")
    return stripped


def _refuse_taken(sources: ConfigFiles, name: str, variable: str, environ: Mapping[str, str]) -> None:
    if any(row.name == name for row in list_rows(sources)):
        raise ConflictError(f"there already is a token {name}", hint=f"ductile token revoke {name}")
    # A line of an env file that nothing refers to is what a crash left of an earlier try: it is replaced.
    if variable in environ or _uses(sources, variable):
        raise ConflictError(
            f"the variable {variable} is already set", hint="choose another name, or unset the variable"
        )


def _refuse_misspelt(sources: ConfigFiles, scopes: tuple[str, ...]) -> None:
    """Whoever holds the token would find out by a refusal only."""
    plugins = node_at(sources.root, ("plugins",))
    names = [key.text for key, _ in plugins.entries] if isinstance(plugins, MapNode) else []
    for scope in scopes:
        if hint := suggest_scope(scope, names):
            raise UsageError(f"unknown scope {scope!r}; nothing was written", hint=hint)


def _plan_files(
    config_file: Path, sources: ConfigFiles, name: str, scopes: tuple[str, ...], variable: str, secret: str
) -> dict[Path, bytes]:
    """The files as they will be, in the order in which they are written."""
    directory, config = config_file.parent, config_file.read_bytes()
    entry: JsonObject = {"name": name, "key": f"${{{variable}}}"}
    files: dict[Path, bytes] = {}
    if scopes:
        content = json.dumps({"scopes": list(scopes)}, indent=2).encode() + b"\n"
        entry |= {"scopes_file": f"scopes/{name}.json", "scopes_hash": hash_bytes(content)}
        files[directory / "scopes" / f"{name}.json"] = content
    env_file = _env_file(sources)
    if env_file is None:
        env_file = _new_file(directory / ENV_FILE, "add it to `environment_vars.include`")
        config = with_entry(config, ("environment_vars", "include"), ENV_FILE, config_file)
    files[env_file] = _with_variable(env_file, variable, secret)
    tokens_file = _tokens_file(sources)
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


def _tokens_file(sources: ConfigFiles) -> Path | None:
    """Where tokens are kept: in `tokens.yaml`, else where there are some."""
    named = [file.path for file in sources.files if file.path.name == TOKENS_FILE]
    others = [file.path for file in sources.files if file.tree.get("tokens") is not None]
    return next(iter((*named, *others)), None)


def _env_file(sources: ConfigFiles) -> Path | None:
    known = load_environment_files(sources.root, sources.directory).files
    return known[0].path if known else None


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
    named: str | None, environ: Mapping[str, str], name: str, *, dry_run: bool = False
) -> RevokedToken:
    """Take a token away: its entry, its value and its scopes. Refused while something needs it."""
    config_file = find_config(named, environ)
    with lock_config_directory(config_file.parent):
        sources = load_config_files(config_file)
        row = _row(sources, name)
        others = [other for other in list_rows(sources) if other != row]
        file = Path(row.file)
        files = {file: without_entry(file.read_bytes(), row.path, file)}
        loaded = _check(config_file, environ, files)
        files |= _without_variable(sources, row, others)
        scopes = _scopes_file(sources.directory, row, others)
        if not dry_run:
            _write(sources, files, loaded.tiers)
            if scopes is not None:
                remove_sealed(config_file.parent, scopes)
    gone = [*files, *([scopes] if scopes is not None else [])]
    return RevokedToken(name=name, files=_names(config_file.parent, gone), written=not dry_run)


def _row(sources: ConfigFiles, name: str) -> TokenRow:
    rows = list_rows(sources)
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
    if _uses(sources, row.variable) > 1:
        return {}
    line = _line_of(row.variable)
    files = load_environment_files(sources.root, sources.directory).files
    return {file.path: line.sub(b"", file.data) for file in files if line.search(file.data)}


def _uses(sources: ConfigFiles, variable: str) -> int:
    """How often the configuration refers to a variable."""
    reference = re.compile(rb"\$\{%s[}:]" % variable.encode())
    return sum(len(reference.findall(file.data)) for file in sources.files)


def _line_of(variable: str) -> re.Pattern[bytes]:
    return re.compile(rb"^[ \t]*(?:export[ \t]+)?%s[ \t]*=.*\n?" % variable.encode(), re.MULTILINE)


def _scopes_file(directory: Path, row: TokenRow, others: list[TokenRow]) -> Path | None:
    if row.scopes_file is None or any(other.scopes_file == row.scopes_file for other in others):
        return None
    path = (directory / row.scopes_file).absolute()
    return path if path.is_relative_to(directory) else None


# --------------------------------------------------------------------------------- checking, writing


def _check(config_file: Path, environ: Mapping[str, str], files: Mapping[Path, bytes]) -> LoadedConfig:
    """Load the configuration as it would be; everything that is wrong with it, and nothing is written."""
    try:
        return load_config(config_file, environ, seal=SealCheck.IGNORE, overlay=files)
    except ConfigError as error:
        error.message = f"nothing was written: {error.message}"
        raise


def _write(sources: ConfigFiles, files: Mapping[Path, bytes], tiers: Mapping[str, Tier]) -> None:
    """One after the other, each with its own entry in the seal, verified before and renewed after."""
    directory = sources.directory
    variables = load_environment_files(sources.root, directory).files
    loaded = {file.path for file in sources.files} | {file.path for file in variables}
    try:
        for path, data in files.items():
            if path.suffix not in (".yaml", ".yml"):
                _make_private(path)
            if path in loaded:
                write_sealed(directory, path, data, tiers=tiers)
            else:
                write_new_sealed(directory, path, data, Tier.HIGH)
    except OSError as error:
        raise file_error(f"cannot write {error.filename}", error) from error


def _make_private(path: Path) -> None:
    """Before it is written: what replaces a file has its mode, and others are not to read it for a moment."""
    with suppress(FileNotFoundError):  # a new one is for its owner only
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & _GROUP_AND_OTHERS:
            path.chmod(mode & ~_GROUP_AND_OTHERS)


def _names(directory: Path, files: Mapping[Path, bytes] | list[Path]) -> tuple[str, ...]:
    return tuple(os.path.relpath(path, directory) for path in files)
