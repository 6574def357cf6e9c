"""Plan a change of the configuration without writing anything: keys, scopes of tokens, an earlier one.

The plan is kept in memory. `config.apply` with its id writes, seals and loads exactly this, or refuses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from ductile.config.edit.edits import ConfigEdits, edit_files
from ductile.config.history.restore import find_restorable, find_seal, plan_restore, read_seals, sealed_id
from ductile.config.seal import relative_name
from ductile.core.auth_scopes import EVERYTHING
from ductile.core.json import JsonValue
from ductile.errors import DeniedError, UsageError
from ductile.operations.config.plan import (
    ChangedFile,
    changed_files,
    config_file,
    make_plan,
    new_warnings,
    refuse_restored_tokens,
    refuse_uncovered_tokens,
)
from ductile.operations.config.plan_drafts import PlanDraft
from ductile.operations.context import OperationContext
from ductile.operations.request import decode_texts, refused
from ductile.operations.response import Response
from ductile.operations.system.lifecycle import ReloadEffects, reloaded_response
from ductile.operations.tokens.manage import refuse_uncovered_scopes
from ductile.struct import Value, about, replace

#: Keys that a token may not change: they decide which programs run, with which environment, and which files
#: are read. `*` is any name or index. Tokens have operations of their own.
_PROTECTED_KEYS = (
    ("include",),
    ("environment_vars",),
    ("state",),
    ("plugin_roots",),
    ("plugins_dir",),
    ("artifacts",),
    ("tokens",),
    ("api", "auth"),
    ("state_webhooks", "allow"),
    *(("plugins", "*", key) for key in ("run", "cwd", "env", "config", "preload", "uses")),
    *(("service", key) for key in ("allow_symlinks", "strict_mode", "plugin_env_passthrough")),
)


_decode_keys = partial(decode_texts, "keys, such as plugins.echo.timeout")


def _decode_scopes(name: str, value: JsonValue) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise refused(name, f'{name} has to be an object such as {{"agent": ["jobs:ro"]}}')
    return {token: _decode_keys(name, scopes) for token, scopes in value.items()}


_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


class PlanConfigChange(Value):
    """Without fields, the plan is to put the files on disk in force as they are."""

    set: Annotated[
        dict[str, Any] | None,
        about(
            'Values by key: {"plugins.echo.timeout": "5s"}. `routes[0].to` is an entry of a list; '
            "`routes[+]` adds one."
        ),
    ] = None
    unset: Annotated[
        tuple[str, ...],
        Meta(
            description="Keys and entries of lists to remove, by the indexes that they have now.",
            extra={"decode": _decode_keys},
            extra_json_schema=_TEXTS,
        ),
    ] = ()
    token_scopes: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description='All scopes that a token has then: {"agent": ["jobs:ro"]}.',
            extra={"decode": _decode_scopes},
            extra_json_schema={"type": "object", "additionalProperties": _TEXTS},
        ),
    ] = {}  # noqa: RUF012 - a struct copies the default
    rollback_to: Annotated[
        str | None,
        about(
            "Restore the files of an id of the history, `previous` for those before the present seal, or "
            "`sealed` to undo changes that were not sealed."
        ),
    ] = None
    keep_env: Annotated[
        bool, about("For a rollback: use environment files as they are now, if they have changed.")
    ] = False
    restore_tokens: Annotated[
        bool, about("For a rollback: bring back tokens and secrets that were revoked or changed since.")
    ] = False


class PlannedConfigChange(Response):
    plan: Annotated[str, about("Its id. `config.apply` with it does exactly this, or is refused.")]
    writes: Annotated[tuple[str, ...], about("Files that would be written or removed.")]
    files: Annotated[tuple[ChangedFile, ...], about("What would differ from the present seal.")]
    also: Annotated[
        tuple[str, ...],
        about("Files and plugins with unsealed changes on disk, which would be sealed as well."),
    ]
    reload: Annotated[ReloadEffects, about("What would start, stop, end or change.")]
    to: Annotated[str | None, about("The id of the configuration that would be restored.")]


async def plan_change(context: OperationContext, request: PlanConfigChange) -> PlannedConfigChange:
    """Check a change with the whole configuration, keep it as a plan, and say what it would do."""
    edits = ConfigEdits(set=request.set or {}, unset=request.unset, token_scopes=request.token_scopes)
    if request.rollback_to is not None or not edits.is_empty:
        # The jobs of a new schedule, route or pipeline would not count against the limits of the token.
        context.refuse_with_limits("change the configuration")
    _refuse_for_token(context, edits)
    draft = await _make_draft(context, request, edits)
    planned = await make_plan(context, draft.contents)
    refuse_uncovered_tokens(context, planned)
    if draft.command == "rollback" and not draft.restores_tokens:
        refuse_restored_tokens(planned.result.effects.tokens)
    difference = await asyncio.to_thread(planned.compare)
    if context.plan_drafts is not None:
        context.plan_drafts.add(planned.id, draft)
    effects = reloaded_response(planned.result, dry_run=True)
    return PlannedConfigChange(
        plan=planned.id,
        writes=tuple(sorted(draft.contents)),
        files=changed_files(difference),
        also=difference.other_unsealed_names(planned.change) if draft.contents else (),
        reload=replace(effects, warnings=new_warnings(context.snapshot(), effects.warnings)),
        to=draft.to,
    )


async def _make_draft(context: OperationContext, request: PlanConfigChange, edits: ConfigEdits) -> PlanDraft:
    """Return the contents of the files with the changes, or those of an earlier configuration."""
    file = config_file(context)
    if request.rollback_to is None:
        contents: Mapping[str, bytes | None] = {}
        if not edits.is_empty:
            edited = await asyncio.to_thread(edit_files, file, edits)
            contents = {relative_name(file.parent, path): data for path, data in edited.items()}
        return PlanDraft(command="apply", contents=contents, edits_keys=bool(edits.set or edits.unset))
    if not edits.is_empty:
        raise UsageError("a rollback and other changes cannot be one plan", hint="Plan one after the other.")

    def find() -> tuple[str, dict[str, bytes | None]]:
        if request.rollback_to == "sealed":
            record = find_seal(read_seals(file.parent), sealed_id(file.parent), present=None)
        else:
            record = find_restorable(
                file.parent, None if request.rollback_to == "previous" else request.rollback_to
            )
        return record.id, plan_restore(file, record, keep_env=request.keep_env)

    to, restored = await asyncio.to_thread(find)
    return PlanDraft(command="rollback", contents=restored, to=to, restores_tokens=request.restore_tokens)


def _refuse_for_token(context: OperationContext, edits: ConfigEdits) -> None:
    """Raise DeniedError if a caller with a token changes keys that only a local user may change."""
    named = [token for token in context.snapshot().tokens if token.name in edits.token_scopes]
    refuse_uncovered_scopes(context, (scope for token in named for scope in token.scopes))
    if context.source.scopes is None or not (edits.set or edits.unset):
        return
    context.require_scope(EVERYTHING)
    for key in (*edits.set, *edits.unset):
        value = edits.set.get(key)
        paths = _paths(_parts(key), value)
        if any(map(_is_protected, paths)) or _has_reference(value):
            raise DeniedError(
                f"a token may not change {key} in this way: it decides which programs run here, with which "
                "rights, files and secrets",
                hint="Change it on the machine of the daemon, then `ductile apply`.",
                details={"key": key},
            )


def _parts(key: str) -> list[str]:
    """Return the parts of a key as texts: `plugins`, `echo`, `schedules`, `0`."""
    return [part for part in re.split(r"[.\[\]]+", key) if part]


def _paths(path: list[str], value: JsonValue) -> Iterator[list[str]]:
    """Yield the path of a value and of everything inside it."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths([*path, *_parts(name)], inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths([*path, "*"], inner)


def _is_protected(path: list[str]) -> bool:
    """Return whether the path is one that a token may not change, or inside one."""
    return any(
        len(path) >= len(key) and all(name in ("*", part) for name, part in zip(key, path, strict=False))
        for key in _PROTECTED_KEYS
    )


def _has_reference(value: JsonValue) -> bool:
    """Return whether a text in the value refers to a variable, and would disclose its secret."""
    if isinstance(value, dict):
        return any(map(_has_reference, value.values()))
    if isinstance(value, list):
        return any(map(_has_reference, value))
    return isinstance(value, str) and "${" in value
