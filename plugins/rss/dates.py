"""Dates as feeds write them, which is in every way."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

UTC = timezone.utc  # noqa: UP017 - Python 3.10
#: Numbers between these are seconds (2001 to 5138), larger ones milliseconds.
_FIRST_SECONDS, _LAST_SECONDS = 10**9, 10**11
_ISO = re.compile(
    r"(?P<year>\d{4})(?:[-/.]?(?P<month>\d{2})(?:[-/.]?(?P<day>\d{2}))?)?"
    r"(?:[T\s]+(?P<hour>\d{1,2}):?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:[.,]\d+)?)?)?"
    r"\s*(?P<zone>Z|z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?$"
)
#: `strptime` of what neither the ISO form nor that of mail covers, after names of days have been removed.
_OTHERS = (
    "%B %d, %Y %I:%M %p", "%B %d, %Y %H:%M:%S", "%B %d, %Y %H:%M", "%B %d, %Y", "%B %d %Y",
    "%b %d, %Y %I:%M %p", "%b %d, %Y %H:%M:%S", "%b %d, %Y %H:%M", "%b %d, %Y", "%b %d %Y",
    "%d %B %Y %H:%M:%S", "%d %B %Y %H:%M", "%d %B %Y", "%d %b %Y", "%b %d %H:%M:%S %Y",
    "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %H:%M:%S",
    "%m/%d/%Y",
)  # fmt: skip
_DAY_NAME = re.compile(r"^(mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]?\s+", re.IGNORECASE)
_ZONE_NAME = re.compile(r"\s*\b(UTC|GMT|Z)$", re.IGNORECASE)


def parse_date(text: str | None) -> str | None:
    """Return the instant as RFC 3339 in UTC, or None. A date without a zone counts as UTC."""
    text = " ".join((text or "").split())
    if not text:
        return None
    for read in (_number, _iso, _mail, _other):
        try:
            found = read(text)
            if found is not None:
                return found.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    return None


def _number(text: str) -> datetime | None:
    if not re.fullmatch(r"\d{10,13}(\.\d+)?", text):
        return None
    value = float(text)
    if value < _FIRST_SECONDS:
        return None
    return datetime.fromtimestamp(value if value < _LAST_SECONDS else value / 1000, UTC)


def _iso(text: str) -> datetime | None:
    found = _ISO.match(text)
    if found is None:
        return None
    part = {name: int(found[name] or default) for name, default in _DEFAULTS.items()}
    # A leap second, and midnight at the end of a day.
    more = timedelta(seconds=part["second"] == _LEAP, days=part["hour"] == _MIDNIGHT)
    second, hour = min(part["second"], _LEAP - 1), part["hour"] % _MIDNIGHT
    when = datetime(part["year"], part["month"], part["day"], hour, part["minute"], second, tzinfo=UTC)
    return when + more - _offset(found["zone"])


_DEFAULTS = {"year": 1, "month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0}
_LEAP, _MIDNIGHT = 60, 24


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone[0] not in "+-":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    span = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -span if zone[0] == "-" else span


def _mail(text: str) -> datetime | None:
    """RFC 822 and its relatives, with names of zones; wrong names of days are ignored."""
    if not re.search(r"[a-z]{3}", text, re.IGNORECASE):
        return None
    found = parsedate_to_datetime(_DAY_NAME.sub("", text))
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _other(text: str) -> datetime | None:
    text = _ZONE_NAME.sub("", _DAY_NAME.sub("", text))
    for form in _OTHERS:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None
