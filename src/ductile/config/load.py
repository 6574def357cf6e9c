"""From a path to a checked configuration: the order in which everything happens.

Read the files, check them against the seal, read environment files, interpolate, decode, check the
rules, read the scope files. What can be told together is told together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from ductile.config.find_config import resolve_path
from ductile.config.key_paths import place_of
from ductile.config.read.environment import EnvironmentFiles, load_environment_files
from ductile.config.read.includes import ConfigFiles, load_config_files
from ductile.config.read.interpolate import interpolate
from ductile.config.read.scope_files import ScopeFile, load_scope_files
from ductile.config.redaction import redacted_config
from ductile.config.schema.decode import decode
from ductile.config.seal import (
    AUTHORISE,
    Checksums,
    SealedFile,
    SealViolation,
    Tier,
    access_variables,
    config_tier,
    environment_tier,
    find_file_violations,
    hash_bytes,
    read_checksums,
    relative_name,
    violations_to_problems,
)
from ductile.config.timezones import system_timezone
from ductile.config.validate.access import validate_api_has_token
from ductile.config.validate.pipelines import find_unquoted
from ductile.config.validate.plugins import missing_plugins, report_missing_plugins
from ductile.config.validate.report import ValidationReport
from ductile.config.validate.rules import validate_config
from ductile.errors import ConfigError, IntegrityError, Problem
from ductile.protocol.yaml import MapNode
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from ductile.config.schema.model import Config
    from ductile.core.json import JsonValue
    from ductile.protocol.yaml import SourceLocation


DEFAULT_PLUGIN_ROOT = "./plugins"


class PluginLister(Protocol):
    """What tells the names of the plugins in the roots: discovery lives above this package."""

    def __call__(self, roots: tuple[Path, ...], *, allow_symlinks: bool) -> Collection[str]: ...


class SealCheck(Enum):
    """Whether the seal is checked. Ignoring it is for `config lock` and for looking at a configuration."""

    VERIFY = auto()
    IGNORE = auto()


class Machine(Value):
    """What defaults depend on."""

    processors: int
    timezone: str


@hide_in_repr("tree")
class LoadedConfig(Value):
    """A configuration that was found good, with all that was read to get it."""

    path: Path
    model: Config
    machine: Machine
    files: tuple[SealedFile, ...]
    scope_files: tuple[ScopeFile, ...]
    seal: SealCheck
    checksums: Checksums | None
    warnings: tuple[Problem, ...]
    tree: MapNode

    @property
    def directory(self) -> Path:
        return self.path.parent

    @property
    def plugin_roots(self) -> tuple[Path, ...]:
        """Where plugins are looked for, in this order; absolute."""
        return _plugin_roots(self.model, self.directory)

    @property
    def strict(self) -> bool:
        """Strict mode, as it is set or as it was when the seal was made: an edit cannot lower it."""
        return self.model.service.strict_mode or (self.checksums is not None and self.checksums.strict)

    @property
    def tiers(self) -> Mapping[str, Tier]:
        """How serious an unsealed change to each loaded file is, by the file's name in the seal."""
        return {file.name: file.tier for file in self.files}

    def place(self, *path: str | int) -> SourceLocation | None:
        """Where a key is written, or the nearest thing around it that is."""
        return place_of(self.tree, path)

    def shown(self) -> JsonValue:
        """The merged configuration as it was written, without secrets."""
        return redacted_config(self.tree)


def inspect_machine(environ: Mapping[str, str]) -> Machine:
    # A container may be given fewer processors than the machine has; not every system can tell.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(processors=allowed or 1, timezone=system_timezone(environ))


def load_config(
    path: Path,
    environ: Mapping[str, str],
    *,
    seal: SealCheck = SealCheck.VERIFY,
    machine: Machine | None = None,
    overlay: Mapping[Path, bytes] = MappingProxyType({}),
    look: PluginLister | None = None,
) -> LoadedConfig:
    """Load `config.yaml` at `path`; ConfigError or IntegrityError if it must not be used.

    Files in the overlay are taken from there instead of the disk. `look` tells what plugins there are; it is
    asked only if there is something wrong, to tell a missing plugin from a wrong name.
    """
    sources = load_config_files(path.absolute(), overlay)
    directory = sources.directory
    environment = load_environment_files(sources.root, directory, overlay)
    checksums = read_checksums(directory) if seal is SealCheck.VERIFY else None
    files = _sealed_files(sources, environment)
    faults = find_file_violations(files, checksums) if seal is SealCheck.VERIFY else ()
    _refuse_high(faults, directory)

    variables = {**environment.variables, **environ}
    root, unset = interpolate(sources.root, variables, environment.unread)
    report = ValidationReport(root=root if isinstance(root, MapNode) else sources.root)
    unquoted = find_unquoted(report.root)
    told = (*unset, *unquoted)
    report.errors += (*environment.problems, *told)
    config, misread = decode(report.root)
    report.errors += _without_repeats(misread, told)
    complete = not report.errors  # or the roots may be among the things that could not be read
    found = _lookup(config, directory, look if complete else None)
    report.absent = lambda: missing_plugins(config, found())
    validate_config(config, report, complete=complete)
    report.errors = _without_consequences(report.errors, unquoted)
    scope_files, scope_links = load_scope_files(config, directory, report, overlay)
    validate_api_has_token(config, {file.token: file.scopes for file in scope_files}, report)
    _judge_links((*sources.links, *environment.links, *scope_links), config, report)
    if report.errors:
        report_missing_plugins(config, found(), report)
        raise ConfigError(_summary(report.errors), problems=tuple(report.errors))

    scopes = tuple(_sealed(file.path, file.data, directory, Tier.HIGH) for file in scope_files)
    if seal is SealCheck.VERIFY:
        scope_faults = find_file_violations(scopes, checksums)
        _refuse_high(scope_faults, directory)
        strict = config.service.strict_mode or (checksums is not None and checksums.strict)
        doubts = check_operational_changes(faults, directory, strict=strict)
        report.warnings += doubts if checksums is not None else (_never_sealed(directory),)
    return LoadedConfig(
        path=path.absolute(),
        model=config,
        machine=machine or inspect_machine(environ),
        files=tuple({file.name: file for file in (*files, *scopes)}.values()),
        scope_files=scope_files,
        seal=seal,
        checksums=checksums,
        warnings=tuple(report.warnings),
        tree=report.root,
    )


