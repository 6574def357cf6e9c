"""Plan a change of the configuration: check it in the environment of the daemon, and say what it does.

A plan is made for the files on disk, or for other contents of some of them. Its id is a hash over what is in
force, on disk and sealed now, and the result: a plan with the same id does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ductile.config.history.file_changes import PlannedChange, SealDifference, compare_with_seal, plan_change
from ductile.config.history.file_copies import FileDifference
from ductile.config.seal import encode_checksums
from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonValue
from ductile.engine.reload.effects import NameChanges
from ductile.engine.reload.reloader import ReloadResult
from ductile.errors import ConflictError, file_error
from ductile.operations.context import OperationContext
from ductile.operations.request import refused
from ductile.operations.response import Response
from ductile.operations.system.lifecycle import ConfigProblem, ReloadEffects, reloaded_response
from ductile.operations.tokens.manage import refuse_uncovered_scopes
from ductile.struct import Value, about

#: The most changed keys that are listed for one file.
MAX_KEYS = 100
PLAN_DESCRIPTION = "Do exactly this plan, which a dry run has shown, or nothing."


class ChangedFile(Value):
    name: Annotated[str, about("A file, or `plugin NAME` for the files of a plugin.")]
    change: Annotated[str, about("`added`, `removed` or `changed`.")]
    differences: Annotated[tuple[str, ...], about("One line for each key, without secrets.")]
    text: Annotated[
        str | UnsetType,
        Meta(description="The changed lines, without secrets.", extra_json_schema={"x-offline-only": True}),
    ] = UNSET


class PlannedConfig(Value):
    """A change that was checked and not written."""

    change: PlannedChange
    snapshot: Snapshot
    result: ReloadResult
    #: The id of the plan.
    id: str

    def compare(self) -> SealDifference:
        return compare_with_seal(self.change)


def _decode_files(name: str, value: JsonValue) -> dict[str, str | None]:
    if not isinstance(value, dict) or not all(isinstance(text, str | None) for text in value.values()):
        raise refused(name, f"{name} has to be an object of texts")
    return {file: None if text is None else str(text) for file, text in value.items()}


class PlanConfig(Value):
    files: Annotated[
        dict[str, str | None],
        Meta(
            description="Other contents of files; null removes one.",
            extra={"decode": _decode_files},
            extra_json_schema={"type": "object"},
        ),
    ] = {}  # noqa: RUF012 - a struct copies the default


class ConfigPlan(Response):
    """For the command line of the same machine, which writes the files itself."""

    plan: Annotated[str, about("Its id.")]
    checksums: Annotated[str, about("The seal of the result.")]
    active: Annotated[str, about("The fingerprint of the configuration in force.")]
    in_force: Annotated[dict[str, str], about("The hashes of the files in force.")]
    reload: ReloadEffects


async def plan(context: OperationContext, request: PlanConfig) -> ConfigPlan:
    """Check the files on disk, or these contents, and say what sealing and loading them would change."""
    contents = {name: None if text is None else text.encode() for name, text in request.files.items()}
    planned = await make_plan(context, contents)
    active = context.snapshot()
    return ConfigPlan(
        plan=planned.id,
        checksums=encode_checksums(planned.change.checksums).decode(),
        active=active.fingerprint,
        in_force={name: file.hash for name, file in active.checksums.files.items()},
        reload=reloaded_response(planned.result, dry_run=True),
    )


async def make_plan(context: OperationContext, contents: Mapping[str, bytes | None]) -> PlannedConfig:
    """Plan to write these contents, then to seal and load what is on disk. Raises as a reload would."""
    reloader = context.require_engine().reloader
    directory = config_file(context).parent
    active = context.snapshot().fingerprint
    overlay = {directory / name: data for name, data in contents.items()}
    new, result = await reloader.preview_unsealed(overlay)
    try:
        change = await asyncio.to_thread(plan_change, directory, new.checksums, contents)
    except OSError as error:
        raise file_error(f"cannot read {error.filename or directory}", error) from error
    plan_id = change.plan_id(active=active, config=new.fingerprint)
    return PlannedConfig(change=change, snapshot=new, result=result, id=plan_id)


def config_file(context: OperationContext) -> Path:
    """Return the absolute path of `config.yaml`. Raises if no daemon runs."""
    context.require_engine()
    assert context.config_file is not None  # noqa: S101 - set wherever an engine runs
    return context.config_file.absolute()


def refuse_uncovered_tokens(context: OperationContext, planned: PlannedConfig) -> None:
    """Raise DeniedError if the change would give a token more rights than the caller has."""
    tokens = planned.result.effects.tokens
    changed = {*tokens.added, *tokens.changed}
    scopes = (scope for token in planned.snapshot.tokens if token.name in changed for scope in token.scopes)
    refuse_uncovered_scopes(context, scopes)


def new_warnings(active: Snapshot, warnings: tuple[ConfigProblem, ...]) -> tuple[ConfigProblem, ...]:
    """Return the warnings that the configuration in force does not have."""
    known = {(warning.key, warning.message) for warning in active.warnings}
    return tuple(warning for warning in warnings if (warning.key, warning.message) not in known)


def refuse_other_plan(plan_id: str, requested: str | None) -> None:
    """Raise ConflictError if a plan is not the one that was shown."""
    if requested is not None and requested != plan_id:
        raise ConflictError(
            f"the plan {requested} cannot be applied: the files, the seal or the configuration in force have "
            "changed since it was made",
            hint="Plan it again and look at it: `ductile apply --dry-run`.",
            details={"plan": plan_id},
        )


def refuse_restored_tokens(tokens: NameChanges) -> None:
    """Raise ConflictError if a rollback brings back a token or secret that was revoked or changed since.

    The old secret may have become known, and the rollback may be about something else.
    """
    restored = (*tokens.added, *tokens.changed)
    if restored:
        raise ConflictError(
            f"the rollback would bring back tokens that were revoked or changed since: {', '.join(restored)}",
            hint="Undo the other changes by hand and run `ductile apply`, or use --restore-tokens.",
            details={"tokens": list(restored)},
        )


def changed_files(difference: SealDifference) -> tuple[ChangedFile, ...]:
    """Return the files and plugins that differ from the seal."""
    files = [changed_file(file) for file in difference.files]
    plugins = [
        ChangedFile(name=f"plugin {name}", change=change, differences=())
        for name, change in difference.plugins.items()
    ]
    return (*files, *plugins)


def changed_file(file: FileDifference) -> ChangedFile:
    return ChangedFile(name=file.name, change=file.change, differences=tuple(file.describe(limit=MAX_KEYS)))
