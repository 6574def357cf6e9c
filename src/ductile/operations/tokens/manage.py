"""Tokens of the HTTP API and shared secrets: list, create, rotate and revoke them while the daemon runs.

The files are changed first and the daemon switches then: after a crash in between, the files count.
Only the token changes: other changes of the configuration on disk wait for a reload.
A caller with a token manages only tokens with no more rights than its own, so that it cannot gain rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, UnsetType

from ductile.config.edit import tokens as token_files
from ductile.config.edit.token_entries import TokenEntry, find_token_entry
from ductile.config.edit.token_entries import list_tokens as read_token_entries
from ductile.core.auth_scopes import covers, expand_scopes
from ductile.core.token_limits import LimitName, TokenLimits, list_limits
from ductile.engine.reload.reloader import Reloader
from ductile.errors import ConfigError, DeniedError, DuctileError
from ductile.operations.context import OperationContext
from ductile.operations.request import DryRun, NoFields, decode_texts
from ductile.operations.response import Response, Timestamp, WasDryRun, from_record, timestamp
from ductile.operations.system.lifecycle import ConfigProblem
from ductile.struct import Value, about, replace

WrittenToken = TypeVar("WrittenToken")
#: How long the old secret stays valid after a rotation.
DEFAULT_KEEP_OLD = timedelta(hours=24)


class TokenLimit(Value):
    """One limit of a token, and how much of it is used."""

    limit: LimitName
    target: Annotated[str | None, about("The plugin or `pipeline:NAME` that it is for; null for all jobs.")]
    maximum: float
    used: float
    resets_at: Annotated[
        Timestamp | None, about("When the count starts again at 0; null for jobs that have to end first.")
    ]


class ListedToken(Value):
    name: str | None
    kind: Annotated[str, about("`token`, or `secret`: it has no scopes, and signs requests.")]
    scopes: tuple[str, ...]
    variable: Annotated[str | None, about("The environment variable of its value.")]
    file: str
    line: int
    previous_expires_at: Annotated[
        Timestamp | None, about("Until when the secret before the last rotation is accepted as well.")
    ]
    previous_valid: Annotated[bool, about("Whether that secret is still accepted.")]
    in_force: Annotated[
        bool | UnsetType, about("Whether the daemon has it. Absent if no daemon was asked.")
    ] = UNSET
    limits: Annotated[list[TokenLimit] | UnsetType, about("Its limits. Absent if no daemon was asked.")] = (
        UNSET
    )
    spent_today: Annotated[
        float | UnsetType, about("The cost of what it started, today (UTC). Absent if no daemon was asked.")
    ] = UNSET


class TokenList(Response):
    tokens: list[ListedToken]


class ShowToken(Value):
    name: Annotated[str, about("Name of the token.")]


class TokenDetail(ListedToken, Response):
    pass


class CreateToken(Value):
    name: Annotated[str, about("Its name in logs and in `secret_ref`.")]
    scopes: Annotated[
        tuple[str, ...],
        Meta(
            description="Its permissions, such as jobs:ro; without scopes it is a secret for signatures.",
            extra={"decode": partial(decode_texts, "texts, such as jobs:ro")},
            extra_json_schema={"type": "array", "items": {"type": "string"}},
        ),
    ] = ()
    value: Annotated[str | None, about("The value; one is generated if it is absent.")] = None
    dry_run: DryRun = False


class TokenCreated(Response):
    name: str
    kind: str
    scopes: tuple[str, ...]
    token: Annotated[str | None, about("The value, this once; null if it was given, or for a dry run.")]
    variable: str
    files: tuple[str, ...]
    written: bool
    warnings: tuple[ConfigProblem, ...]
    dry_run: WasDryRun = UNSET


class RotateToken(ShowToken):
    keep_old: Annotated[
        timedelta, about("How long the old secret stays valid, such as 24h (the default); 0s for not at all.")
    ] = DEFAULT_KEEP_OLD
    value: Annotated[str | None, about("The new value; one is generated if it is absent.")] = None
    dry_run: DryRun = False


class TokenRotated(Response):
    name: str
    scopes: tuple[str, ...]
    token: Annotated[str | None, about("The new value, this once; null if it was given, or for a dry run.")]
    variable: str
    files: tuple[str, ...]
    written: bool
    previous_expires_at: Annotated[
        Timestamp | None, about("Until when the old secret is accepted; null if it is refused from now on.")
    ]
    dropped_expires_at: Annotated[
        Timestamp | None,
        about("Until when a still older secret would have been accepted, which is refused from now on."),
    ]
    dry_run: WasDryRun = UNSET


class RevokeToken(ShowToken):
    dry_run: DryRun = False


class TokenRevoked(Response):
    name: str
    files: tuple[str, ...]
    written: bool
    dry_run: WasDryRun = UNSET


class RefreshToken(ShowToken):
    revoked: Annotated[bool, about("It was revoked: refuse it whatever the disk says.")] = False
    dry_run: DryRun = False


class TokenRefreshed(Response):
    name: str


async def list_tokens(context: OperationContext, _request: NoFields) -> TokenList:
    """Return the tokens and secrets in the configuration's files, and whether the daemon has them."""
    return TokenList(tokens=[await _list_with_usage(context, row) for row in await _read_token_rows(context)])


