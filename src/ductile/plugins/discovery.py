"""Finds plugins, the directories under a root that have a manifest, and loads or refuses them.

A plugin that cannot be loaded never keeps another from loading. The first root with a loadable plugin of a
name wins. The shipped plugins come last, and only those in use are loaded: an operator's own plugin replaces
the shipped one of the same name, also if it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from blake3 import blake3

from ductile.config.file_io import find_symlinks, read_regular_file
from ductile.config.snapshot import Discovery, InstalledPlugin, RefusedPlugin
from ductile.errors import ConfigError, Problem
from ductile.plugins.shipped import shipped_names, shipped_root
from ductile.plugins.trust import (
    NotTrustedError,
    RefusalCode,
    TrustPolicy,
    check_directory_contents,
    check_entrypoint,
    check_path_permissions,
    check_symlinks,
    entrypoint_path,
)
from ductile.protocol.manifest.model import MANIFEST_FILE, PROTOCOL
from ductile.protocol.manifest.read import declared_name, declared_protocol, parse_manifest
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import Node
from ductile.struct import replace

#: Directories in a root with code that plugins share; they are not plugins.
SHARED_DIRECTORIES = frozenset({"lib", "_lib", "__pycache__", "node_modules"})
#: Names of files that only occur in a directory that is meant to be a plugin.
_PLUGIN_LIKE_NAMES = frozenset({"run", "main", "plugin", "index", "manifest"})
#: Part of the hashed bytes, so that no other hash of this program can equal a fingerprint.
_DOMAIN = b"ductile plugin 1\n"
#: Refusals because another user can change the plugin.
_CHANGEABLE_BY_OTHERS = frozenset((RefusalCode.WORLD_WRITABLE, RefusalCode.FOREIGN_OWNER))


def discover(
    roots: Sequence[Path], *, allow_symlinks: bool = False, shipped: Collection[str] = ()
) -> Discovery:
    """Return the plugins of the roots, in order, and the named ones of the shipped plugins."""
    own_roots, root_of_shipped = tuple(dict.fromkeys(roots)), shipped_root()
    allowed = own_roots if root_of_shipped is None else (*own_roots, root_of_shipped)
    policy = TrustPolicy(roots=allowed, allow_symlinks=allow_symlinks)
    plugins = _FoundPlugins()
    for root in own_roots:
        candidates = []
        for directory in _subdirectories(root, plugins.warnings):
            if os.path.lexists(directory / MANIFEST_FILE):
                candidates.append(directory)
            else:
                plugins.warnings += _warn_if_manifest_is_missing(directory)
        for plugin in _load_all(candidates, root, policy):
            plugins.add(plugin, root)
    for plugin in load_shipped([name for name in shipped if name not in plugins], policy):
        plugins.add(plugin, plugin.directory.parent)
    return Discovery(
        installed=MappingProxyType(plugins.installed),
        refused=MappingProxyType(plugins.refused),
        shipped_names=shipped_names(),
        warnings=tuple(plugins.warnings),
    )


def load_shipped(
    names: Iterable[str], policy: TrustPolicy | None = None
) -> tuple[InstalledPlugin | RefusedPlugin, ...]:
    """Load the shipped plugins of these names. Other names are ignored."""
    root, known = shipped_root(), shipped_names()
    if root is None:
        return ()
    directories = [root / name for name in dict.fromkeys(names) if name in known]
    return tuple(_load_all(directories, root, policy or TrustPolicy(roots=(root,))))


def _load_all(
    directories: Sequence[Path], root: Path, policy: TrustPolicy
) -> Iterator[InstalledPlugin | RefusedPlugin]:
    """Load plugins of one root. All are refused if their shared code is."""
    shared_refusal = _shared_code_refusal(root, policy.owners) if directories else None
    for directory in directories:
        plugin = load_plugin(directory, root=root, policy=policy)
        if shared_refusal is not None and isinstance(plugin, InstalledPlugin):
            plugin = _refused_plugin(plugin.name, directory, shared_refusal)
        if root == shipped_root():
            plugin = replace(plugin, shipped=True)
            # Another user who can change it can change Ductile as well: the installation is at fault.
            if isinstance(plugin, RefusedPlugin) and plugin.code in _CHANGEABLE_BY_OTHERS:
                hint = "install Ductile as root or as the user who runs it, where no other user can write"
                plugin = replace(plugin, hint=hint)
        yield plugin


def _shared_code_refusal(root: Path, owners: Collection[int]) -> NotTrustedError | None:
    """Return the refusal for the shared code of a root, which any of its plugins may load."""
    try:
        for directory in sorted(root / name for name in SHARED_DIRECTORIES):
            if directory.is_dir():
                check_path_permissions(directory, owners)
                check_directory_contents(directory, owners)
    except NotTrustedError as refused:
        return refused
    except OSError as error:
        return _unreadable_refusal(error)
    return None


def load_plugin(directory: Path, *, root: Path, policy: TrustPolicy) -> InstalledPlugin | RefusedPlugin:
    """Load the plugin in one directory, or refuse it."""
    name, owners = directory.name, policy.owners
    try:
        manifest_path = directory / MANIFEST_FILE
        check_symlinks(manifest_path, root=root, policy=policy)
        manifest_bytes = read_regular_file(manifest_path)
        node = parse_yaml(manifest_bytes, file=str(manifest_path))
        name = declared_name(node) or name
        for path in (root, directory):
            check_path_permissions(path, owners)
        check_directory_contents(directory, owners)
        check_path_permissions(manifest_path, owners)
        _check_protocol(node)
        manifest = parse_manifest(node, file=str(manifest_path))
        entrypoint = entrypoint_path(directory, manifest.entrypoint)
        check_symlinks(entrypoint, root=root, policy=policy)
        check_entrypoint(entrypoint)
        check_path_permissions(entrypoint, owners)
        return InstalledPlugin(
            name=name,
            version=manifest.version,
            root=root,
            directory=directory,
            entrypoint=entrypoint,
            manifest=manifest,
            fingerprint=fingerprint(manifest_bytes, entrypoint),
        )
    except NotTrustedError as refused:
        return _refused_plugin(name, directory, refused)
    except ConfigError as invalid:
        return _refused_plugin(name, directory, _manifest_refusal(invalid))
    except OSError as error:
        return _refused_plugin(name, directory, _unreadable_refusal(error))


def load_directory(directory: Path) -> InstalledPlugin | RefusedPlugin:
    """Load the plugin in a directory, which does not have to be under a plugin root."""
    path = directory.absolute()
    return load_plugin(path, root=path.parent, policy=TrustPolicy(roots=(path.parent,)))


class _FoundPlugins:
    """The plugins found so far; the first loadable one of a name wins."""

    def __init__(self) -> None:
        self.installed: dict[str, InstalledPlugin] = {}
        self.refused: dict[str, RefusedPlugin] = {}
        self.warnings: list[Problem] = []

    def __contains__(self, name: str) -> bool:
        return name in self.installed or name in self.refused

    def add(self, plugin: InstalledPlugin | RefusedPlugin, root: Path) -> None:
        first: InstalledPlugin | RefusedPlugin | None = self.installed.get(plugin.name)
        if first is None and isinstance(plugin, InstalledPlugin):
            self.installed[plugin.name] = plugin
            if (earlier := self.refused.pop(plugin.name, None)) is not None:
                message = f"this copy of {plugin.name} is refused, {plugin.directory} is used instead"
                self._warn(earlier.directory, f"{message}: {earlier.reason}", hint=earlier.hint)
            paths = (plugin.directory / MANIFEST_FILE, plugin.entrypoint)
            if links := [link for path in paths for link in find_symlinks(path, root)]:
                self._warn(links[0], f"a plugin is reached through a symbolic link to {links[0].resolve()}")
            return
        if first is None and isinstance(plugin, RefusedPlugin):
            first = self.refused.setdefault(plugin.name, plugin)
        if first is not None and first is not plugin:
            message = f"a second plugin named {plugin.name} is ignored; {first.directory} was found first"
            self._warn(plugin.directory, message, hint="rename or remove one of them")

    def _warn(self, path: Path, message: str, *, hint: str | None = None) -> None:
        self.warnings.append(Problem(message=message, file=str(path), hint=hint))


def _subdirectories(root: Path, warnings: list[Problem]) -> Iterator[Path]:
    """Yield the candidates in alphabetical order, so that the result does not depend on the filesystem."""
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        message, hint = f"the plugin root cannot be read: {error.strerror}", None
        if isinstance(error, FileNotFoundError):
            message, hint = "the plugin root does not exist", "create it, or correct plugin_roots"
            if root.name == "shipped_plugins":  # of another version of Python, or an earlier installation
                hint = "remove it from plugin_roots: shipped plugins are found without it"
        warnings.append(Problem(message=message, file=str(root), key="plugin_roots", hint=hint))
        return
    for entry in entries:
        if not entry.name.startswith(".") and entry.name not in SHARED_DIRECTORIES and entry.is_dir():
            yield entry


def _check_protocol(manifest: Node | None) -> None:
    """Raise NotTrustedError if the manifest names another protocol than ours."""
    protocol = declared_protocol(manifest)
    if protocol is not None and protocol != PROTOCOL:
        raise NotTrustedError(
            RefusalCode.PROTOCOL_UNSUPPORTED,
            f"it speaks plugin protocol {protocol}; this version of Ductile speaks {PROTOCOL}",
            "install a version of the plugin for that protocol",
        )


def _warn_if_manifest_is_missing(directory: Path) -> Iterator[Problem]:
    """Yield a warning if a directory without a manifest looks like a plugin."""
    try:
        names = {entry.name.partition(".")[0] for entry in directory.iterdir()}
    except OSError:
        return
    if _PLUGIN_LIKE_NAMES.isdisjoint(names):
        return
    hint = "add a manifest.yaml, or move the directory elsewhere"
    for misnamed in ("manifest.json", "manifest.yml"):
        if (directory / misnamed).exists():
            hint = f"rename {misnamed} to manifest.yaml"
    message = "this looks like a plugin but has no manifest.yaml"
    yield Problem(message=message, file=str(directory), hint=hint)


def _refused_plugin(name: str, directory: Path, error: NotTrustedError) -> RefusedPlugin:
    return RefusedPlugin(
        name=name, directory=directory, code=error.refusal.value, reason=error.reason, hint=error.hint
    )


def _manifest_refusal(error: ConfigError) -> NotTrustedError:
    """Return one refusal with all problems of a manifest."""
    lines = []
    for problem in error.problems:
        text = f"{problem.message} ({problem.hint})" if problem.hint else problem.message
        if problem.key and problem.expected and problem.found:
            found = f"not {problem.found}"
            if problem.found == "nothing":
                found = f"but is missing ({problem.hint})" if problem.hint else "but is missing"
            text = f"{problem.key} has to be {problem.expected}, {found}"
        lines.append(f"  line {problem.line}: {text}")
    title = "a problem" if len(lines) == 1 else f"{len(lines)} problems"
    return NotTrustedError(
        RefusalCode.MANIFEST_INVALID,
        "\n".join((f"its manifest has {title}:", *lines)),
        "correct manifest.yaml, then run `ductile plugin check`",
    )


def _unreadable_refusal(error: OSError) -> NotTrustedError:
    return NotTrustedError(
        RefusalCode.UNREADABLE,
        f"{error.filename} cannot be read: {error.strerror}",
        "make it a file that the user running Ductile can read",
    )


def fingerprint(manifest: bytes, entrypoint: Path) -> str:
    """Return `blake3:<hex>` over the hashes of both files.

    Hashes have a fixed length, so moving a byte from one file to the other changes the result. The entrypoint
    may be large and is not read into memory.
    """
    code = blake3().update_mmap(entrypoint).digest()
    return f"blake3:{blake3(_DOMAIN + blake3(manifest).digest() + code).hexdigest()}"
