"""The weekly report: numbers first, then the same as text, and as a prompt for a model that writes prose."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from days import activities, daily_series
from metrics import METRICS, Metric
from series import Anomaly, Trend, find_anomaly, linear_trend, mean, missing_days, moving_average, window

WEEK = 7
#: The trend looks at four weeks: shorter ones follow single days, longer ones hide changes.
TREND_DAYS = 28
MIN_TREND_DAYS = 7
PROMPT = (
    "Write a short, friendly summary of this week's health figures for the person they belong to. Use only "
    "the figures below, invent nothing, give no medical advice, and mention missing days, if any.\n\n"
)


def week_of(day: date) -> tuple[date, date]:
    """Return Monday and Sunday of the day's week."""
    monday = day - timedelta(days=day.weekday())
    return monday, monday + timedelta(days=WEEK - 1)


def week_name(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year}-W{week:02d}"


def weekly_report(days: Mapping[str, Any], monday: date, threshold: float) -> dict[str, Any]:
    sunday = monday + timedelta(days=WEEK - 1)
    metrics = {}
    for name, metric in METRICS.items():
        series = daily_series(days, name)
        if window(series, sunday, WEEK) or window(series, monday - timedelta(days=1), WEEK):
            metrics[name] = metric_report(series, metric, sunday, threshold)
    return {
        "week": week_name(monday),
        "from": monday.isoformat(),
        "to": sunday.isoformat(),
        "metrics": metrics,
        "activities": activity_report(activities(days, monday, sunday)),
    }


def metric_report(
    series: Mapping[date, float], metric: Metric, sunday: date, threshold: float
) -> dict[str, Any]:
    monday = sunday - timedelta(days=WEEK - 1)
    values = window(series, sunday, WEEK)
    average = mean(values.values())
    before = mean(window(series, monday - timedelta(days=1), WEEK).values())
    strange = [find_anomaly(series, day, metric.smallest_deviation, threshold=threshold) for day in values]
    return {
        "unit": metric.unit,
        "mean": rounded(average),
        "min": rounded(min(values.values(), default=None)),
        "max": rounded(max(values.values(), default=None)),
        "previous_mean": rounded(before),
        "change": None if average is None or before is None else rounded(average - before),
        "moving_average": rounded(moving_average(series, sunday)),
        "missing_days": [day.isoformat() for day in missing_days(series, monday, sunday)],
        "trend": trend_report(window(series, sunday, TREND_DAYS)),
        "anomalies": [anomaly_report(found) for found in strange if found is not None],
    }


def trend_report(series: Mapping[date, float]) -> dict[str, Any] | None:
    """Return the change per week; None below seven days with a value."""
    trend = linear_trend(series) if len(series) >= MIN_TREND_DAYS else None
    return None if trend is None else shown_trend(trend)


def shown_trend(trend: Trend) -> dict[str, Any]:
    return {
        "days": trend.values,
        "per_week": rounded(trend.slope * WEEK),
        "low": rounded(trend.low * WEEK),
        "high": rounded(trend.high * WEEK),
        "direction": trend.direction,
    }


def anomaly_report(found: Anomaly) -> dict[str, Any]:
    return {
        "day": found.day.isoformat(),
        "value": rounded(found.value),
        "usual": rounded(found.usual),
        "score": round(found.score, 1),
    }


def activity_report(listed: list[dict[str, Any]]) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {}
    for each in listed:
        kind = kinds.setdefault(each["type"], {"count": 0, "minutes": 0.0, "km": 0.0})
        kind["count"] += 1
        kind["minutes"] = round(kind["minutes"] + each["minutes"], 1)
        kind["km"] = round(kind["km"] + each["km"], 2)
    return {"count": len(listed), "by_type": {name: kinds[name] for name in sorted(kinds)}}


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def as_text(report: Mapping[str, Any]) -> str:
    lines = [f"Week {report['week']}, {report['from']} to {report['to']}", ""]
    for name, found in report["metrics"].items():
        lines += metric_lines(METRICS[name], found)
    if not report["metrics"]:
        lines.append("No measures arrived for this week or the one before.")
    listed = report["activities"]
    if listed["count"]:
        lines += ["", f"Activities: {listed['count']}"]
        lines += [activity_line(kind, listed["by_type"][kind]) for kind in listed["by_type"]]
    return "\n".join(lines)


def metric_lines(metric: Metric, found: Mapping[str, Any]) -> list[str]:
    if found["mean"] is None:
        before = quantity(metric, found["previous_mean"])
        return [f"{metric.label}: no measures this week, {before} the week before"]
    line = f"{metric.label}: {quantity(metric, found['mean'])}"
    if found["change"] is not None:
        line += f" ({change_in_words(metric, found['change'])} the week before)"
    lines = [line]
    trend = found["trend"]
    if trend is not None and trend["direction"] != "unclear":
        change = quantity(metric, trend["per_week"], sign=True)
        lines.append(f"  {trend['direction']} over four weeks: {change} a week")
    lines += [anomaly_line(metric, each) for each in found["anomalies"]]
    if found["missing_days"]:
        lines.append(f"  no measure on {len(found['missing_days'])} of {WEEK} days")
    return lines


def change_in_words(metric: Metric, change: float) -> str:
    text = quantity(metric, change, sign=True)
    return (
        "as in" if float("0" + "".join(each for each in text if each.isdigit())) == 0 else f"{text} against"
    )


def anomaly_line(metric: Metric, found: Mapping[str, Any]) -> str:
    value, usual = quantity(metric, found["value"]), quantity(metric, found["usual"])
    return f"  unusual on {found['day']}: {value}, usually {usual}"


def activity_line(kind: str, found: Mapping[str, Any]) -> str:
    distance = f", {found['km']:g} km" if found["km"] else ""
    return f"  {kind.replace('_', ' ')}: {found['count']}, {found['minutes']:g} min{distance}"


def quantity(metric: Metric, value: float, *, sign: bool = False) -> str:
    plus = "+" if sign else ""
    if metric.unit == "min":
        return f"{'-' if value < 0 else plus}{duration(abs(value))}"
    number = f"{value:{plus},.{metric.digits}f}"
    return number if metric.unit in ("count", "points") else f"{number} {metric.unit}"


def duration(minutes: float) -> str:
    hours, rest = divmod(round(minutes), 60)
    return f"{hours} h {rest:02d} min" if hours else f"{rest} min"
