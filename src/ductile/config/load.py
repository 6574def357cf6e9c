"""Loads a configuration from its path: the order of all steps.

Read the files, compare them with the seal, read environment files, interpolate, decode, validate, read the
scope files. Problems that can be found together are reported together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import refuse_interrupted_change
from ductile.config.find_config import resolve_path
from ductile.config.read.environment import EnvironmentFiles, load_environment_files
from ductile.config.read.includes import ConfigFiles, load_config_files
from ductile.config.read.interpolate import interpolate
from ductile.config.read.scope_files import ScopeFile, load_scope_files
from ductile.config.redaction import redacted_config
from ductile.config.schema.decode import decode
from ductile.config.schema.model import Config
from ductile.config.seal import (
    Checksums,
    FileHash,
    Tier,
    access_variables,
    check_changes,
    config_tier,
    environment_tier,
    find_file_violations,
    hash_file,
    read_checksums,
)
from ductile.config.timezones import system_timezone
from ductile.config.validate.access import validate_api_has_token
from ductile.config.validate.pipelines import find_unquoted
from ductile.config.validate.report import ValidationReport
from ductile.config.validate.rules import report_missing_plugins, validate_config
from ductile.core.json import JsonValue
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml_tree import MapNode, SourceLocation, location_of
from ductile.struct import Value, hide_in_repr, replace

DEFAULT_PLUGIN_ROOT = "./plugins"


class SealMode(Enum):
    """Says if the seal is verified. `config lock` and commands that only show a configuration ignore it."""

    VERIFY = auto()
    IGNORE = auto()


class Machine(Value):
    """The facts about this machine that defaults depend on."""

    processors: int
    timezone: str


@hide_in_repr("tree")
class LoadedConfig(Value):
    """A valid configuration with everything that was read to get it."""

    path: Path
    model: Config
    machine: Machine
    files: tuple[FileHash, ...]
    scope_files: tuple[ScopeFile, ...]
    seal: SealMode
    checksums: Checksums | None
    warnings: tuple[Problem, ...]
    tree: MapNode

    @property
    def directory(self) -> Path:
        return self.path.parent

    @property
    def plugin_roots(self) -> tuple[Path, ...]:
        """The directories that are searched for plugins, in this order; absolute."""
        return _plugin_roots(self.model, self.directory)

    @property
    def max_workers(self) -> int:
        return self.model.service.max_workers or max(1, self.machine.processors - 1)

    @property
    def timezone(self) -> str:
        return self.model.service.timezone or self.machine.timezone

    @property
    def strict(self) -> bool:
        """Strict mode, as set now or as sealed: an edit cannot switch it off."""
        return self.model.service.strict_mode or (self.checksums is not None and self.checksums.strict)

    @property
    def tiers(self) -> Mapping[str, Tier]:
        """The tier of each loaded file, by the file's name in the seal."""
        return {file.name: file.tier for file in self.files}

    def location(self, *path: str | int) -> SourceLocation:
        """Return where a key is written, or the nearest node around it."""
        return location_of(self.tree, path)

    def redacted(self) -> JsonValue:
        """Return the merged configuration as written, without secrets."""
        return redacted_config(self.tree)


def inspect_machine(environ: Mapping[str, str]) -> Machine:
    # A container may get fewer processors than the machine has; not every system has the call.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(processors=allowed or 1, timezone=system_timezone(environ))