async def show_token(context: OperationContext, request: ShowToken) -> TokenDetail:
    """Return one token or secret. Raises `NotFoundError`."""
    row = find_token_entry(await _read_token_rows(context), request.name)
    return from_record(TokenDetail, await _list_with_usage(context, row))


async def create_token(context: OperationContext, request: CreateToken) -> TokenCreated:
    """Write a token to the files and put it in force.

    Raises before anything is written if the configuration on disk could not be loaded.
    """
    refuse_uncovered_scopes(context, request.scopes)
    reloader = await _require_loadable(context)
    change = partial(token_files.create_token, name=request.name, scopes=request.scopes, value=request.value)
    created = await _change_files(context, change, dry_run=request.dry_run)
    if created.written:
        await _put_in_force(reloader, request.name)
    return created_response(created, shows_value=request.value is None, dry_run=request.dry_run)


async def rotate_token(context: OperationContext, request: RotateToken) -> TokenRotated:
    """Give a token a new secret and put it in force. Raises as `create_token` does."""
    row = find_token_entry(await _read_token_rows(context), request.name)
    refuse_uncovered_scopes(context, row.scopes, name=request.name)
    reloader = await _require_loadable(context)
    change = partial(
        token_files.rotate_token,
        name=request.name,
        keep_old=request.keep_old,
        now=context.now(),
        value=request.value,
    )
    rotated = await _change_files(context, change, dry_run=request.dry_run)
    if rotated.written:
        await _put_in_force(reloader, request.name)
    return rotated_response(rotated, shows_value=request.value is None, dry_run=request.dry_run)


async def revoke_token(context: OperationContext, request: RevokeToken) -> TokenRevoked:
    """Remove a token from the files; it is refused from the moment the response is sent."""
    reloader = context.require_engine().reloader
    row = find_token_entry(await _read_token_rows(context), request.name)
    refuse_uncovered_scopes(context, row.scopes, name=request.name)
    change = partial(token_files.revoke_token, name=request.name)
    revoked = await _change_files(context, change, dry_run=request.dry_run)
    if revoked.written:
        await reloader.switch_token(request.name, revoked=True)
    return from_record(TokenRevoked, revoked, dry_run=request.dry_run or UNSET)


async def refresh_token(context: OperationContext, request: RefreshToken) -> TokenRefreshed:
    """Take one token from the configuration on disk. A dry run checks that it can be loaded."""
    reloader = context.require_engine().reloader
    if not request.dry_run:
        await reloader.switch_token(request.name, revoked=request.revoked)
    elif not request.revoked:
        await _check_disk(reloader)
    return TokenRefreshed(name=request.name)


def created_response(created: token_files.CreatedToken, *, shows_value: bool, dry_run: bool) -> TokenCreated:
    """Return the response to the creation of a token, with its value if `shows_value`."""
    return from_record(
        TokenCreated,
        created,
        kind="token" if created.scopes else "secret",
        token=created.value if shows_value else None,
        warnings=tuple(from_record(ConfigProblem, warning) for warning in created.warnings),
        dry_run=dry_run or UNSET,
    )


