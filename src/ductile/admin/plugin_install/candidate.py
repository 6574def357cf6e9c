"""Candidates: plugins of a source that could be added, with their files in memory and their manifest."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from ductile.admin.plugin_install.files import stage_plugin
from ductile.admin.plugin_install.git import read_repository
from ductile.admin.plugin_install.source import (
    ArchiveSource,
    DirectorySource,
    GitSource,
    ShippedSource,
    Source,
    parse_source,
)
from ductile.admin.plugin_install.tree import (
    SourceTree,
    choose_plugin,
    read_archive,
    read_directory,
    shared_code_beside,
)
from ductile.config.snapshot import RefusedPlugin
from ductile.errors import RefusedError, UsageError
from ductile.plugins.discovery import load_plugin, load_shipped
from ductile.plugins.shipped import shipped_names
from ductile.plugins.source_record import RECORD_FILE, SourceRecord, hash_file, hash_files
from ductile.plugins.trust import TrustPolicy
from ductile.runner.port import ALLOWED_VARIABLES
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.config.snapshot import InstalledPlugin, Snapshot
    from ductile.protocol.manifest.model import Manifest


class Candidate(Value):
    """A plugin that passed the checks. A shipped one has no files to copy, and no record."""

    name: str
    source: str
    manifest: Manifest
    fingerprint: str
    tree: SourceTree | None = None
    record: SourceRecord | None = None
    #: A directory of shared code beside the plugin, which is not added.
    shared_directory: str | None = None


class PluginRights(Value):
    """The rights of every plugin of a configuration. Plugins are not confined."""

    user: str
    environment: tuple[str, ...]
    network: str = "unrestricted"
    files: str = "all that this user can read and write"
    limits: str = "none, unless plugins.NAME.limits sets them"


def rights_of(snapshot: Snapshot) -> PluginRights:
    """Return what plugins may do: the user they run as, and the variables of the environment they get."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    names = (*sorted(ALLOWED_VARIABLES), "LC_*", "XDG_*", *snapshot.service.plugin_env_passthrough)
    return PluginRights(user=user, environment=names)


def read_source(text: str, *, base: Path) -> Source:
    """Return the source that a text names, with absolute paths. Raises `UsageError` if the text names none.

    Relative paths are those from `base`.
    """
    path = Path(os.path.normpath(base / Path(text).expanduser()))
    source = parse_source(text, is_directory=path.is_dir(), shipped=shipped_names())
    if isinstance(source, DirectorySource | ArchiveSource):
        return replace(source, path=str(path))
    return source


def find_candidate(
    source: Source, plugin_name: str | None, environ: Mapping[str, str], *, now: str
) -> Candidate:
    """Get the files of a source and check the plugin in it. Raises `RefusedError` if the plugin cannot run.

    `plugin_name` chooses among the plugins of a source; it may be None if there is only one. Raises
    `UsageError` and `NotFoundError` for a wrong choice.
    """
    commit = None
    match source:
        case ShippedSource(name=name):
            if plugin_name not in (None, name):
                raise UsageError(f"{name} is one shipped plugin: --plugin has no effect")
            (shipped,) = load_shipped([name])
            if isinstance(shipped, RefusedPlugin):
                raise RefusedError(f"{name} cannot run: {shipped.reason}", hint=shipped.hint)
            return Candidate(
                name=name, source=name, manifest=shipped.manifest, fingerprint=shipped.fingerprint
            )
        case DirectorySource(path=path):
            tree = read_directory(Path(path))
        case ArchiveSource(path=path):
            tree = read_archive(Path(path))
        case GitSource():
            tree, commit = read_repository(source, environ)
        case _:
            assert_never(source)
    chosen = choose_plugin(tree, plugin_name, str(source)).without(RECORD_FILE)
    hashes = file_hashes(chosen)
    record = SourceRecord(
        source=str(source), commit=commit, version="", hash=hash_files(hashes), files=hashes, added_at=now
    )
    plugin = _load_staged(chosen, record)
    return Candidate(
        name=plugin.name,
        source=str(source),
        manifest=plugin.manifest,
        fingerprint=plugin.fingerprint,
        tree=chosen,
        record=replace(record, version=plugin.version),
        shared_directory=shared_code_beside(tree, plugin_name),
    )


def file_hashes(tree: SourceTree) -> dict[str, str]:
    return {name: hash_file(file.data, executable=file.executable) for name, file in tree.files.items()}


def _load_staged(tree: SourceTree, record: SourceRecord) -> InstalledPlugin:
    """Load the plugin as the daemon does, from a temporary directory.

    Raises `RefusedError` if the daemon would refuse it.
    """
    with tempfile.TemporaryDirectory(prefix="ductile-plugin-") as scratch:
        root = Path(os.path.realpath(scratch))
        staged = stage_plugin(root, "checked", tree, record)
        plugin = load_plugin(staged, root=root, policy=TrustPolicy(roots=(root,)))
        if isinstance(plugin, RefusedPlugin):
            reason = plugin.reason.replace(f"{staged}/", "")
            raise RefusedError(
                f"the plugin cannot be added: {reason}", hint=(plugin.hint or "").replace(f"{staged}/", "")
            )
        return plugin