def load_config(
    path: Path,
    environ: Mapping[str, str],
    *,
    seal: SealMode = SealMode.VERIFY,
    machine: Machine | None = None,
    overlay: Mapping[Path, bytes | None] = MappingProxyType({}),
    list_plugins: Callable[[tuple[Path, ...], bool], Collection[str]] | None = None,
) -> LoadedConfig:
    """Load `config.yaml` at `path`. Raises ConfigError or IntegrityError if it must not be used.

    The overlay replaces the contents of files on disk; None removes one. `list_plugins` is called only if
    there are errors, to tell a missing plugin from a misspelt name. Its arguments are the roots and
    `allow_symlinks`; discovery is in a package above this one.
    """
    path, verify = path.absolute(), seal is SealMode.VERIFY
    directory = path.parent
    if verify:
        refuse_interrupted_change(directory)
    sources = load_config_files(path, overlay)
    environment = load_environment_files(sources.root, directory, overlay)
    files = _hash_files(sources, environment)
    checksums = read_checksums(directory) if verify else None
    violations = find_file_violations(files, checksums) if verify else ()
    check_changes(violations, directory, Tier.HIGH, refuse=True)

    config, report = _decode_and_validate(sources, environment, environ, list_plugins)
    scope_files, scope_links = load_scope_files(config, directory, report, overlay)
    validate_api_has_token(config, {file.token: file.scopes for file in scope_files}, report)
    _check_symlinks((*sources.links, *environment.links, *scope_links), config, report)
    if report.errors:
        report_missing_plugins(config, report)
        count = len(report.errors)
        summary = "a problem" if count == 1 else f"{count} problems"
        raise ConfigError(f"the configuration has {summary}", problems=tuple(report.errors))

    scopes = tuple(hash_file(directory, file.path, file.data, Tier.HIGH) for file in scope_files)
    loaded = LoadedConfig(
        path=path,
        model=config,
        machine=machine or inspect_machine(environ),
        files=tuple({file.name: file for file in (*files, *scopes)}.values()),
        scope_files=scope_files,
        seal=seal,
        checksums=checksums,
        warnings=tuple(report.warnings),
        tree=report.root,
    )
    if not verify:
        return loaded
    check_changes(find_file_violations(scopes, checksums), directory, Tier.HIGH, refuse=True)
    changes = check_changes(violations, directory, Tier.OPERATIONAL, refuse=loaded.strict)
    if checksums is None:  # one warning instead of one for each file
        message, hint = "the configuration has never been sealed", "run `ductile apply`"
        changes = (Problem(message=message, file=str(directory), hint=hint),)
    return replace(loaded, warnings=(*loaded.warnings, *changes))


def _decode_and_validate(
    sources: ConfigFiles,
    environment: EnvironmentFiles,
    environ: Mapping[str, str],
    list_plugins: Callable[[tuple[Path, ...], bool], Collection[str]] | None,
) -> tuple[Config, ValidationReport]:
    """Return the model and a report. The model must not be used if the report has errors."""
    variables = {**environment.variables, **environ}
    root, unset = interpolate(sources.root, variables, environment.unreadable)
    report = ValidationReport(root=root if isinstance(root, MapNode) else sources.root)
    unquoted = find_unquoted(report.root)
    config, invalid = decode(report.root)
    # A value whose variable is not set needs no second problem about its type.
    reported = {problem.key for problem in (*unset, *unquoted)}
    invalid = tuple(problem for problem in invalid if problem.key not in reported)
    report.errors += (*environment.problems, *unset, *unquoted, *invalid)
    complete = not report.errors  # otherwise the plugin roots may be among the values that cannot be read
    if complete and list_plugins is not None:
        roots = _plugin_roots(config, sources.directory)
        report.list_installed_plugins = cache(partial(list_plugins, roots, config.service.allow_symlinks))
    validate_config(config, report, complete=complete)
    # Errors at a reference that lacks its quotes, or around it, follow from that.
    keys = {problem.key or "" for problem in unquoted}
    affected_keys = keys | {re.sub(r"(\.[^.]*|\[\d+\])$", "", key) for key in keys}
    report.errors = [error for error in report.errors if error in unquoted or error.key not in affected_keys]
    return config, report


def _plugin_roots(config: Config, directory: Path) -> tuple[Path, ...]:
    roots = config.plugin_roots or (config.plugins_dir or DEFAULT_PLUGIN_ROOT,)
    return tuple(resolve_path(root, directory) for root in roots)


def _hash_files(sources: ConfigFiles, environment: EnvironmentFiles) -> tuple[FileHash, ...]:
    """Return the hash and tier of each configuration file and environment file."""
    granting_variables = access_variables(sources.root)
    files = [(file.path, file.data, config_tier(file.path.name, file.tree)) for file in sources.files]
    files += [
        (file.path, file.data, environment_tier(file.names, granting_variables)) for file in environment.files
    ]
    return tuple(hash_file(sources.directory, *file) for file in files)


def _check_symlinks(links: tuple[Path, ...], config: Config, report: ValidationReport) -> None:
    """Add a warning for each symbolic link, an error if `allow_symlinks` is not set."""
    for link in dict.fromkeys(links):
        message = f"{link} is a symbolic link"
        if config.service.allow_symlinks:
            report.warnings.append(Problem(message=message, file=str(link)))
        else:
            hint = "replace it by the file itself, or set service.allow_symlinks: true"
            report.errors.append(Problem(message=message, file=str(link), hint=hint))
