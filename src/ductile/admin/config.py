"""Open, check, show and change the configuration.

Every use case gets it from `open_configuration`: files, plugins and the compiled snapshot together.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from ductile.config.compile.compiler import compile_snapshot
from ductile.config.edit.change import (
    PlannedEdit,
    Setting,
    apply_edit,
    get_setting,
    parse_key,
    plan_edit,
    plan_removal,
    plan_text,
)
from ductile.config.file_io import (
    HISTORY_DIRECTORY,
    PRIVATE_FILE,
    hash_bytes,
    lock_config_directory,
    make_private_directory,
    read_regular_file,
)
from ductile.config.find_config import find_config, resolve_path
from ductile.config.load import LoadedConfig, SealMode, load_config
from ductile.config.schema.fields import SectionOf, fill_in_defaults
from ductile.config.schema.model import Config
from ductile.config.seal import relative_name, verify_sealed
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, ConflictError, IntegrityError, NotFoundError, Problem, file_error
from ductile.plugins.discovery import discover
from ductile.plugins.scripts import add_scripts
from ductile.plugins.shipped import shipped_names
from ductile.protocol.yaml_tree import KeyPath, location_of, node_at, problem_at
from ductile.store.open_store import require_driver
from ductile.struct import Value, field, hide_in_repr, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.config.snapshot import Discovery, PluginInstance, Snapshot
    from ductile.core.json import JsonValue


class OpenedConfiguration(Value):
    """A configuration that can be used: its files, the plugins on disk, and the snapshot of both."""

    loaded: LoadedConfig
    discovery: Discovery
    snapshot: Snapshot


class ConfigCheck(Value):
    """A configuration that can be loaded.

    It is in order if no configured plugin is refused and its seal is intact.
    """

    loaded: LoadedConfig
    snapshot: Snapshot
    warnings: tuple[Problem, ...]
    #: The error of a broken seal, with which the daemon would not start.
    seal_error: IntegrityError | None

    def refusal_of(self, plugin: PluginInstance) -> Problem:
        """Return the problem of a plugin that cannot run, with the place that names it."""
        path: KeyPath = ("plugins", plugin.name)
        if node_at(self.loaded.tree, (*path, "uses")) is not None:
            path = (*path, "uses")
        refusal = plugin.refused
        location = location_of(self.loaded.tree, path)
        return problem_at(
            location, path, refusal.reason if refusal else "", hint=refusal.hint if refusal else None
        )


@hide_in_repr("contents")
class SettingChange(Value):
    """A change of one key; `diff` is empty if the key had that value already."""

    key: str
    path: Path
    diff: str
    written: bool
    sealed: bool
    #: The text of the changed file, by its name in the seal; empty without a change.
    contents: Mapping[str, bytes] = field(default_factory=dict)


def open_configuration(
    config_path: str | Path | None,
    environ: Mapping[str, str],
    *,
    seal: SealMode = SealMode.VERIFY,
    overlay: Mapping[Path, bytes | None] = MappingProxyType({}),
) -> OpenedConfiguration:
    """Find, load and compile the configuration. Raises ConfigError if it cannot be used.

    A process that starts jobs verifies the seal; one that only reads need not. The overlay replaces the
    contents of files; None removes one.
    """

    def plugins_in(roots: tuple[Path, ...], allow_symlinks: bool) -> tuple[str, ...]:
        return discover(roots, allow_symlinks=allow_symlinks).names

    file = find_config(config_path, environ)
    loaded = load_config(file, environ, seal=seal, list_plugins=plugins_in, overlay=overlay)
    return _discover_and_compile(loaded, environ)


def _discover_and_compile(loaded: LoadedConfig, environ: Mapping[str, str]) -> OpenedConfiguration:
    """Find the plugins of a loaded configuration, and compile the snapshot."""
    model, roots = loaded.model, loaded.plugin_roots
    plugins = [plugin.uses or name for name, plugin in model.plugins.items() if plugin.run is None]
    # The default root need not exist if no plugin has to be there.
    if not model.plugin_roots and model.plugins_dir is None and set(plugins) <= set(shipped_names()):
        roots = tuple(root for root in roots if root.is_dir())
    allow_symlinks = model.service.allow_symlinks
    discovery = add_scripts(
        discover(roots, allow_symlinks=allow_symlinks, shipped=plugins),
        model.plugins,
        loaded.directory,
        search_path=environ.get("PATH"),
        allow_symlinks=allow_symlinks,
    )
    return OpenedConfiguration(
        loaded=loaded, discovery=discovery, snapshot=compile_snapshot(loaded, discovery)
    )


def check_configuration(config_path: str | Path | None, environ: Mapping[str, str]) -> ConfigCheck:
    """Load the configuration as the daemon does. Raises ConfigError with all problems that prevent a start.

    A broken seal is one problem among others here: a mistake in an edited file should be found before the
    file is sealed.
    """
    seal_error = None
    try:
        opened = _open_with_driver(config_path, environ, SealMode.VERIFY)
    except IntegrityError as error:
        seal_error = error
        try:
            opened = _open_with_driver(config_path, environ, SealMode.IGNORE)
        except ConfigError as other:
            count = len(other.problems)
            besides = f"there are {count} problems" if count > 1 else "there is a problem"
            problems = (*seal_error.problems, *other.problems)
            raise IntegrityError(
                f"{seal_error.message}, and {besides} in it", hint=other.hint, problems=problems
            ) from other
    warnings = [*opened.snapshot.warnings]
    for name in opened.loaded.model.environment_vars.include:
        path = resolve_path(name, opened.loaded.directory)
        with suppress(OSError):
            if path.stat().st_mode & 0o077:
                message, hint = "other users can read it, and it holds secrets", f"chmod 600 {path}"
                warnings.append(Problem(message=message, file=str(path), hint=hint))
    return ConfigCheck(
        loaded=opened.loaded, snapshot=opened.snapshot, warnings=tuple(warnings), seal_error=seal_error
    )


def _open_with_driver(
    config_path: str | Path | None, environ: Mapping[str, str], seal: SealMode
) -> OpenedConfiguration:
    """Open the configuration. Raises ConfigError also if the driver of its database is not installed."""
    opened = open_configuration(config_path, environ, seal=seal)
    try:
        require_driver(opened.snapshot.state)
    except ConfigError as error:
        location = opened.loaded.location("state", "url")
        problem = problem_at(location, ("state", "url"), error.message, hint=error.hint)
        raise ConfigError("the configuration has a problem", problems=(problem,)) from error
    return opened


def show_configuration(config_path: str | None, environ: Mapping[str, str]) -> JsonValue:
    """Return the effective settings: all files merged, defaults filled in, secrets masked."""
    loaded = load_config(find_config(config_path, environ), environ, seal=SealMode.IGNORE)
    return fill_in_defaults(loaded.redacted(), SectionOf(section=Config))


def read_setting(config_path: str | None, environ: Mapping[str, str], key: str) -> Setting:
    """Return the value of a key, or the default that is in force."""
    loaded = load_config(find_config(config_path, environ), environ, seal=SealMode.IGNORE)
    setting = get_setting(loaded, key)
    match parse_key(key):
        case ("plugins", str(plugin), "parallelism") if setting.location is None:
            with suppress(ConfigError):  # without a manifest the default is a description
                return replace(
                    setting, value=_discover_and_compile(loaded, environ).snapshot.plugins[plugin].parallelism
                )
    return setting


def change_setting(
    config_path: str | None,
    environ: Mapping[str, str],
    key: str,
    value: str | None,
    *,
    dry_run: bool = False,
    lock: bool = False,
) -> SettingChange:
    """Set one key, or remove it if the value is None.

    The whole configuration is checked with the change before anything is written.
    Raises ConfigError if the result could not be used, IntegrityError if `lock` would renew a broken seal.
    """
    try:
        config_file = find_config(config_path, environ)
        if value is None:
            edit = plan_removal(config_file, key, environ)
        else:
            edit = plan_edit(config_file, key, value, environ)
        _discover_and_compile(edit.loaded, environ)
    except ConfigError as error:
        error.message = f"nothing was written: {error.message}"
        raise
    return _write_edit(edit, dry_run=dry_run, lock=lock)


class EditCopy(Value):
    """A private copy of a configuration file that an editor works on. It stays if its text is not written.

    It has the name of the file, so that editors recognise its language.
    """

    path: Path
    #: The hash of the file when it was copied.
    original_hash: str

    @classmethod
    def of(cls, file: Path) -> Self:
        """Copy a file to `.ductile/edit-…` beside it. Raises a DuctileError if it cannot be done."""
        try:
            data = read_regular_file(file)
            make_private_directory(file.parent / HISTORY_DIRECTORY)
            directory = Path(tempfile.mkdtemp(prefix="edit-", dir=file.parent / HISTORY_DIRECTORY))
            path = directory / file.name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            with os.fdopen(descriptor, "wb") as copy:
                copy.write(data)
        except OSError as error:
            raise file_error(f"cannot copy {file}", error) from error
        return cls(path=path, original_hash=hash_bytes(data))

    def read(self) -> bytes:
        try:
            return read_regular_file(self.path)
        except OSError as error:
            raise file_error(f"cannot read {self.path}", error) from error

    def remove(self) -> None:
        """Remove the copy, and files that the editor left beside it."""
        for path in self.path.parent.iterdir():
            path.unlink(missing_ok=True)
        self.path.parent.rmdir()


def replace_text(
    config_path: str | None,
    environ: Mapping[str, str],
    file: Path,
    text: bytes,
    *,
    original_hash: str,
    dry_run: bool = False,
    lock: bool = False,
) -> SettingChange:
    """Replace the text of one file, if the whole configuration can be used with it.

    Raises ConfigError if it cannot, ConflictError if the file no longer has the hash `original_hash`.
    """
    edit = plan_text(find_config(config_path, environ), file, text, environ)
    if hash_bytes(edit.before) != original_hash:
        raise ConflictError(f"{file} was changed meanwhile", hint="edit it again from its present text")
    _discover_and_compile(edit.loaded, environ)
    return _write_edit(edit, dry_run=dry_run, lock=lock)


def find_file(config_path: str | None, environ: Mapping[str, str], name: str | None) -> Path:
    """Return a file of the configuration by its name: `config.yaml` without one. Raises NotFoundError.

    The configuration may be invalid, so that an editor can correct it.
    """
    config_file = find_config(config_path, environ)
    if name is None:
        return config_file
    directory = config_file.parent
    for path in (directory / name, Path(name).absolute()):
        if path.is_file():
            return path
    file_names = [path.name for path in sorted(directory.iterdir()) if path.is_file()]
    raise NotFoundError(f"there is no file {name} in {directory}", hint=did_you_mean(name, file_names))


def _write_edit(edit: PlannedEdit, *, dry_run: bool, lock: bool) -> SettingChange:
    """Write a change that was checked. Raises IntegrityError if `lock` would renew a broken seal."""
    written = bool(edit.diff) and not dry_run
    if lock and edit.diff and dry_run:
        verify_sealed(edit.loaded.directory, edit.path)
    if written:
        try:
            with lock_config_directory(edit.loaded.directory):
                apply_edit(edit, renew=lock)
        except OSError as error:
            raise file_error(f"cannot write {error.filename or edit.path}", error) from error
    return SettingChange(
        key=edit.key,
        path=edit.path,
        diff=edit.diff,
        written=written,
        sealed=written and lock,
        contents={relative_name(edit.loaded.directory, edit.path): edit.after} if edit.diff else {},
    )
