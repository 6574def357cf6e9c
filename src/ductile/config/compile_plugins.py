"""Configured plugins with what discovery found for them: instances with nothing left open."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from ductile.config.check_plugins import schedules_of
from ductile.config.cron import CronTable, parse_cron
from ductile.config.integrity import hash_bytes
from ductile.config.kinds import Hours
from ductile.config.snapshot import After, At, Cron, Every, PluginInstance, Refusal, Schedule, Trigger
from ductile.core import schedule as core_schedule
from ductile.core.breaker import BreakerPolicy
from ductile.core.hours import DayHours
from ductile.core.retry import RetryPolicy
from ductile.core.rules import FactRule, PluginRules
from ductile.protocol.manifest import CompatibilityView

if TYPE_CHECKING:
    from ductile.config.installed import Discovery, InstalledPlugin
    from ductile.config.plugin_settings import PluginSettings, RetrySettings, ScheduleSettings
    from ductile.config.report import Report

_STANDARD_RETRY = RetryPolicy()


def compile_plugin(
    name: str,
    settings: PluginSettings,
    discovery: Discovery,
    *,
    max_workers: int,
    timezone: str,
    report: Report,
) -> PluginInstance:
    uses = settings.uses or name
    found = discovery.installed.get(uses)
    refused = _refusal(name, uses, settings, discovery)
    installed = found if refused is None else None
    _check_commands(name, settings, installed, report)
    return PluginInstance(
        name=name,
        uses=uses,
        enabled=settings.enabled,
        installed=installed,
        refused=refused,
        config=settings.config,
        config_hash=hash_bytes(json.dumps(settings.config.reveal(), sort_keys=True).encode()),
        env=settings.env,
        schedules=tuple(compile_schedule(schedule, timezone) for _, schedule in schedules_of(name, settings)),
        parallelism=_parallelism(name, settings, installed, max_workers, report),
        max_outstanding_polls=settings.max_outstanding_polls,
        timeouts=settings.timeouts,
        timeout=settings.timeout,
        retry=compile_retry(settings.retry, max_attempts=settings.max_attempts),
        breaker=BreakerPolicy(
            threshold=settings.circuit_breaker.threshold, reset_after=settings.circuit_breaker.reset_after
        ),
        limits=settings.limits,
        validate_input=settings.validate_input,
        notify_on_complete=settings.notify_on_complete,
        warm=settings.warm,
        preload=_preload(settings, installed),
    )


def _refusal(name: str, uses: str, settings: PluginSettings, discovery: Discovery) -> Refusal | None:
    if uses in discovery.installed:
        required = discovery.installed[uses].manifest.required_config
        missing = [key for key in required if key not in settings.config.names()]
        if not missing:
            return None
        return Refusal(
            code="missing_config",
            reason=f"its configuration lacks {', '.join(missing)}",
            hint=f"set it under plugins.{name}.config",
        )
    if uses in discovery.refused:
        refused = discovery.refused[uses]
        return Refusal(code=refused.code, reason=refused.reason, hint=refused.hint)
    return Refusal(
        code="not_installed",
        reason=f'no plugin "{uses}" was found in the plugin roots',
        hint="install it under one of `plugin_roots`, or remove it from `plugins`",
    )


def _check_commands(
    name: str, settings: PluginSettings, installed: InstalledPlugin | None, report: Report
) -> None:
    if installed is None:
        return
    for path, schedule in schedules_of(name, settings):
        if schedule.command not in installed.manifest.commands:
            known = ", ".join(installed.manifest.commands)
            message = f"{installed.name} has no command {report.quote((*path, 'command'))}"
            if schedule.command == "poll":
                message = f"{installed.name} has no command poll, which a schedule runs if it names none"
            report.error((*path, "command"), message, expected=f"one of {known}")
    for command in settings.timeouts:
        if command not in installed.manifest.commands:
            report.warn(("plugins", name, "timeouts", command), f"{installed.name} has no command {command}")


def _parallelism(
    name: str, settings: PluginSettings, installed: InstalledPlugin | None, max_workers: int, report: Report
) -> int:
    safe = installed is None or installed.manifest.concurrency_safe
    if settings.parallelism is None:
        return max_workers if safe else 1
    if settings.parallelism > 1 and not safe:
        message = (
            f"{name} says that it is not safe to run twice at once; the setting is followed all the same"
        )
        report.warn(("plugins", name, "parallelism"), message)
    return settings.parallelism


def _preload(settings: PluginSettings, installed: InstalledPlugin | None) -> tuple[str, ...]:
    declared = installed.manifest.preload if installed else ()
    return tuple(dict.fromkeys((*declared, *settings.preload)))


def compile_retry(settings: RetrySettings, *, max_attempts: int | None = None) -> RetryPolicy:
    """`retry.max_attempts` wins over the shorter way of writing it."""
    return RetryPolicy(
        max_attempts=settings.max_attempts or max_attempts or _STANDARD_RETRY.max_attempts,
        backoff_base=settings.backoff_base or _STANDARD_RETRY.backoff_base,
        backoff_max=settings.backoff_max or _STANDARD_RETRY.backoff_max,
    )


def compile_schedule(settings: ScheduleSettings, timezone: str) -> Schedule:
    window = settings.preferred_window
    return Schedule(
        id=settings.id,
        command=settings.command,
        trigger=_trigger(settings),
        timezone=settings.timezone or timezone,
        payload=settings.payload,
        jitter=settings.jitter or timedelta(),
        only_between=settings.only_between,
        preferred_window=Hours(start=window.start, end=window.end) if window else None,
        not_on=frozenset(settings.not_on),
        catch_up=settings.catch_up,
        if_running=settings.if_running,
    )


def _trigger(settings: ScheduleSettings) -> Trigger:
    """The one answer to when it runs; that there is exactly one was checked when it was loaded."""
    if settings.every is not None:
        return Every(interval=settings.every)
    if settings.cron is not None:
        return Cron(expression=parse_cron(settings.cron))
    if settings.at is not None:
        return At(instant=settings.at)
    if settings.after is not None:
        return After(delay=settings.after)
    message = "a schedule without a trigger was not refused at load"
    raise AssertionError(message)


def plugin_rules(plugin: PluginInstance) -> PluginRules:
    """What the core decides by, for one plugin."""
    declared = plugin.installed.manifest.fact_outputs if plugin.installed else ()
    model = plugin.config.reveal().get("model")
    return PluginRules(
        retry=plugin.retry,
        breaker=plugin.breaker,
        facts=tuple(
            FactRule(
                command=fact.command,
                fact_type=fact.fact_type,
                mirror=fact.compatibility_view is CompatibilityView.MIRROR_OBJECT,
            )
            for fact in declared
        ),
        parallelism=plugin.parallelism,
        schedules={schedule.id: schedule_rule(schedule) for schedule in plugin.schedules},
        model=model if isinstance(model, str) else None,
    )


def schedule_rule(schedule: Schedule) -> core_schedule.ScheduleRule:
    """What the core decides by, for one schedule."""
    return core_schedule.ScheduleRule(
        trigger=_core_trigger(schedule),
        timezone=schedule.timezone,
        jitter=schedule.jitter,
        only_between=_day_hours(schedule.only_between),
        preferred_window=_day_hours(schedule.preferred_window),
        not_on=frozenset(int(day) for day in schedule.not_on),
        catch_up=core_schedule.CatchUp(schedule.catch_up),
        if_running=core_schedule.IfRunning(schedule.if_running),
    )


def _core_trigger(schedule: Schedule) -> core_schedule.Trigger:
    match schedule.trigger:
        case Every(interval=interval):
            return core_schedule.Every(interval=interval)
        case Cron(expression=expression):
            return core_schedule.Cron(times=CronTable(expression=expression, timezone=schedule.timezone))
        case At(instant=instant):
            return core_schedule.At(instant=instant)
        case After(delay=delay):
            return core_schedule.After(delay=delay)


def _day_hours(hours: Hours | None) -> DayHours | None:
    return None if hours is None else DayHours(start=hours.start, end=hours.end)
