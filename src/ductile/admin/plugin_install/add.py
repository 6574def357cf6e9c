"""`ductile plugin add`: puts a plugin into the first plugin root of the operator, and into the configuration.

The steps: write the files, seal them, write the configuration with its seal. A process that is killed between
two of them leaves a configuration that loads, and the same command does the rest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.config import SettingChange, change_setting, open_configuration
from ductile.admin.plugin_install.candidate import Candidate, PluginRights, file_hashes, rights_of
from ductile.admin.plugin_install.files import finish_interrupted, put_in_place, stage_plugin
from ductile.admin.plugin_install.sealing import lock_configuration, seal_fingerprint
from ductile.admin.plugin_install.tree import read_directory
from ductile.config.load import SealMode
from ductile.config.names import name_error
from ductile.config.seal import read_checksums
from ductile.errors import ConflictError, RefusedError, UsageError
from ductile.plugins.shipped import shipped_names, shipped_root
from ductile.plugins.source_record import RECORD_FILE, hash_files, read_record
from ductile.struct import Value, hide_in_repr, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.admin.config import OpenedConfiguration
    from ductile.core.json import JsonObject


@hide_in_repr("value")
class AddPlan(Value):
    """The effects of adding a plugin. `name` is its name in the configuration."""

    name: str
    candidate: Candidate
    config_directory: Path
    rights: PluginRights
    #: The directory for its files; None for a shipped plugin.
    plugin_directory: Path | None
    #: Whether these files are there already.
    is_present: bool
    replaces_shipped: bool
    #: The change of the configuration; None if it names the plugin already. `value` is written then.
    change: SettingChange | None
    value: str
    #: Required keys of its configuration that are still to be set.
    missing_config: tuple[str, ...]
    #: Whether the configuration has a seal.
    has_seal: bool


def plan_addition(
    config_path: str | None,
    environ: Mapping[str, str],
    candidate: Candidate,
    *,
    alias: str | None,
    settings: JsonObject | None,
) -> AddPlan:
    """Return the effects of adding a plugin. Raises `DuctileError` if it cannot be added."""
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    directory, name = opened.loaded.directory, alias or candidate.name
    if (fault := name_error(name)) is not None:
        raise UsageError(f'"{name}" {fault}', hint="choose another name with --as NAME")
    plugin_directory = None if candidate.tree is None else _plugin_directory(opened, candidate)
    has_seal = read_checksums(directory) is not None
    configured = opened.loaded.model.plugins.get(name)
    change, config = None, settings or {}
    # Required keys are not made up: without them the plugin does not run.
    entry: JsonObject = {} if name == candidate.name else {"uses": candidate.name}
    value = json.dumps(entry | ({"config": config} if config else {}))
    if configured is None:
        change = change_setting(config_path, environ, f"plugins.{name}", value, dry_run=True, lock=has_seal)
    elif (configured.uses or name) != candidate.name or configured.run is not None:
        raise ConflictError(
            f"the configuration has another plugin under the name {name}", hint="choose one with --as NAME"
        )
    elif settings is not None:
        raise ConflictError(
            f"{name} is configured already",
            hint=f"change it with `ductile config set plugins.{name}.config.KEY VALUE --apply`",
        )
    else:
        config = dict.fromkeys(configured.config.names())
    return AddPlan(
        name=name,
        candidate=candidate,
        config_directory=directory,
        rights=rights_of(opened.snapshot),
        plugin_directory=plugin_directory,
        is_present=plugin_directory is not None and plugin_directory.is_dir(),
        replaces_shipped=plugin_directory is not None and candidate.name in shipped_names(),
        change=change,
        value=value,
        missing_config=tuple(key for key in candidate.manifest.required_config if key not in config),
        has_seal=has_seal,
    )


def _plugin_directory(opened: OpenedConfiguration, candidate: Candidate) -> Path:
    """Return the directory for the plugin.

    Raises `ConflictError` if there is another plugin of this name, or the directory holds other files.
    """
    directory = operator_root(opened) / candidate.name
    plugin = opened.discovery.installed.get(candidate.name) or opened.discovery.refused.get(candidate.name)
    if plugin is not None and not plugin.shipped and plugin.directory != directory:
        raise ConflictError(
            f"there is a plugin {candidate.name} in {plugin.directory}",
            hint="remove it first, or use that one",
        )
    if os.path.lexists(directory) and not holds_candidate(directory, candidate):
        hint = f"replace it with `ductile plugin update {candidate.name} SOURCE`"
        if read_record(directory) is None:
            hint = "it was not added by this command: move it away first"
        raise ConflictError(f"{directory} holds other files than {candidate.source}", hint=hint)
    return directory


def operator_root(opened: OpenedConfiguration) -> Path:
    """Return the first plugin root of the operator, which is not the shipped one. Raises `RefusedError`."""
    for root in opened.loaded.plugin_roots:
        if root != shipped_root():
            return Path(os.path.normpath(root))
    raise RefusedError(
        "plugin_roots names no directory of your own",
        hint="add one: `ductile config set plugin_roots[+] ./plugins --lock`",
    )


def holds_candidate(directory: Path, candidate: Candidate) -> bool:
    """Return whether a directory holds exactly the files of a candidate."""
    if candidate.record is None or not directory.is_dir() or directory.is_symlink():
        return False
    present = read_directory(directory, ignore=frozenset((RECORD_FILE,)))
    return not present.special_files and hash_files(file_hashes(present)) == candidate.record.hash


def add_plugin(plan: AddPlan, config_path: str | None, environ: Mapping[str, str]) -> AddPlan:
    """Carry out the plan. Returns it with the change that was written."""
    candidate = plan.candidate
    if plan.plugin_directory is not None and candidate.tree is not None and candidate.record is not None:
        root, name = plan.plugin_directory.parent, plan.plugin_directory.name
        with lock_configuration(plan.config_directory):
            finish_interrupted(root, name)
            if not plan.is_present:
                stage_plugin(root, name, candidate.tree, candidate.record)
                put_in_place(root, name)
            seal_fingerprint(plan.config_directory, candidate.name, candidate.fingerprint)
    if plan.change is None:
        return plan
    written = change_setting(config_path, environ, plan.change.key, plan.value, lock=plan.has_seal)
    return replace(plan, change=written)
