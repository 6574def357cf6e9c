"""The `plugins` section: one configured plugin instance, its schedules and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from ductile.config.schema.fields import (
    Duration,
    HoursOfDay,
    Instant,
    ScheduleInterval,
    SecretObject,
    SecretText,
    Section,
    Size,
    TimeOfDay,
    Variables,
    WeekdayName,
    setting,
)
from ductile.config.secrets import SecretMap
from ductile.core.jobs.model import OutputFormat
from ductile.core.jobs.settlement import WebhookState
from ductile.core.schedules.rule import CatchUp, IfRunning


class PreferredWindow(Section, frozen=True, kw_only=True):
    start: Annotated[TimeOfDay, setting("First minute of the window, such as 06:00.")]
    end: Annotated[TimeOfDay, setting("First minute after the window. Before `start` it means the next day.")]


class ScheduleSettings(Section, frozen=True, kw_only=True):
    id: Annotated[str, setting("Name of the schedule, unique within its plugin.")] = "default"
    command: Annotated[str, setting("The command that is run. `handle` cannot be scheduled.")] = "poll"
    payload: Annotated[SecretObject | None, setting("JSON object handed to the command as its payload.")] = (
        None
    )
    every: Annotated[
        ScheduleInterval | None,
        setting(
            "Run again this long after the last success. `daily`, `weekly` and `monthly` step through the "
            "calendar of the schedule's time zone.",
            at_least=1,
        ),
    ] = None
    cron: Annotated[
        str | None, setting("Five cron fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.")
    ] = None
    at: Annotated[
        Instant | None, setting("Run once at this instant, in RFC 3339: `2026-12-24T18:00:00+01:00`.")
    ] = None
    after: Annotated[Duration | None, setting("Run once, this long after each start of the service.")] = None
    jitter: Annotated[
        Duration | None, setting("Width of the span, around the planned time, from which the start is drawn.")
    ] = None
    only_between: Annotated[
        HoursOfDay | None,
        setting("Skip runs outside these hours, such as `08:00-22:00`; the end does not belong to them."),
    ] = None
    preferred_window: Annotated[
        PreferredWindow | None, setting("Move a run that falls outside to the start of the next window.")
    ] = None
    timezone: Annotated[
        str | None, setting("IANA time zone of cron, windows and weekdays.", default="`service.timezone`")
    ] = None
    not_on: Annotated[
        tuple[WeekdayName, ...], setting("Weekdays on which runs are skipped, by name or 0 to 6 from Sunday.")
    ] = ()
    catch_up: Annotated[CatchUp, setting("How runs that were missed during a downtime are handled.")] = (
        CatchUp.SKIP
    )
    if_running: Annotated[
        IfRunning, setting("How a run is handled while the previous one has not ended.")
    ] = IfRunning.SKIP


class RetrySettings(Section, frozen=True, kw_only=True):
    max_attempts: Annotated[
        int | None, setting("Number of attempts in total.", default="`4`", at_least=1)
    ] = None
    backoff_base: Annotated[
        Duration | None,
        setting(
            "Wait after the first failure; it doubles with each further one.", default="`30s`", at_least=1
        ),
    ] = None
    backoff_max: Annotated[
        Duration | None, setting("The longest wait between two attempts.", default="`1h`", at_least=1)
    ] = None


class CircuitBreakerSettings(Section, frozen=True, kw_only=True):
    threshold: Annotated[
        int,
        setting("Failed scheduled jobs in a row after which the scheduler pauses the command.", at_least=1),
    ] = 3
    reset_after: Annotated[
        Duration, setting("How long it pauses before one job runs as a probe.", at_least=1)
    ] = timedelta(minutes=30)


class LimitSettings(Section, frozen=True, kw_only=True):
    memory: Annotated[Size | None, setting("Address space a process of the plugin may use.", at_least=1)] = (
        None
    )
    cpu_seconds: Annotated[
        int | None,
        setting("Processor time, in seconds, after which the kernel ends the process.", at_least=1),
    ] = None
    open_files: Annotated[
        int | None, setting("File descriptors it may hold at the same time.", at_least=3)
    ] = None
    processes: Annotated[
        int | None, setting("Processes its user may have while it starts another one.", at_least=1)
    ] = None


class PluginSettings(Section, frozen=True, kw_only=True):
    enabled: Annotated[bool, setting("Whether the plugin may run.")] = True
    uses: Annotated[
        str | None,
        setting("The installed plugin that this instance runs.", default="the instance's own name"),
    ] = None
    run: Annotated[
        str | tuple[str, ...] | None,
        setting(
            "The program of a script, instead of `uses`: a list is executed as it is, a text with a shell's "
            "syntax by `sh -c`."
        ),
    ] = None
    cwd: Annotated[
        str | None,
        setting("Working directory of a script.", default="the directory of the configuration"),
    ] = None
    output: Annotated[
        OutputFormat | None,
        setting("How the stdout of a script becomes the job's result.", default="`text`"),
    ] = None
    retry_on: Annotated[
        tuple[int, ...] | Literal["never"] | None,
        setting(
            "Exit statuses of a script after which it is retried.", default="every failure but status 78"
        ),
    ] = None
    config: Annotated[
        SecretObject,
        setting("Passed to the plugin unchanged. Values of keys that look secret are masked when shown."),
    ] = SecretMap.empty()
    env: Annotated[Variables, setting("Environment variables of the plugin's processes.")] = SecretMap.empty()
    schedules: Annotated[tuple[ScheduleSettings, ...], setting("When the scheduler runs the plugin.")] = ()
    schedule: Annotated[ScheduleSettings | None, setting("A single schedule, instead of a list.")] = None
    parallelism: Annotated[
        int | None,
        setting(
            "Jobs of this plugin that may run at the same time, on all nodes together.",
            default="`service.max_workers`, or 1 for a plugin that is not concurrency-safe",
            at_least=1,
        ),
    ] = None
    max_outstanding_polls: Annotated[
        int,
        setting(
            "While this many polls are queued or running, a scheduled one waits for one of them to end.",
            at_least=1,
        ),
    ] = 1
    timeouts: Annotated[Mapping[str, Duration], setting("Longest run time, by command.", at_least=1)] = {}
    timeout: Annotated[
        Duration | None,
        setting(
            "Longest run time of the commands that `timeouts` does not name.",
            default="poll `60s`, handle `120s`, health `10s`, init `30s`, others `60s`",
            at_least=1,
        ),
    ] = None
    retry: Annotated[RetrySettings, setting("Retry policy of failed jobs.")] = RetrySettings()
    max_attempts: Annotated[
        int | None, setting("Short for `retry.max_attempts`, which wins if both are set.", at_least=1)
    ] = None
    circuit_breaker: Annotated[
        CircuitBreakerSettings, setting("When the scheduler stops running a command that keeps failing.")
    ] = CircuitBreakerSettings()
    limits: Annotated[LimitSettings, setting("Bounds that the kernel puts on each process.")] = (
        LimitSettings()
    )
    validate_input: Annotated[
        bool, setting("Refuse a payload that does not satisfy the command's input schema.")
    ] = False
    state_webhook_url: Annotated[
        SecretText | None,
        setting(
            "URL that gets the states of its jobs, except those of pipeline steps, besides one that a "
            "caller names."
        ),
    ] = None
    state_webhook_events: Annotated[
        tuple[WebhookState, ...], setting("The states that are sent there.", default="all of them")
    ] = ()
    notify_on_complete: Annotated[
        bool, setting("Start the pipelines that have `on-hook` when a job of this plugin ends.")
    ] = False
    warm: Annotated[
        bool | Literal["auto"], setting("Whether Python plugins are forked from a prepared interpreter.")
    ] = "auto"
    preload: Annotated[
        tuple[str, ...], setting("Python modules that the prepared interpreter imports beforehand.")
    ] = ()
