"""Finding plugins: every directory under a root that has a manifest, loaded or refused with the reason.

One plugin that cannot be loaded never keeps another from loading. The order of the roots decides who has a
name, so that an operator's own copy of a plugin can stand in for a shipped one.
"""

from __future__ import annotations

import os
import stat
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.config.snapshot import Discovery, InstalledPlugin, RefusedPlugin
from ductile.errors import ConfigError, Problem
from ductile.plugins.fingerprint import fingerprint
from ductile.plugins.permissions import check_directory_contents, check_path_permissions, trusted_owners
from ductile.plugins.trust import (
    NotTrustedError,
    RefusalCode,
    TrustPolicy,
    check_entrypoint,
    check_path,
    entrypoint_path,
    find_symlink,
)
from ductile.protocol.manifest.model import MANIFEST_FILE, PROTOCOL
from ductile.protocol.manifest.read import declared_name, declared_protocol, parse_manifest
from ductile.protocol.yaml import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from ductile.protocol.manifest.model import Manifest
    from ductile.protocol.yaml_tree import Node

#: Directories in a root that hold what plugins share, not a plugin.
_SHARED = frozenset({"lib", "_lib", "__pycache__", "node_modules"})
#: Files that nobody puts in a directory that is not meant to be a plugin.
_TELLTALE = frozenset({"run", "main", "plugin", "index", "manifest"})


def discover(roots: Sequence[Path], *, allow_symlinks: bool = False) -> Discovery:
    """Look through the roots in order."""
    ground = TrustPolicy(roots=tuple(dict.fromkeys(roots)), allow_symlinks=allow_symlinks)
    finds = _Finds()
    for root in ground.roots:
        shared = _check_shared(root)
        for directory in _subdirectories(root, finds):
            if os.path.lexists(directory / MANIFEST_FILE):
                plugin = load_plugin(directory, root=root, ground=ground)
                if shared is not None and isinstance(plugin, InstalledPlugin):
                    plugin = _refused(plugin.name, directory, shared)
                finds.add(plugin)
                finds.warn_of_symlink(directory, root)
            elif _looks_like_a_plugin(directory):
                finds.warn(_no_manifest(directory))
    return finds.result()


def _check_shared(root: Path) -> NotTrustedError | None:
    """What is wrong with what the plugins of a root share: any of them may load code from there."""
    owners = trusted_owners()
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


def load_plugin(
    directory: Path, *, root: Path, ground: TrustPolicy, owners: Collection[int] | None = None
) -> InstalledPlugin | RefusedPlugin:
    """Load the plugin in one directory, or say why not. `owners` may change plugins: see `trusted_owners`."""
    owners = trusted_owners() if owners is None else owners
    name = directory.name
    try:
        manifest_path = directory / MANIFEST_FILE
        check_path(manifest_path, root=root, ground=ground)
        manifest_bytes = _read_file(manifest_path)
        node = parse_yaml(manifest_bytes, file=str(manifest_path))
        name = declared_name(node) or name
        for place in (root, directory):
            check_path_permissions(place, owners)
        check_directory_contents(directory, owners)
        check_path_permissions(manifest_path, owners)
        manifest = _read_manifest(node, file=str(manifest_path))
        entrypoint = entrypoint_path(directory, manifest.entrypoint)
        check_path(entrypoint, root=root, ground=ground)
        check_entrypoint(entrypoint)
        check_path_permissions(entrypoint, owners)
        print_of_code = fingerprint(manifest_bytes, entrypoint)
    except NotTrustedError as refused:
        return _refused(name, directory, refused)
    except ConfigError as invalid:
        return _refused(name, directory, _invalid_manifest(invalid))
    except OSError as error:
        return _refused(name, directory, _unreadable(error))
    return InstalledPlugin(
        name=name,
        version=manifest.version,
        root=root,
        directory=directory,
        entrypoint=entrypoint,
        manifest=manifest,
        fingerprint=print_of_code,
    )


class _Finds:
    """What was found so far; the first loadable plugin of a name keeps it."""

    def __init__(self) -> None:
        self._installed: dict[str, InstalledPlugin] = {}
        self._refused: dict[str, RefusedPlugin] = {}
        self._warnings: list[Problem] = []

    def add(self, found: InstalledPlugin | RefusedPlugin) -> None:
        if (first := self._installed.get(found.name)) is not None:
            self.warn(_second_of_a_name(found, first))
        elif isinstance(found, InstalledPlugin):
            self._installed[found.name] = found
            if (earlier := self._refused.pop(found.name, None)) is not None:
                self.warn(_stands_in(found, earlier))
        elif (before := self._refused.setdefault(found.name, found)) is not found:
            self.warn(_second_of_a_name(found, before))

    def warn(self, problem: Problem) -> None:
        self._warnings.append(problem)

    def warn_of_symlink(self, directory: Path, root: Path) -> None:
        plugin = next((each for each in self._installed.values() if each.directory == directory), None)
        link = None if plugin is None else _first_symlink(plugin, root)
        if link is not None:
            self.warn(
                Problem(
                    message=f"a plugin is reached through a symbolic link to {link.resolve()}", file=str(link)
                )
            )

    def result(self) -> Discovery:
        return Discovery(
            installed=MappingProxyType(self._installed),
            refused=MappingProxyType(self._refused),
            warnings=tuple(self._warnings),
        )


