#!/usr/bin/env python3
"""The health_analyzer plugin: keeps daily measures, finds unusual days, writes a weekly report."""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from days import Measure, bounded, daily_series, load_zone, merge, read_instant, read_measures
from ductile_sdk import ConfigFailure, Failure, Plugin, Request
from metrics import METRICS, Metric
from report import PROMPT, anomaly_line, anomaly_report, as_text, week_name, week_of, weekly_report
from series import Anomaly, find_anomaly
from sources import measures_of

#: Measures of a day may arrive days later; this many days are looked at again.
LATE_DAYS = 3
MIN_KEEP_DAYS = 60
MAX_KEEP_DAYS = 800
#: Problems that are named; the others are counted.
NAMED = 5

plugin = Plugin()


class Settings(NamedTuple):
    """The configuration, checked."""

    zone: tzinfo | None
    keep_days: int
    threshold: float


@plugin.command
def handle(request: Request) -> str:
    """Keep the measures of an event. The same event twice changes nothing."""
    settings = read_settings(request)
    listed = measures_of(str(request.event.get("type")), request.payload)
    if listed is None:
        raise Failure(
            "the payload needs `measures`, a list of objects with metric, day and value", retry=False
        )
    today = local_day(settings)
    source = str(request.event.get("source") or "unknown")
    measures, problems = read_measures(listed, source, settings.zone, today)
    for problem in problems[:NAMED]:
        request.log(problem, "warn")
    if listed and not measures:
        raise Failure(f"none of {len(listed)} measures can be used; {problems[0]}", retry=False)
    changed = keep(request, settings, measures, today)
    return f"{changed} of {len(listed)} measures changed a value" + (
        f", {len(problems)} ignored" if problems else ""
    )


def keep(request: Request, settings: Settings, measures: list[Measure], today: date) -> int:
    days, changed = merge(kept_days(request), measures, revision_of(request))
    kept = bounded(days, settings.keep_days, today)
    oldest = (today - timedelta(days=settings.keep_days)).isoformat()
    if dropped := [day for day in days if day not in kept and day >= oldest]:
        request.log(f"the state is full: {len(dropped)} of the oldest days were dropped", "warn")
    request.remember(days=kept)
    return changed


@plugin.command
def poll(request: Request) -> str:
    """Emit an event for each unusual value of the last complete days, once."""
    settings = read_settings(request)
    end = asked_day(request, "day") or local_day(settings) - timedelta(days=1)
    recent = [end - timedelta(days=n) for n in reversed(range(LATE_DAYS))]
    reported = [each for each in request.state.get("reported") or [] if each >= recent[0].isoformat()]
    new = [
        (name, found)
        for name, found in find_anomalies(kept_days(request), recent, settings.threshold)
        if f"{found.day}:{name}" not in reported
    ]
    for name, found in new:
        emit_anomaly(request, name, METRICS[name], found)
    request.remember(reported=sorted({*reported, *(f"{found.day}:{name}" for name, found in new)}))
    return f"new anomalies from {recent[0]} to {recent[-1]}: {len(new)}"


def find_anomalies(days: dict[str, Any], wanted: list[date], threshold: float) -> list[tuple[str, Anomaly]]:
    found = []
    for name, metric in METRICS.items():
        series = daily_series(days, name)
        each = (find_anomaly(series, day, metric.smallest_deviation, threshold=threshold) for day in wanted)
        found += [(name, anomaly) for anomaly in each if anomaly is not None]
    return found


def emit_anomaly(request: Request, name: str, metric: Metric, found: Anomaly) -> None:
    shown = anomaly_report(found)
    text = f"{metric.label}{anomaly_line(metric, shown)[1:]}"
    key = f"health.anomaly:{found.day}:{name}"
    payload = {"id": key, "title": "Unusual health figure", "text": text, "metric": name, "unit": metric.unit}
    request.emit("health.anomaly", {**payload, **shown}, dedupe_key=key)


@plugin.command
def report(request: Request) -> dict[str, Any]:
    """Report on a week: the last complete one, or the one that contains `day`."""
    settings = read_settings(request)
    day = asked_day(request, "day") or local_day(settings) - timedelta(days=7)
    monday, _ = week_of(day)
    numbers = weekly_report(kept_days(request), monday, settings.threshold)
    text = as_text(numbers)
    # A week whose measures were corrected since is a new report; the same week again is not.
    digest = hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]
    key = f"health.report:{numbers['week']}:{digest}"
    title = f"Health report for week {week_name(monday)}"
    request.emit(
        "health.report",
        {"id": key, "title": title, "text": text, "report": numbers, "prompt": PROMPT + text},
        dedupe_key=key,
    )
    request.remember(**numbers)
    return {"text": text, "report": numbers}


@plugin.command
def health(request: Request) -> str:
    read_settings(request)
    days = kept_days(request)
    return f"healthy, {len(days)} days, the last one is {max(days)}" if days else "healthy, no measures yet"


def kept_days(request: Request) -> dict[str, Any]:
    days = request.state.get("days")
    return days if isinstance(days, dict) else {}


def revision_of(request: Request) -> int:
    """Return the instant of the event in milliseconds: the same for every attempt and redelivery of it."""
    at = request.event.get("timestamp")
    instant = read_instant(at) if isinstance(at, str) else utc_now()
    return round(instant.timestamp() * 1000)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)  # noqa: UP017 - older Pythons


def local_day(settings: Settings) -> date:
    return utc_now().astimezone(settings.zone).date()


def asked_day(request: Request, key: str) -> date | None:
    asked = request.payload.get(key)
    if asked is None:
        return None
    try:
        return date.fromisoformat(asked)
    except (TypeError, ValueError):
        raise Failure(f"`{key}` is {asked!r}; a date such as 2026-11-18 is needed", retry=False) from None


def read_settings(request: Request) -> Settings:
    config = request.config
    zone = config.get("timezone")
    try:
        settings = Settings(
            zone=None if zone is None else load_zone(str(zone)),
            keep_days=int(config.get("keep_days", 400)),
            threshold=float(config.get("threshold", 3.5)),
        )
    except (TypeError, ValueError) as error:
        raise ConfigFailure(f"the plugin's config cannot be used: {error}") from None
    if not MIN_KEEP_DAYS <= settings.keep_days <= MAX_KEEP_DAYS:
        raise ConfigFailure(
            f"`keep_days` is {settings.keep_days}; {MIN_KEEP_DAYS} to {MAX_KEEP_DAYS} are possible"
        )
    if not settings.threshold > 0:
        raise ConfigFailure(f"`threshold` is {settings.threshold:g}; it must be greater than 0")
    return settings


plugin.run()
