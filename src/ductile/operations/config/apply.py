"""Put the configuration on disk, or an earlier one, in force: check, seal, reload. By the daemon, over HTTP.

The command line writes the files itself and uses `config.plan` and `system.reload`, because a daemon under
systemd may not write its configuration.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

from msgspec import UNSET

from ductile.config.history.file_changes import write_change
from ductile.config.history.restore import find_restorable, plan_restore
from ductile.core.auth_scopes import EVERYTHING
from ductile.errors import DeniedError, DuctileError, file_error
from ductile.operations.config.plan import (
    PLAN_DESCRIPTION,
    ChangedFile,
    PlannedConfig,
    changed_files,
    config_file,
    make_plan,
    new_warnings,
    refuse_other_plan,
    refuse_restored_tokens,
    refuse_uncovered_tokens,
)
from ductile.operations.config.plan_drafts import PlanDraft
from ductile.operations.context import OperationContext
from ductile.operations.request import DryRun, refused
from ductile.operations.response import Response, WasDryRun, from_record
from ductile.operations.system.lifecycle import DEFAULT_DRAIN_TIMEOUT, ReloadEffects, reloaded_response
from ductile.store.model.maintenance import LoadCause
from ductile.struct import Value, about, replace


class ApplyConfig(Value):
    plan: Annotated[str | None, about(PLAN_DESCRIPTION)] = None
    drain: Annotated[
        bool, about("Let plugins that are removed or disabled finish their accepted work first.")
    ] = False
    drain_timeout: Annotated[
        timedelta | None, about("How long a drain may take, such as 10m (default 1h).")
    ] = None
    dry_run: DryRun = False


class RollbackConfig(ApplyConfig):
    to: Annotated[
        str | None, about("The id of a sealed configuration (default: the one before the present seal).")
    ] = None
    keep_env: Annotated[bool, about("Use environment files as they are now, if they have changed since.")] = (
        False
    )
    restore_tokens: Annotated[
        bool, about("Bring back tokens and shared secrets that were revoked or changed since.")
    ] = False


class ConfigApplied(Response):
    plan: Annotated[str, about("The id of the plan. A request with it does exactly this, or is refused.")]
    files: Annotated[tuple[ChangedFile, ...], about("What differs from the present seal.")]
    sealed: Annotated[bool, about("Whether the seal was written; it is not if nothing differs.")]
    reload: Annotated[
        ReloadEffects, about("What the reload changed, or would change; warnings only if they are new.")
    ]
    dry_run: WasDryRun = UNSET


class ConfigRolledBack(ConfigApplied, kw_only=True):
    to: Annotated[str, about("The id of the configuration that is restored.")]
    kept: Annotated[
        str | None, about("The id of the replaced files, if they had changes that were never sealed.")
    ]


async def apply(context: OperationContext, request: ApplyConfig) -> ConfigApplied:
    """Seal the files on disk and load them, if the daemon can use them; or say what that would change."""
    draft = None if context.plan_drafts is None else context.plan_drafts.find(request.plan)
    if draft is None:
        draft = PlanDraft(command="apply", contents={})
    elif draft.edits_keys:
        context.require_scope(EVERYTHING)
    response, _replaced = await _carry_out(context, request, draft)
    return response


async def rollback(context: OperationContext, request: RollbackConfig) -> ConfigRolledBack:
    """Restore the files of an earlier sealed configuration, seal and load them."""
    context.refuse_with_limits("change the configuration")
    file = config_file(context)

    def find() -> tuple[str, dict[str, bytes | None]]:
        record = find_restorable(file.parent, request.to)
        return record.id, plan_restore(file, record, keep_env=request.keep_env)

    to, contents = await asyncio.to_thread(find)
    draft = PlanDraft(command="rollback", contents=contents, restores_tokens=request.restore_tokens)
    response, replaced = await _carry_out(context, request, draft)
    return from_record(ConfigRolledBack, response, to=to, kept=replaced)


async def _carry_out(
    context: OperationContext, request: ApplyConfig, draft: PlanDraft
) -> tuple[ConfigApplied, str | None]:
    """Write, seal and load what the draft says, or only plan it for a dry run.

    Returns the response, and the id of replaced files that were never sealed.
    """
    if request.drain_timeout is not None and not request.drain:
        raise refused("drain_timeout", "drain_timeout needs drain: without it nothing is waited for")
    planned = await make_plan(context, draft.contents)
    refuse_other_plan(planned.id, request.plan)
    refuse_uncovered_tokens(context, planned)
    if draft.command == "rollback" and not draft.restores_tokens:
        refuse_restored_tokens(planned.result.effects.tokens)
    difference = await asyncio.to_thread(planned.compare)
    in_force = context.snapshot()
    reloaded: ReloadEffects = reloaded_response(planned.result, dry_run=request.dry_run)
    sealed = (difference.must_seal or bool(draft.contents)) and not request.dry_run
    replaced = await _write(context, planned, draft.command) if sealed else None
    if not request.dry_run:
        reloaded = await _reload(context, request, planned, draft.command, sealed=sealed)
    response = ConfigApplied(
        plan=planned.id,
        files=changed_files(difference),
        sealed=sealed,
        reload=replace(reloaded, warnings=new_warnings(in_force, reloaded.warnings)),
        dry_run=request.dry_run or UNSET,
    )
    return response, replaced


async def _write(context: OperationContext, planned: PlannedConfig, command: str) -> str | None:
    """Write and seal the files. Raises `DeniedError`, with advice, if the daemon may not write them."""
    try:
        return await asyncio.to_thread(
            write_change, planned.change, command=command, author=context.source.author
        )
    except OSError as error:
        fault = file_error(f"cannot write {error.filename or planned.change.directory}", error)
        if isinstance(fault, DeniedError):
            name = "apply" if command == "apply" else "config rollback"
            fault.hint = (
                f"The daemon may not write its configuration, as under systemd. Run `ductile {name}` on its "
                "machine, as a user who may."
            )
        raise fault from error


async def _reload(
    context: OperationContext, request: ApplyConfig, planned: PlannedConfig, command: str, *, sealed: bool
) -> ReloadEffects:
    """Load the files that were checked. An error says whether the seal was renewed before it."""
    cause = LoadCause(command=command, author=context.source.author, plan=planned.id)
    drain = (request.drain_timeout or DEFAULT_DRAIN_TIMEOUT) if request.drain else None
    reloader = context.require_engine().reloader
    try:
        result = await reloader.reload(drain, expected=planned.snapshot.fingerprint, cause=cause)
    except DuctileError as error:
        seal = "The seal was renewed" if sealed else "The seal was not changed"
        hint = f"{seal}; the daemon keeps the configuration it had. Then apply it again."
        error.hint = hint if error.hint is None else f"{error.hint} {hint}"
        raise
    return reloaded_response(result, dry_run=False)