def _first_symlink(plugin: InstalledPlugin, root: Path) -> Path | None:
    return find_symlink(plugin.directory / MANIFEST_FILE, root=root) or find_symlink(
        plugin.entrypoint, root=root
    )


def _subdirectories(root: Path, finds: _Finds) -> Iterator[Path]:
    """In alphabetical order, so that two runs over the same disk find the same."""
    try:
        entries = sorted(root.iterdir())
    except FileNotFoundError:
        hint = "create it, or correct plugin_roots"
        finds.warn(
            Problem(message="the plugin root does not exist", file=str(root), key="plugin_roots", hint=hint)
        )
        return
    except OSError as error:
        problem = f"the plugin root cannot be read: {error.strerror}"
        finds.warn(Problem(message=problem, file=str(root), key="plugin_roots"))
        return
    for entry in entries:
        if not entry.name.startswith(".") and entry.name not in _SHARED and entry.is_dir():
            yield entry


def _read_file(path: Path) -> bytes:
    """Only of a file: reading a pipe or a device might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise NotTrustedError(
            RefusalCode.UNREADABLE, f"{path} is not a file", "put the manifest itself there"
        )
    return path.read_bytes()


def _read_manifest(node: Node | None, *, file: str) -> Manifest:
    protocol = declared_protocol(node)
    if protocol is not None and protocol != PROTOCOL:
        raise NotTrustedError(
            RefusalCode.PROTOCOL_UNSUPPORTED,
            f"it speaks plugin protocol {protocol}; this version of Ductile speaks {PROTOCOL}",
            "install a version of the plugin for that protocol",
        )
    return parse_manifest(node, file=file)


def _looks_like_a_plugin(directory: Path) -> bool:
    try:
        return any(entry.name.partition(".")[0] in _TELLTALE for entry in directory.iterdir())
    except OSError:
        return False


def _refused(name: str, directory: Path, why: NotTrustedError) -> RefusedPlugin:
    return RefusedPlugin(
        name=name, directory=directory, code=why.refusal.value, reason=why.reason, hint=why.hint
    )


def _invalid_manifest(error: ConfigError) -> NotTrustedError:
    """All the problems of the file in one reason: whoever corrects it wants to see them together."""
    count = len(error.problems)
    title = "its manifest has a problem" if count == 1 else f"its manifest has {count} problems"
    lines = [f"line {problem.line}: {_in_words(problem)}" for problem in error.problems]
    return NotTrustedError(
        RefusalCode.MANIFEST_INVALID,
        "\n".join((f"{title}:", *(f"  {line}" for line in lines))),
        "correct manifest.yaml, then run `ductile plugin check`",
    )


def _in_words(problem: Problem) -> str:
    if problem.key and problem.expected and problem.found:
        found = "but is missing" if problem.found == "nothing" else f"not {problem.found}"
        hint = f" ({problem.hint})" if problem.found == "nothing" and problem.hint else ""
        return f"{problem.key} has to be {problem.expected}, {found}{hint}"
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def _unreadable(error: OSError) -> NotTrustedError:
    return NotTrustedError(
        RefusalCode.UNREADABLE,
        f"{error.filename} cannot be read: {error.strerror}",
        "make it readable for the user that runs Ductile",
    )


def _no_manifest(directory: Path) -> Problem:
    misnamed = next((name for name in ("manifest.yml", "manifest.json") if (directory / name).exists()), None)
    hint = (
        f"rename {misnamed} to manifest.yaml"
        if misnamed
        else "add a manifest.yaml, or move the directory elsewhere"
    )
    return Problem(
        message="this looks like a plugin but has no manifest.yaml", file=str(directory), hint=hint
    )


def _second_of_a_name(
    found: InstalledPlugin | RefusedPlugin, first: InstalledPlugin | RefusedPlugin
) -> Problem:
    return Problem(
        message=f"a second plugin named {found.name} is ignored; {first.directory} was found first",
        file=str(found.directory),
        hint="rename or remove one of them",
    )


def _stands_in(found: InstalledPlugin, earlier: RefusedPlugin) -> Problem:
    return Problem(
        message=f"this copy of {found.name} is refused, {found.directory} is used instead: {earlier.reason}",
        file=str(earlier.directory),
        hint=earlier.hint,
    )
