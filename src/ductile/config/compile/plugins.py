"""Compiles configured plugins and the discovery result into plugin instances. Pure."""

from __future__ import annotations

import json
from datetime import timedelta

from ductile.config.cron import CronTable, parse_cron
from ductile.config.file_io import hash_bytes
from ductile.config.schema.pipelines import PipelineSettings
from ductile.config.schema.plugins import PluginSettings, RetrySettings, ScheduleSettings
from ductile.config.snapshot import (
    Discovery,
    InstalledPlugin,
    PluginInstance,
    PluginRefusal,
    RefusedPlugin,
    Schedule,
)
from ductile.config.validate.rules import not_installed_message, schedules_of
from ductile.core.jobs.failures import BreakerPolicy, RetryPolicy
from ductile.core.jobs.model import StateSubscription
from ductile.core.jobs.settlement import WebhookState
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import FactRule, PluginPolicy
from ductile.core.schedules.rule import After, At, Cron, DailyWindow, Every, ScheduleRule, Trigger
from ductile.protocol.manifest.model import CompatibilityView
from ductile.struct import replace

_DEFAULT_RETRY = RetryPolicy()


def compile_plugin(
    name: str, settings: PluginSettings, discovery: Discovery, *, max_workers: int, timezone: str
) -> PluginInstance:
    uses = settings.uses or name
    found = _find_installed(name, uses, settings, discovery)
    installed = found if isinstance(found, InstalledPlugin) else None
    concurrency_safe = installed is None or installed.manifest.concurrency_safe
    parallelism_limit = settings.parallelism or (None if concurrency_safe else 1)
    preload = (*(installed.manifest.preload if installed else ()), *settings.preload)
    retry = compile_retry(settings.retry, max_attempts=settings.max_attempts)
    if settings.retry_on == "never":  # one attempt, also if the daemon dies while it runs
        retry = replace(retry, max_attempts=1)
    return PluginInstance(
        name=name,
        uses=uses,
        is_script=settings.run is not None,
        enabled=settings.enabled,
        installed=installed,
        refused=None if isinstance(found, InstalledPlugin) else found,
        config=settings.config,
        config_hash=_config_hash(settings, installed),
        env=settings.env,
        schedules=tuple(compile_schedule(schedule, timezone) for _, schedule in schedules_of(name, settings)),
        parallelism=parallelism_limit or max_workers,
        parallelism_limit=parallelism_limit,
        max_outstanding_polls=settings.max_outstanding_polls,
        timeouts=settings.timeouts,
        timeout=settings.timeout,
        retry=retry,
        breaker=BreakerPolicy(
            threshold=settings.circuit_breaker.threshold, reset_after=settings.circuit_breaker.reset_after
        ),
        limits=settings.limits,
        validate_input=settings.validate_input,
        notify_on_complete=settings.notify_on_complete,
        state_webhook=compile_state_webhook(settings),
        warm=settings.warm,
        preload=tuple(dict.fromkeys(preload)),
    )


def _find_installed(
    name: str, uses: str, settings: PluginSettings, discovery: Discovery
) -> InstalledPlugin | PluginRefusal:
    """Return the plugin or script that may run, or why there is none."""
    plugin = discovery.installed.get(uses) or discovery.refused.get(uses)
    if settings.run is not None:
        plugin = discovery.scripts.get(name)
        if plugin is None:  # the discovery did not include scripts
            return PluginRefusal(code="not_installed", reason="its program was not looked for")
    if plugin is None:
        reason, hint = not_installed_message(uses, discovery.names)
        return PluginRefusal(code="not_installed", reason=reason, hint=hint)
    if isinstance(plugin, RefusedPlugin):
        return PluginRefusal(code=plugin.code, reason=plugin.reason, hint=plugin.hint)
    required = plugin.manifest.required_config
    if missing := [key for key in required if key not in settings.config.names()]:
        return PluginRefusal(
            code="missing_config",
            reason=f"its configuration lacks {', '.join(missing)}",
            hint=f"run `ductile config set plugins.{name}.config.{missing[0]} VALUE --apply`",
        )
    return plugin


def _config_hash(settings: PluginSettings, installed: InstalledPlugin | None) -> str:
    """Return the hash of the configuration of a plugin; of a script, also of its command and directory."""
    content: JsonObject = settings.config.reveal()
    if installed is not None and (script := installed.script) is not None:
        run: JsonValue = [*script.argv]
        content = {"run": run, "cwd": script.directory, "output": script.output, "config": content}
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def compile_state_webhook(settings: PluginSettings | PipelineSettings) -> StateSubscription | None:
    if settings.state_webhook_url is None:
        return None
    states = settings.state_webhook_events
    # In the order of a job's life, each once, as those of a submission are stored.
    events = tuple(str(state) for state in WebhookState if state in states) if states else None
    return StateSubscription(url=settings.state_webhook_url.reveal(), events=events)


def compile_retry(
    settings: RetrySettings, *, max_attempts: int | None = None, default: RetryPolicy = _DEFAULT_RETRY
) -> RetryPolicy:
    """Return the policy. `retry.max_attempts` wins over a plugin's own `max_attempts`."""
    return RetryPolicy(
        max_attempts=settings.max_attempts or max_attempts or default.max_attempts,
        backoff_base=settings.backoff_base or default.backoff_base,
        backoff_max=settings.backoff_max or default.backoff_max,
    )


def compile_schedule(settings: ScheduleSettings, timezone: str) -> Schedule:
    window, zone = settings.preferred_window, settings.timezone or timezone
    trigger: Trigger
    if settings.every is not None:
        trigger = Every(interval=settings.every)
    elif settings.cron is not None:
        trigger = Cron(times=CronTable(expression=parse_cron(settings.cron), timezone=zone))
    elif settings.at is not None:
        trigger = At(instant=settings.at)
    elif settings.after is not None:
        trigger = After(delay=settings.after)
    else:
        message = "a schedule without a trigger passed validation"
        raise AssertionError(message)
    rule = ScheduleRule(
        trigger=trigger,
        timezone=zone,
        jitter=settings.jitter or timedelta(),
        only_between=settings.only_between,
        preferred_window=DailyWindow(start=window.start, end=window.end) if window else None,
        not_on=frozenset(int(day) for day in settings.not_on),
        catch_up=settings.catch_up,
        if_running=settings.if_running,
    )
    return Schedule(id=settings.id, command=settings.command, rule=rule, payload=settings.payload)


def plugin_policy(plugin: PluginInstance) -> PluginPolicy:
    """Return the part of a plugin's configuration that the core decides by."""
    declared = plugin.installed.manifest.fact_outputs if plugin.installed else ()
    config = plugin.config.reveal()
    return PluginPolicy(
        retry=plugin.retry,
        breaker=plugin.breaker,
        facts=tuple(
            FactRule(
                command=fact.command,
                fact_type=fact.fact_type,
                replaces_state=fact.compatibility_view is CompatibilityView.MIRROR_OBJECT,
            )
            for fact in declared
        ),
        schedules={schedule.id: schedule.rule for schedule in plugin.schedules},
        notify_on_complete=plugin.notify_on_complete,
        state_webhook=plugin.state_webhook,
        config=config,
    )
