"""Looking at, sealing and changing the configuration.

`open_configuration` is how every use case gets it: files, plugins and the compiled snapshot together.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ductile.config.compile.compiler import compile_snapshot
from ductile.config.edit.change import apply_edit, plan_edit
from ductile.config.edit.get import Setting, get_setting, parse_key
from ductile.config.effective import fill_in_defaults
from ductile.config.file_io import lock_config_directory
from ductile.config.find_config import find_config, resolve_path
from ductile.config.load import LoadedConfig, SealCheck, load_config
from ductile.config.schema.fields import SectionOf
from ductile.config.schema.jsonschema import config_schema
from ductile.config.schema.model import Config
from ductile.config.seal import (
    CHECKSUMS_FILE,
    Checksums,
    SealedFile,
    Tier,
    build_checksums,
    read_checksums,
    verify_sealed,
    write_checksums,
)
from ductile.config.snapshot import SqliteLocation
from ductile.errors import ConfigError, IntegrityError, Problem, file_error
from ductile.plugins.discovery import discover
from ductile.protocol.yaml_tree import KeyPath, location_of, node_at, problem_at
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ductile.config.snapshot import Discovery, PluginInstance, Snapshot
    from ductile.core.json import JsonValue
    from ductile.errors import Problem
    from ductile.protocol.yaml_tree import MapNode, SourceLocation


class OpenedConfiguration(Value):
    loaded: LoadedConfig
    discovery: Discovery
    snapshot: Snapshot


class ConfigCheck(Value):
    """A configuration that can be loaded; it is in order when no plugin it wants is refused, and it is what
    was sealed.
    """

    path: Path
    files: tuple[str, ...]
    snapshot: Snapshot
    tree: MapNode
    exposed: tuple[Problem, ...] = ()
    #: Why the daemon would not start with it, although all that is written in it is good.
    broken: IntegrityError | None = None

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return (*self.snapshot.warnings, *self.exposed)

    @property
    def refused(self) -> tuple[PluginInstance, ...]:
        return self.snapshot.refused

    def refusal_of(self, plugin: PluginInstance) -> Problem:
        """Why it cannot run, at the place that names what cannot be run."""
        path: KeyPath = ("plugins", plugin.name)
        if node_at(self.tree, (*path, "uses")) is not None:
            path = (*path, "uses")
        why = plugin.refused
        place = location_of(self.tree, path)
        return problem_at(place, path, why.reason if why else "", hint=why.hint if why else None)


class SealChange(StrEnum):
    """What sealing does to an entry."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    GONE = "gone"


class SealEntry(Value):
    """A file, or a plugin, which has no tier of its own."""

    name: str
    change: SealChange
    tier: Tier | None = None
    plugin: bool = False


class SealResult(Value):
    path: Path
    entries: tuple[SealEntry, ...]
    written: bool


class SettingChange(Value):
    """A change to one key; `diff` is empty when the key had that value already."""

    key: str
    path: Path
    diff: str
    written: bool
    sealed: bool


def open_configuration(
    named: str | Path | None, environ: Mapping[str, str], *, seal: SealCheck = SealCheck.VERIFY
) -> OpenedConfiguration:
    """Find, load and compile. Looking does not need the seal; whatever starts jobs has to verify it."""
    return _compile(load_config(find_config(named, environ), environ, seal=seal, list_plugins=_plugins_in))


def _plugins_in(roots: tuple[Path, ...], *, allow_symlinks: bool) -> tuple[str, ...]:
    return discover(roots, allow_symlinks=allow_symlinks).names


def state_file(snapshot: Snapshot) -> Path:
    """Where the store is; the lock and the socket are beside it."""
    if not isinstance(snapshot.state, SqliteLocation):
        raise _no_such_store(None)
    return snapshot.state.path


def _no_such_store(place: SourceLocation | None) -> ConfigError:
    message = "state.url is not supported by this version"
    if place is None:
        return ConfigError(message, hint="Use state.path.")
    problem = Problem(
        message=message,
        file=place.file,
        line=place.line,
        column=place.column,
        key="state.url",
        hint="use state.path",
    )
    return ConfigError("the configuration has a problem", problems=(problem,))


def _compile(loaded: LoadedConfig) -> OpenedConfiguration:
    discovery = discover(loaded.plugin_roots, allow_symlinks=loaded.model.service.allow_symlinks)
    return OpenedConfiguration(
        loaded=loaded, discovery=discovery, snapshot=compile_snapshot(loaded, discovery)
    )


def check_configuration(named: str | Path | None, environ: Mapping[str, str]) -> ConfigCheck:
    """Load it as the daemon would; ConfigError tells everything that keeps it from starting.

    A broken seal ends the daemon's look at it. Here it is one problem among others: whoever has edited a file
    wants to hear of the slip in it before sealing it.
    """
    broken = None
    try:
        opened = _open_usable(named, environ, SealCheck.VERIFY)
    except IntegrityError as error:
        broken = error
        opened = _open_despite(error, named, environ)
    return ConfigCheck(
        path=opened.loaded.path,
        files=tuple(file.name for file in opened.loaded.files),
        snapshot=opened.snapshot,
        tree=opened.loaded.tree,
        exposed=tuple(_exposed(opened)),
        broken=broken,
    )


