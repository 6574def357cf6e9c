"""Finds plugins: every directory under a root that has a manifest, loaded or refused with the reason.

A plugin that cannot be loaded never keeps another from loading. The first root with a loadable plugin of a
name wins, so that an operator's own copy can replace a shipped one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from blake3 import blake3

from ductile.config.file_io import find_symlinks, read_regular_file
from ductile.config.snapshot import Discovery, InstalledPlugin, RefusedPlugin
from ductile.errors import ConfigError, Problem
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
from ductile.protocol.manifest.model import MANIFEST_FILE, PROTOCOL, Manifest
from ductile.protocol.manifest.read import declared_name, declared_protocol, parse_manifest
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import Node

#: Directories in a root with code that plugins share; they are not plugins.
_SHARED = frozenset({"lib", "_lib", "__pycache__", "node_modules"})
#: Names of files that only occur in a directory that is meant to be a plugin.
_PLUGIN_LIKE_NAMES = frozenset({"run", "main", "plugin", "index", "manifest"})
#: Part of the hashed bytes, so that no other hash of this program can equal a fingerprint.
_DOMAIN = b"ductile plugin 1\n"


def discover(roots: Sequence[Path], *, allow_symlinks: bool = False) -> Discovery:
    """Return the plugins of the roots, in order."""
    policy = TrustPolicy(roots=tuple(dict.fromkeys(roots)), allow_symlinks=allow_symlinks)
    found = _FoundPlugins()
    for root in policy.roots:
        shared_refusal = _check_shared(root, policy.owners)
        for directory in _subdirectories(root, found.warnings):
            if not os.path.lexists(directory / MANIFEST_FILE):
                found.warnings += _missing_manifest(directory)
                continue
            plugin = load_plugin(directory, root=root, policy=policy)
            if shared_refusal is not None and isinstance(plugin, InstalledPlugin):
                plugin = _refused(plugin.name, directory, shared_refusal)
            found.add(plugin, root)
    return Discovery(
        installed=MappingProxyType(found.installed),
        refused=MappingProxyType(found.refused),
        warnings=tuple(found.warnings),
    )


def _check_shared(root: Path, owners: Collection[int]) -> NotTrustedError | None:
    """Return the refusal for the shared code of a root, which any of its plugins may load."""
    try:
        for directory in sorted(root / name for name in _SHARED):
            if directory.is_dir():
                check_path_permissions(directory, owners)
                check_directory_contents(directory, owners)
    except NotTrustedError as refused:
        return refused
    except OSError as error:
        return _unreadable(error)
    return None


def load_plugin(directory: Path, *, root: Path, policy: TrustPolicy) -> InstalledPlugin | RefusedPlugin:
    """Load the plugin in one directory."""
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
        manifest = _read_manifest(node, file=str(manifest_path))
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
        return _refused(name, directory, refused)
    except ConfigError as invalid:
        return _refused(name, directory, _invalid_manifest(invalid))
    except OSError as error:
        return _refused(name, directory, _unreadable(error))


class _FoundPlugins:
    """The plugins found so far; the first loadable one of a name wins."""

    def __init__(self) -> None:
        self.installed: dict[str, InstalledPlugin] = {}
        self.refused: dict[str, RefusedPlugin] = {}
        self.warnings: list[Problem] = []

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
        warnings.append(Problem(message=message, file=str(root), key="plugin_roots", hint=hint))
        return
    for entry in entries:
        if not entry.name.startswith(".") and entry.name not in _SHARED and entry.is_dir():
            yield entry


def _read_manifest(node: Node | None, *, file: str) -> Manifest:
    protocol = declared_protocol(node)
    if protocol is not None and protocol != PROTOCOL:
        raise NotTrustedError(
            RefusalCode.PROTOCOL_UNSUPPORTED,
            f"it speaks plugin protocol {protocol}; this version of Ductile speaks {PROTOCOL}",
            "install a version of the plugin for that protocol",
        )
    return parse_manifest(node, file=file)


def _missing_manifest(directory: Path) -> Iterator[Problem]:
    """Yield a warning if the directory looks like a plugin."""
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


def _refused(name: str, directory: Path, why: NotTrustedError) -> RefusedPlugin:
    return RefusedPlugin(
        name=name, directory=directory, code=why.refusal.value, reason=why.reason, hint=why.hint
    )


def _invalid_manifest(error: ConfigError) -> NotTrustedError:
    """Return one refusal with all problems of the file."""
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


def _unreadable(error: OSError) -> NotTrustedError:
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
