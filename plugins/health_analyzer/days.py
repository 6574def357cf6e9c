"""What is kept: the measures of each day. Merging them is idempotent and does not depend on their order.

A day is `{metric: {key: [value, revision]}}`. The key names source and measure, the revision is the instant
of the event that brought it: the same event twice changes nothing, and a newer event replaces what an older
one said, also if the older one arrives later. A value of null is a measure that was withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

from metrics import KILOMETRES, METRICS, MINUTES, convert, plausible

ACTIVITY = "activity"
#: Below Ductile's limit of 1 MiB on state, with room for the rest of the state.
MAX_BYTES = 900_000
#: Of one metric on one day; a source that sends more cannot displace other days.
MAX_PER_DAY = 50
MAX_KEY = 100
#: A clock may be a little ahead; a measure of next week is a mistake.
MAX_DAYS_AHEAD = 2
MAX_DAYS_PLANNED = 400

Days = dict[str, Any]


class Measure(NamedTuple):
    metric: str
    day: date
    source: str
    #: Names the measure among those of the source; empty if the source has one value for each day.
    name: str
    #: A number; for an activity an object; None if it was withdrawn.
    value: Any

    @property
    def key(self) -> str:
        return f"{self.source}:{self.name}"[:MAX_KEY]


def read_measures(
    listed: Iterable[Any], source: str, zone: tzinfo | None, today: date
) -> tuple[list[Measure], list[str]]:
    """Return the measures that can be used, and why the others cannot."""
    good: list[Measure] = []
    problems: list[str] = []
    for index, item in enumerate(listed):
        try:
            good.append(read_measure(item, source, zone, today))
        except ValueError as error:
            problems.append(f"measures[{index}]: {error}")
    return good, problems


def read_measure(item: Any, source: str, zone: tzinfo | None, today: date) -> Measure:
    if not isinstance(item, dict):
        raise ValueError("is not an object")  # noqa: TRY004 - a fault of the data
    metric = item.get("metric")
    if metric != ACTIVITY and metric not in METRICS:
        raise ValueError(f"the metric {metric!r} is unknown; known are {', '.join((*METRICS, ACTIVITY))}")
    day = read_day(item, zone)
    planned = metric != ACTIVITY and METRICS[metric].planned
    if day > today + timedelta(days=MAX_DAYS_PLANNED if planned else MAX_DAYS_AHEAD):
        raise ValueError(f"{day} is in the future; is a clock wrong?")
    name = str(item.get("id") or "")
    return Measure(metric, day, str(item.get("source") or source), name, read_value(item, metric))


def read_day(item: Mapping[str, Any], zone: tzinfo | None) -> date:
    """Return the calendar day where the person was.

    `day` says it. Otherwise it is the day of the instant `at`: in the measure's `timezone`, else in the
    configured one, else by the offset that is written in `at`; UTC says nothing about the place, so that the
    time zone of the machine is taken then.
    """
    if isinstance(item.get("day"), str):
        return date.fromisoformat(item["day"])
    at = item.get("at")
    if isinstance(at, (int, float)) and not isinstance(at, bool):
        instant = datetime.fromtimestamp(at, timezone.utc)  # noqa: UP017 - older Pythons
    elif isinstance(at, str):
        instant = read_instant(at)
    else:
        raise ValueError("needs `day` or `at`")  # noqa: TRY004 - a fault of the data
    if instant.tzinfo is None:
        return instant.date()
    own = item.get("timezone")
    local = load_zone(own) if isinstance(own, str) and own else zone
    if local is None and instant.utcoffset():
        return instant.date()
    return instant.astimezone(local).date()


def read_instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # noqa: FURB162 - older Pythons


def load_zone(name: str) -> tzinfo:
    """Return the time zone. Raises ValueError for a name that the machine does not know."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - slow to load, and days are usually given

    try:
        return ZoneInfo(name)
    except Exception:  # noqa: BLE001 - an odd name raises KeyError, ValueError, OSError or a class of zoneinfo
        raise ValueError(f"the time zone {name!r} is unknown on this machine") from None


def read_value(item: Mapping[str, Any], metric: str) -> Any:
    if item.get("value", 0) is None:
        return None
    if metric != ACTIVITY:
        known = METRICS[metric]
        return plausible(known, convert(item.get("value"), item.get("unit"), known.units))
    return {
        "type": str(item.get("type") or "other")[:40],
        "minutes": round(convert(item.get("minutes", 0), "min", MINUTES), 1),
        "km": round(convert(item.get("km", 0), "km", KILOMETRES), 2),
    }


def merge(days: Mapping[str, Any], measures: Iterable[Measure], revision: int) -> tuple[Days, int]:
    """Return the days with the measures in them, and how many values changed."""
    merged = {day: {metric: dict(kept) for metric, kept in metrics.items()} for day, metrics in days.items()}
    changed = 0
    for measure in measures:
        changed += put(merged, measure, revision)
    return {day: merged[day] for day in sorted(merged)}, changed


def put(days: Days, measure: Measure, revision: int) -> bool:
    """Put one measure in its place and return whether a value changed.

    A named measure may have been on another day before.
    """
    known = [day for day in days if measure.key in days[day].get(measure.metric, {})]
    here = measure.day.isoformat()
    rivals = known if measure.name else [day for day in known if day == here]
    if any(days[day][measure.metric][measure.key][1] > revision for day in rivals):
        return False
    before = None
    for day in rivals:
        before = (day, days[day][measure.metric].pop(measure.key)[0])
        if not days[day][measure.metric]:
            del days[day][measure.metric]
    kept = days.setdefault(here, {}).setdefault(measure.metric, {})
    if len(kept) >= MAX_PER_DAY:
        del kept[min(kept, key=lambda key: kept[key][1])]
    kept[measure.key] = [measure.value, revision]
    return before != (here, measure.value)


def bounded(days: Mapping[str, Any], keep_days: int, today: date) -> Days:
    """Drop days that are too old, then the oldest until what is left is small enough for the state."""
    first = (today - timedelta(days=keep_days)).isoformat()
    kept = {day: days[day] for day in sorted(days) if day >= first and days[day]}
    size = len(json.dumps(kept))
    for day in list(kept):
        if size <= MAX_BYTES:
            break
        size -= len(json.dumps(kept.pop(day))) + len(day)
    return kept


def daily_series(days: Mapping[str, Any], metric: str) -> dict[date, float]:
    """Return one value for each day that has one."""
    series = {}
    for day in sorted(days):
        by_source: dict[str, list[float]] = {}
        for key, (value, _) in days[day].get(metric, {}).items():
            if value is not None:
                by_source.setdefault(key.partition(":")[0], []).append(value)
        if by_source:
            series[date.fromisoformat(day)] = combine(list(by_source.values()), total=METRICS[metric].total)
    return series


def combine(by_source: list[list[float]], *, total: bool) -> float:
    """Return the mean; of a total, the largest source, since two watches count the same steps."""
    if total:
        return max(sum(sorted(values)) for values in by_source)
    values = sorted(value for each in by_source for value in each)
    return sum(values) / len(values)


def activities(days: Mapping[str, Any], first: date, last: date) -> list[dict[str, Any]]:
    found = []
    for day in sorted(days):
        if first.isoformat() <= day <= last.isoformat():
            listed = days[day].get(ACTIVITY, {})
            found += [{"day": day, **listed[key][0]} for key in sorted(listed) if listed[key][0] is not None]
    return found
