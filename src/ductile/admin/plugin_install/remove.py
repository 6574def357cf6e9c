"""`ductile plugin remove`: removes a plugin from the configuration and, if it was added, its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.admin.config import SettingChange, change_setting, open_configuration
from ductile.admin.plugin_install.files import finish_interrupted, remove_plugin
from ductile.admin.plugin_install.sealing import lock_configuration, seal_fingerprint
from ductile.admin.plugin_install.update import AddedPlugin, find_added
from ductile.config.edit.change import parse_key
from ductile.config.load import SealMode
from ductile.config.seal import read_checksums
from ductile.errors import ConfigError, RefusedError
from ductile.plugins.catalogue import find_entry
from ductile.protocol.yaml_tree import problem_at
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ductile.admin.config import OpenedConfiguration


class RemovalPlan(Value):
    name: str
    #: The change of the configuration; None if it does not name the plugin.
    change: SettingChange | None
    schedules: tuple[str, ...]
    #: The added plugin whose files go; None if they stay, for `reason_files_stay`.
    added: AddedPlugin | None
    reason_files_stay: str | None
    config_directory: Path
    #: Whether the configuration has a seal.
    has_seal: bool


def plan_plugin_removal(
    config_path: str | None, environ: Mapping[str, str], name: str, *, discard_changes: bool
) -> RemovalPlan:
    """Return what would be removed. Raises `ConfigError` with every place that still names the plugin."""
    opened = open_configuration(config_path, environ, seal=SealMode.IGNORE)
    entry = find_entry(opened.snapshot, name, opened.discovery)
    directory = opened.loaded.directory
    has_seal, change = read_checksums(directory) is not None, None
    if name in opened.snapshot.plugins:
        try:
            change = change_setting(
                config_path, environ, f"plugins.{name}", None, dry_run=True, lock=has_seal
            )
        except ConfigError as error:
            if not error.problems or type(error) is not ConfigError:
                raise
            # The configuration was valid with the plugin, so all problems without it are places that name it.
            # Their lines are those of the text without the plugin, so the lines are looked up again.
            paths = [parse_key(problem.key) if problem.key else () for problem in error.problems]
            places = [problem_at(opened.loaded.location(*path), path, f"this names {name}") for path in paths]
            raise ConfigError(
                f"{name} is still in use, so nothing was removed",
                hint="remove what names it first",
                problems=tuple(places),
            ) from error
    added, reason_files_stay = _removable_files(opened, name, entry.uses)
    if added is not None:
        added.refuse_changes(discard=discard_changes)
    if change is None and added is None:
        raise RefusedError(
            f"{name} is not configured, and {reason_files_stay}", hint="see `ductile plugin list`"
        )
    instance = opened.snapshot.plugins.get(name)
    return RemovalPlan(
        name=name,
        change=change,
        schedules=tuple(schedule.id for schedule in instance.schedules) if instance else (),
        added=added,
        reason_files_stay=reason_files_stay,
        config_directory=directory,
        has_seal=has_seal,
    )


def _removable_files(
    opened: OpenedConfiguration, name: str, plugin: str
) -> tuple[AddedPlugin | None, str | None]:
    """Return the added plugin whose files are removed, or the reason why they stay.

    They stay while another name of the configuration uses them.
    """
    others = [
        instance.name
        for instance in opened.snapshot.plugins.values()
        if instance.uses == plugin and instance.name != name
    ]
    if others:
        return None, f"its files stay: {', '.join(others)} uses them"
    try:
        return find_added(opened, name), None
    except RefusedError as error:
        return None, f"no files are removed: {error.message}"


def remove_from_config(plan: RemovalPlan, config_path: str | None, environ: Mapping[str, str]) -> RemovalPlan:
    """Remove the entry of the plugin. The files are removed later, when the daemon no longer uses them."""
    if plan.change is None:
        return plan
    written = change_setting(config_path, environ, plan.change.key, None, lock=plan.has_seal)
    return replace(plan, change=written)


def remove_files(plan: RemovalPlan) -> None:
    """Remove the files and their seal. State and facts are in the store, and stay there."""
    if plan.added is not None:
        directory = plan.added.plugin_directory
        with lock_configuration(plan.config_directory):
            finish_interrupted(directory.parent, directory.name)
            remove_plugin(directory.parent, directory.name)
            seal_fingerprint(plan.config_directory, plan.added.name, None)
