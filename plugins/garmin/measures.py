"""Garmin's documents as measures. A value that Garmin leaves out or marks as unknown is left out here too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: Garmin writes -1 and -2 for a stress level that is unknown or too low to say.
SUMMARY = (
    ("steps", "totalSteps", "count"),
    ("resting_heart_rate", "restingHeartRate", "bpm"),
    ("stress", "averageStressLevel", "points"),
)


def number(value: Any) -> float | None:
    """Return a number that is at least zero; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        return None
    return value


def measure(metric: str, day: str, value: float, unit: str) -> dict[str, Any]:
    return {"metric": metric, "day": day, "value": value, "unit": unit}


def summary_measures(day: str, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measures of a daily summary; none for a day on which no watch was worn."""
    if summary.get("includesWellnessData") is False:
        return []
    found = []
    for metric, key, unit in SUMMARY:
        value = number(summary.get(key))
        if value is not None and (value > 0 or metric == "steps"):
            found.append(measure(metric, day, value, unit))
    minutes = [number(summary.get(f"{kind}IntensityMinutes")) for kind in ("moderate", "vigorous")]
    if any(each is not None for each in minutes):
        found.append(measure("active_minutes", day, sum(each or 0 for each in minutes), "min"))
    return found


def sleep_measures(day: str, sleep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sleep of the night that ended on this day."""
    night = sleep.get("dailySleepDTO")
    seconds = number(night.get("sleepTimeSeconds")) if isinstance(night, dict) else None
    return [measure("sleep", day, seconds, "s")] if seconds else []


def activity_measure(activity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an activity on the day where the person was. Raises KeyError for another document."""
    kind = activity.get("activityType")
    return {
        "metric": "activity",
        "id": str(activity["activityId"]),
        "day": str(activity["startTimeLocal"])[:10],
        "type": str(kind.get("typeKey") or "other") if isinstance(kind, dict) else "other",
        "minutes": round((number(activity.get("duration")) or 0) / 60, 1),
        "km": round((number(activity.get("distance")) or 0) / 1000, 2),
    }


def withdrawn(identifier: str, day: str) -> dict[str, Any]:
    return {"metric": "activity", "id": identifier, "day": day, "value": None}


def heart_rate(summary: Mapping[str, Any]) -> dict[str, float]:
    keys = (("resting", "restingHeartRate"), ("min", "minHeartRate"), ("max", "maxHeartRate"))
    found = {name: number(summary.get(key)) for name, key in keys}
    return {name: value for name, value in found.items() if value}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
