"""Time zones: look one up by name, and find the one of this machine."""

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
    except (OSError, ValueError, KeyError):  # unknown, a directory of the database, or not a name
        return None


def all_timezones() -> list[str]:
    return sorted(available_timezones())


def system_timezone(environ: Mapping[str, str], *, localtime: Path = _LOCALTIME) -> str:
    """Return the TZ variable if it is valid, else the target of the localtime link, else UTC."""
    named = environ.get("TZ", "").removeprefix(":")
    if named and find_timezone(named):
        return named
    _, found, linked = str(localtime.resolve()).rpartition("/zoneinfo/")
    return linked if found and find_timezone(linked) else "UTC"
