"""Time zones: that of a name, and that of the system. Quick to import: every command shows times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zoneinfo import ZoneInfo

_LOCALTIME = Path("/etc/localtime")


def find_timezone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # unknown, a directory of the database, or not a name
        return None


def system_timezone(environ: Mapping[str, str], *, localtime: Path = _LOCALTIME) -> str:
    """Return the TZ variable if it is valid, else the target of the localtime link, else UTC."""
    zone = environ.get("TZ", "").removeprefix(":")
    if zone and find_timezone(zone):
        return zone
    _, separator, linked_zone = str(localtime.resolve()).rpartition("/zoneinfo/")
    return linked_zone if separator and find_timezone(linked_zone) else "UTC"