def rotated_response(rotated: token_files.RotatedToken, *, shows_value: bool, dry_run: bool) -> TokenRotated:
    """Return the response to a rotation, with the new value if `shows_value`."""
    return from_record(
        TokenRotated, rotated, token=rotated.value if shows_value else None, dry_run=dry_run or UNSET
    )


def listed_token(row: TokenEntry, now: datetime, *, in_force: bool | UnsetType = UNSET) -> ListedToken:
    """Return a token of the files. `in_force` is whether the daemon has it; absent without a daemon."""
    expires_at = row.previous_expires_at
    return from_record(
        ListedToken,
        row,
        previous_expires_at=timestamp(expires_at),
        previous_valid=expires_at is not None and expires_at > now,
        in_force=in_force,
    )


async def _list_with_usage(context: OperationContext, row: TokenEntry) -> ListedToken:
    """Return a token of the files with whether the daemon has it, its limits and what it has used of them."""
    snapshot = context.snapshot()
    names_in_force = {token.name for token in snapshot.tokens} | set(snapshot.secrets)
    # The daemon names a token without a name after its digest, which is not shown.
    in_force: bool | UnsetType = UNSET if row.name is None else row.name in names_in_force
    listed = listed_token(row, context.now(), in_force=in_force)
    token = next((token for token in snapshot.tokens if token.name == row.name), None)
    if token is None:
        return listed
    usage = await context.store.token_usage(token.name)
    states = list_limits(token.limits or TokenLimits(), usage, context.now())
    return replace(
        listed,
        limits=[from_record(TokenLimit, state, resets_at=timestamp(state.resets_at)) for state in states],
        spent_today=usage.spent_today,
    )


async def _read_token_rows(context: OperationContext) -> tuple[TokenEntry, ...]:
    """Return the tokens and secrets in the files on disk. Raises if no daemon runs."""
    context.require_engine()
    return await asyncio.to_thread(read_token_entries, str(context.config_file), context.environ)


def refuse_uncovered_scopes(
    context: OperationContext, scopes: Iterable[str], *, name: str | None = None
) -> None:
    """Raise `DeniedError` if the caller's token may not do all that a token with these scopes may do.

    A token with limits may manage none: it could give itself rights without limits. Scopes for a token's own
    jobs are covered only if `name` is that of the caller's token, whose own jobs they are then.
    """
    caller_scopes, scopes = context.source.scopes, tuple(scopes)
    if scopes:
        context.refuse_with_limits("manage tokens")
    if caller_scopes is None:
        return
    held = expand_scopes(caller_scopes) if name is not None and name == context.source.token else ()
    missing = [scope for scope in scopes if scope not in held and not covers(caller_scopes, scope)]
    if missing:
        raise DeniedError(
            f"your token may not manage a token that may do more than itself: {', '.join(missing)}",
            hint="Use a token with these scopes, or `ductile token` on the machine of the daemon.",
            details={"needed": missing},
        )


async def _require_loadable(context: OperationContext) -> Reloader:
    """Return the reloader, if what is on disk can be loaded: a token that is written must come into force."""
    reloader = context.require_engine().reloader
    await _check_disk(reloader)
    return reloader


async def _check_disk(reloader: Reloader) -> None:
    """Raise `ConfigError` if the daemon could not load the configuration on disk."""
    try:
        await reloader.check_disk()
    except ConfigError as error:
        error.message = (
            "nothing was written, because the daemon could not load the configuration on disk: "
            f"{error.message}"
        )
        raise


async def _change_files(
    context: OperationContext, change: Callable[..., WrittenToken], *, dry_run: bool
) -> WrittenToken:
    """Change the files in a thread. Raises `DeniedError`, with advice, if the daemon may not write them."""
    try:
        return await asyncio.to_thread(change, str(context.config_file), context.environ, dry_run=dry_run)
    except DeniedError as error:
        error.hint = (
            "The daemon may not write its configuration, as under systemd. Run `ductile token` on its "
            "machine, as a user who may."
        )
        raise


async def _put_in_force(reloader: Reloader, name: str) -> None:
    """Have the daemon use a token that was written. An error says that it was written, and what to do."""
    try:
        await reloader.switch_token(name)
    except DuctileError as error:
        error.message = f"the token was written, but the daemon has not loaded it: {error.message}"
        error.hint = f"{error.hint or ''} Then: ductile apply".strip()
        raise
