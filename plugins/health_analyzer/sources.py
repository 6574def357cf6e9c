"""Events of other plugins as measures. An event that has a list `measures` needs no translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from days import read_instant


def measures_of(kind: str, payload: Mapping[str, Any]) -> list[Any] | None:
    """Return the measures of an event of this type; None if it has none."""
    if isinstance(payload.get("measures"), list):
        return list(payload["measures"])
    reader = READERS.get(kind)
    return None if reader is None else reader(payload)


def withings_measure(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A person on a scale: weight and body fat, by the id of the measure group."""
    found = payload.get("measures") or {}
    about = {"at": payload.get("at"), "id": payload.get("id")}
    listed = [("weight", "weight_kg", "kg"), ("body_fat", "fat_ratio_percent", "%")]
    return [
        {**about, "metric": name, "value": found[key], "unit": unit}
        for name, key, unit in listed
        if key in found
    ]


def withings_sleep(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    seconds = (payload.get("sleep") or {}).get("total_sleep_time")
    if not seconds:
        return []
    day = {"day": payload["date"]} if payload.get("date") else {"at": payload.get("end")}
    return [{**day, "id": payload.get("id"), "metric": "sleep", "value": seconds, "unit": "s"}]


def withings_activity(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = payload.get("activity") or {}
    day = {"day": payload.get("date")}
    listed = [{**day, "metric": "steps", "value": found["steps"]}] if "steps" in found else []
    if "moderate" in found or "intense" in found:
        seconds = found.get("moderate", 0) + found.get("intense", 0)
        listed.append({**day, "metric": "active_minutes", "value": seconds, "unit": "s"})
    return listed


def calendar_changed(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An entry with other people is a meeting; whole days and notes to oneself are not."""
    start, end = payload.get("start"), payload.get("end")
    timed = isinstance(start, str) and isinstance(end, str) and "T" in start and "T" in end
    if not timed or not payload.get("attendees"):
        # It may have been a meeting before.
        return calendar_deleted(payload)
    minutes = (read_instant(str(end)) - read_instant(str(start))).total_seconds() / 60
    return [{"metric": "meetings", "id": payload.get("id"), "at": start, "value": minutes, "unit": "min"}]


def calendar_deleted(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    start = payload.get("start")
    day = {"day": start[:10]} if isinstance(start, str) else {"at": payload.get("updated") or 0}
    return [{"metric": "meetings", "id": payload.get("id"), **day, "value": None}]


READERS: dict[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
    "withings.measure": withings_measure,
    "withings.sleep": withings_sleep,
    "withings.activity": withings_activity,
    "google_calendar.changed": calendar_changed,
    "google_calendar.deleted": calendar_deleted,
}