def _plugin_roots(config: Config, directory: Path) -> tuple[Path, ...]:
    named = config.plugin_roots or (config.plugins_dir or DEFAULT_PLUGIN_ROOT,)
    return tuple(resolve_path(root, directory) for root in named)


def _lookup(config: Config, directory: Path, look: PluginLister | None) -> Callable[[], Collection[str]]:
    """The names of plugins that are there, found out once; nothing is missed if nobody can look."""

    @cache
    def found() -> Collection[str]:
        if look is None:
            return {plugin.uses or name for name, plugin in config.plugins.items()}
        return look(_plugin_roots(config, directory), allow_symlinks=config.service.allow_symlinks)

    return found


def check_operational_changes(
    faults: tuple[SealViolation, ...], directory: Path, *, strict: bool
) -> tuple[Problem, ...]:
    """Warnings about changes of the operational tier; in strict mode they refuse the start."""
    problems = violations_to_problems(
        [fault for fault in faults if fault.tier is Tier.OPERATIONAL], directory
    )
    if problems and strict:
        raise _refusal(problems)
    return problems


def _never_sealed(directory: Path) -> Problem:
    """One warning instead of one for each file."""
    message = "the configuration has never been sealed"
    return Problem(message=message, file=str(directory), hint="run `ductile config lock`")


def _refuse_high(faults: Iterable[SealViolation], directory: Path) -> None:
    problems = tuple(fault.as_problem(directory) for fault in faults if fault.tier is Tier.HIGH)
    if problems:
        raise _refusal(problems)


def _refusal(problems: tuple[Problem, ...]) -> IntegrityError:
    return IntegrityError("the configuration is not what was sealed", hint=AUTHORISE, problems=problems)


def _sealed_files(sources: ConfigFiles, environment: EnvironmentFiles) -> tuple[SealedFile, ...]:
    directory = sources.directory
    configs = (
        _sealed(file.path, file.data, directory, config_tier(file.path.name, file.tree))
        for file in sources.files
    )
    granting = access_variables(sources.root)
    variables = (
        _sealed(file.path, file.data, directory, environment_tier(file.names, granting))
        for file in environment.files
    )
    return (*configs, *variables)


def _sealed(path: Path, data: bytes, directory: Path, tier: Tier) -> SealedFile:
    return SealedFile(name=relative_name(directory, path), hash=hash_bytes(data), tier=tier)


def _without_repeats(misread: Iterable[Problem], told: tuple[Problem, ...]) -> list[Problem]:
    """A value whose variable is not set was told already; that it is no duration either helps nobody."""
    return [problem for problem in misread if problem.key not in _keys(told)]


def _without_consequences(errors: list[Problem], unquoted: tuple[Problem, ...]) -> list[Problem]:
    """Errors at a reference that lacks its quotes, or of what is around it, follow from that."""
    keys = _keys(unquoted)
    spoilt = keys | {re.sub(r"(\.[^.]*|\[\d+\])$", "", key) for key in keys if key is not None}
    return [error for error in errors if error in unquoted or error.key not in spoilt]


def _keys(problems: Iterable[Problem]) -> set[str | None]:
    return {problem.key for problem in problems}


def _judge_links(links: tuple[Path, ...], config: Config, report: ValidationReport) -> None:
    for link in dict.fromkeys(links):
        message = f"{link} is a symbolic link"
        if config.service.allow_symlinks:
            report.warnings.append(Problem(message=message, file=str(link)))
        else:
            hint = "replace it by the file itself, or set service.allow_symlinks: true"
            report.errors.append(Problem(message=message, file=str(link), hint=hint))


def _summary(problems: list[Problem]) -> str:
    count = len(problems)
    return "the configuration has a problem" if count == 1 else f"the configuration has {count} problems"
