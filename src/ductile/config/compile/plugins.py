"""Configured plugins with what discovery found for them: instances with nothing left open."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from ductile.config.compile.cron import CronTable, parse_cron
from ductile.config.key_paths import did_you_mean
from ductile.config.seal import hash_bytes
from ductile.config.snapshot import PluginInstance, PluginRefusal, Schedule
from ductile.config.validate.plugins import not_installed_message, schedules_of
from ductile.core.jobs.breaker import BreakerPolicy
from ductile.core.jobs.retry import RetryPolicy
from ductile.core.policy import FactRule, PluginPolicy
from ductile.core.schedules.rule import After, At, Cron, Every, ScheduleRule, Trigger
from ductile.core.schedules.windows import DailyWindow
from ductile.protocol.manifest.model import CompatibilityView

if TYPE_CHECKING:
    from ductile.config.installed import Discovery, InstalledPlugin
    from ductile.config.schema.plugins import PluginSettings, RetrySettings, ScheduleSettings
    from ductile.config.validate.report import ValidationReport

_STANDARD_RETRY = RetryPolicy()
#: Keys of a plugin's configuration that are for Ductile as well: see `plugin_rules`.
_OURS = frozenset(("model",))


def compile_plugin(
    name: str,
    settings: PluginSettings,
    discovery: Discovery,
    *,
    max_workers: int,
    timezone: str,
    report: ValidationReport,
) -> PluginInstance:
    uses = settings.uses or name
    found = discovery.installed.get(uses)
    refused = _refusal(name, uses, settings, discovery)
    installed = found if refused is None else None
    _check_commands(name, settings, installed, report)
    _check_config_keys(name, settings, found, report)
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


def _refusal(name: str, uses: str, settings: PluginSettings, discovery: Discovery) -> PluginRefusal | None:
    if uses in discovery.installed:
        required = discovery.installed[uses].manifest.required_config
        missing = [key for key in required if key not in settings.config.names()]
        if not missing:
            return None
        return PluginRefusal(
            code="missing_config",
            reason=f"its configuration lacks {', '.join(missing)}",
            hint=f"set it under plugins.{name}.config",
        )
    if uses in discovery.refused:
        refused = discovery.refused[uses]
        return PluginRefusal(code=refused.code, reason=refused.reason, hint=refused.hint)
    reason, hint = not_installed_message(uses, discovery.names)
    return PluginRefusal(code="not_installed", reason=reason, hint=hint)


def _check_commands(
    name: str, settings: PluginSettings, installed: InstalledPlugin | None, report: ValidationReport
) -> None:
    if installed is None:
        return
    for path, schedule in schedules_of(name, settings):
        if schedule.command not in installed.manifest.commands:
            known = ", ".join(installed.manifest.commands)
            message = f"{installed.name} has no command {report.quote((*path, 'command'))}"
            if schedule.command == "poll":
                message = f"{installed.name} has no command poll, which a schedule runs if it names none"
            hint = did_you_mean(schedule.command, installed.manifest.commands)
            report.error((*path, "command"), message, expected=f"one of {known}", hint=hint)
    for command in settings.timeouts:
        if command not in installed.manifest.commands:
            report.warn(("plugins", name, "timeouts", command), f"{installed.name} has no command {command}")


def _check_config_keys(
    name: str, settings: PluginSettings, found: InstalledPlugin | None, report: ValidationReport
) -> None:
    """A key that the manifest does not name is passed on all the same; it may be a slip, though.
    What a plugin that names none of its keys takes, nobody can tell.
    """
    declared = (*found.manifest.required_config, *found.manifest.optional_config) if found else ()
    if found is None or not declared:
        return
    for key in settings.config.names():
        if key not in declared and key not in _OURS:
            hint = did_you_mean(key, declared) or f"it names {', '.join(declared)}"
            path = ("plugins", name, "config", key)
            report.warn(path, f"{found.name} does not name the key {key}", hint=hint)


def _parallelism(
    name: str,
    settings: PluginSettings,
    installed: InstalledPlugin | None,
    max_workers: int,
    report: ValidationReport,
) -> int:
    safe = installed is None or installed.manifest.concurrency_safe
    if settings.parallelism is None:
        return max_workers if safe else 1
    if settings.parallelism > 1 and not safe:
        message = f"{name} says that it is not safe to run in parallel; `parallelism` is applied all the same"
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
    window, zone = settings.preferred_window, settings.timezone or timezone
    rule = ScheduleRule(
        trigger=_trigger(settings, zone),
        timezone=zone,
        jitter=settings.jitter or timedelta(),
        only_between=settings.only_between,
        preferred_window=DailyWindow(start=window.start, end=window.end) if window else None,
        not_on=frozenset(int(day) for day in settings.not_on),
        catch_up=settings.catch_up,
        if_running=settings.if_running,
    )
    return Schedule(id=settings.id, command=settings.command, rule=rule, payload=settings.payload)


def _trigger(settings: ScheduleSettings, timezone: str) -> Trigger:
    """The one answer to when it runs; that there is exactly one was checked when it was loaded."""
    if settings.every is not None:
        return Every(interval=settings.every)
    if settings.cron is not None:
        return Cron(times=CronTable(expression=parse_cron(settings.cron), timezone=timezone))
    if settings.at is not None:
        return At(instant=settings.at)
    if settings.after is not None:
        return After(delay=settings.after)
    message = "a schedule without a trigger was not refused at load"
    raise AssertionError(message)


def plugin_rules(plugin: PluginInstance) -> PluginPolicy:
    """What the core decides by, for one plugin."""
    declared = plugin.installed.manifest.fact_outputs if plugin.installed else ()
    config = plugin.config.reveal()
    model = config.get("model")
    return PluginPolicy(
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
        schedules={schedule.id: schedule.rule for schedule in plugin.schedules},
        model=model if isinstance(model, str) else None,
        notify_on_complete=plugin.notify_on_complete,
        config=config,
    )
