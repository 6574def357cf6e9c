"""Pause a schedule, resume it, run it now."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ductile.operations.context import OperationContext
from ductile.operations.request import DryRun
from ductile.operations.response import Id, Response, WasDryRun
from ductile.operations.schedules.listing import OneSchedule, find_schedule


class ChangeSchedule(OneSchedule):
    dry_run: DryRun = False


class ScheduleSwitched(Response):
    plugin: str
    id: str
    paused: Annotated[bool, Meta(description="Whether it is paused now.")]
    would_be_paused: bool | UnsetType = UNSET
    dry_run: WasDryRun = UNSET


class ScheduleStarted(Response):
    plugin: str
    id: str
    job_id: Id | None


class ScheduleNotStarted(ScheduleStarted):
    """The response to a dry run."""

    STATUS = HTTPStatus.OK

    dry_run: WasDryRun


async def pause_schedule(context: OperationContext, request: ChangeSchedule) -> ScheduleSwitched:
    return await _switch(context, request, paused=True)


async def resume_schedule(context: OperationContext, request: ChangeSchedule) -> ScheduleSwitched:
    return await _switch(context, request, paused=False)


async def _switch(context: OperationContext, request: ChangeSchedule, *, paused: bool) -> ScheduleSwitched:
    entry = await find_schedule(context, request.plugin, request.schedule)
    plugin, schedule_id = entry.plugin, entry.schedule_id
    if request.dry_run:
        return ScheduleSwitched(
            plugin=plugin,
            id=schedule_id,
            paused=entry.paused_at is not None,
            would_be_paused=paused,
            dry_run=True,
        )
    if paused or context.engine is None:
        await context.store.pause_schedule(plugin, schedule_id, paused=paused)
    else:
        await context.engine.resume_schedule(plugin, schedule_id)
    return ScheduleSwitched(plugin=plugin, id=schedule_id, paused=paused)


async def run_schedule(
    context: OperationContext, request: ChangeSchedule
) -> ScheduleStarted | ScheduleNotStarted:
    """Start a run now. Raises `ConflictError` if another run prevents it."""
    engine = context.require_engine()
    entry = await find_schedule(context, request.plugin, request.schedule)
    plugin, schedule_id = entry.plugin, entry.schedule_id
    if request.dry_run:
        return ScheduleNotStarted(plugin=plugin, id=schedule_id, job_id=None, dry_run=True)
    context.refuse_when_stopping()
    job_id = await engine.run_schedule(plugin, schedule_id)
    return ScheduleStarted(plugin=plugin, id=schedule_id, job_id=job_id)
