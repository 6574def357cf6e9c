"""Time zones: whether one exists, and which one this machine is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCALTIME = Path("/etc/localtime")


def find_timezone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # unknown, a directory of the database, or not a name at all
        return None


def all_timezones() -> list[str]:
    """By name, for a hint at the one that was meant."""
    return sorted(available_timezones())


def system_timezone(environ: Mapping[str, str], *, localtime: Path = _LOCALTIME) -> str:
    """The name of the machine's zone: the TZ variable, else where the localtime link points, else UTC."""
    named = environ.get("TZ", "").removeprefix(":")
    if named and find_timezone(named):
        return named
    _, found, linked = str(localtime.resolve()).rpartition("/zoneinfo/")
    return linked if found and find_timezone(linked) else "UTC"