def _open_usable(
    named: str | Path | None, environ: Mapping[str, str], seal: SealCheck
) -> OpenedConfiguration:
    opened = open_configuration(named, environ, seal=seal)
    if not isinstance(opened.snapshot.state, SqliteLocation):
        raise _no_such_store(opened.loaded.location("state", "url"))
    return opened


def _open_despite(
    broken: IntegrityError, named: str | Path | None, environ: Mapping[str, str]
) -> OpenedConfiguration:
    try:
        return _open_usable(named, environ, SealCheck.IGNORE)
    except ConfigError as rest:
        count = len(rest.problems)
        besides = f"there are {count} problems" if count > 1 else "there is a problem"
        problems = (*broken.problems, *rest.problems)
        raise IntegrityError(
            f"{broken.message}, and {besides} in it", hint=rest.hint, problems=problems
        ) from rest


def _exposed(opened: OpenedConfiguration) -> Iterator[Problem]:
    """Files with secrets that other users can read."""
    for name in opened.loaded.model.environment_vars.include:
        path = resolve_path(name, opened.loaded.directory)
        with suppress(OSError):
            if path.stat().st_mode & 0o077:
                yield Problem(
                    message="other users can read it, and it holds secrets",
                    file=str(path),
                    hint=f"chmod 600 {path}",
                )


def lock_configuration(
    named: str | Path | None, environ: Mapping[str, str], *, dry_run: bool = False
) -> SealResult:
    """Seal every loaded file, scope file and plugin in use, as they are now."""
    opened = open_configuration(named, environ, seal=SealCheck.IGNORE)
    directory = opened.loaded.directory
    before = None
    with suppress(IntegrityError):  # a seal that cannot be read is replaced: that is how it is repaired
        before = read_checksums(directory)
    now = build_checksums(
        opened.loaded.files, _fingerprints(opened), strict=opened.loaded.model.service.strict_mode
    )
    if not dry_run:
        try:
            with lock_config_directory(directory):
                write_checksums(directory, now)
        except OSError as error:
            raise file_error(f"cannot write {directory / CHECKSUMS_FILE}", error) from error
    entries = tuple(_compare(before or Checksums(), now))
    return SealResult(path=directory / CHECKSUMS_FILE, entries=entries, written=not dry_run)


def show_configuration(named: str | None, environ: Mapping[str, str]) -> JsonValue:
    """What is set and what is left at its default, all files merged, secrets masked."""
    loaded = load_config(find_config(named, environ), environ, seal=SealCheck.IGNORE)
    return fill_in_defaults(loaded.redacted(), SectionOf(section=Config))


def read_setting(named: str | None, environ: Mapping[str, str], key: str) -> Setting:
    """What is set at a key, or the default that is in force."""
    loaded = load_config(find_config(named, environ), environ, seal=SealCheck.IGNORE)
    setting = get_setting(loaded, key)
    match parse_key(key):
        case ("plugins", str(plugin), "parallelism") if setting.location is None:
            with suppress(ConfigError):  # without the plugin's manifest the default is known in words only
                return replace(setting, value=_compile(loaded).snapshot.plugins[plugin].parallelism)
    return setting


def change_setting(
    named: str | None,
    environ: Mapping[str, str],
    key: str,
    value: str,
    *,
    dry_run: bool = False,
    lock: bool = False,
) -> SettingChange:
    """Set one key. The whole configuration is checked with the change before anything is written."""
    try:
        edit = plan_edit(find_config(named, environ), key, value, environ)
        _compile(edit.loaded)
    except ConfigError as error:
        error.message = f"nothing was written: {error.message}"
        raise
    write = bool(edit.diff) and not dry_run
    if lock and edit.diff and dry_run:
        verify_sealed(edit.loaded.directory, edit.path)
    if write:
        try:
            with lock_config_directory(edit.loaded.directory):
                apply_edit(edit, renew=lock)
        except OSError as error:
            raise file_error(f"cannot write {error.filename or edit.path}", error) from error
    return SettingChange(key=edit.key, path=edit.path, diff=edit.diff, written=write, sealed=write and lock)


def describe_configuration() -> dict[str, Any]:
    """The JSON Schema of `config.yaml`."""
    return config_schema()


def _fingerprints(opened: OpenedConfiguration) -> dict[str, str]:
    """Of the plugins that are configured; what cannot run needs no seal."""
    used = sorted({plugin.uses for plugin in opened.snapshot.plugins.values()})
    installed = opened.discovery.installed
    return {name: installed[name].fingerprint for name in used if name in installed}


def _compare(before: Checksums, now: Checksums) -> Iterator[SealEntry]:
    for name, file in now.files.items():
        yield SealEntry(name=name, change=_change(before.files.get(name), file), tier=file.tier)
    for name, fingerprint in now.plugins.items():
        yield SealEntry(name=name, change=_change(before.plugins.get(name), fingerprint), plugin=True)
    for name, file in before.files.items():
        if name not in now.files:
            yield SealEntry(name=name, change=SealChange.GONE, tier=file.tier)
    for name in before.plugins:
        if name not in now.plugins:
            yield SealEntry(name=name, change=SealChange.GONE, plugin=True)


def _change(before: SealedFile | str | None, now: SealedFile | str) -> SealChange:
    if before is None:
        return SealChange.NEW
    return SealChange.SAME if before == now else SealChange.CHANGED
