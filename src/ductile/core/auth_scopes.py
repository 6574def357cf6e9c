"""What a token may do: which granted scopes cover which needed one."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

EVERYTHING = "*"


class AccessLevel(StrEnum):
    READ = "ro"
    WRITE = "rw"


class AccessResource(StrEnum):
    """What a scope can be about, besides a single plugin by its name."""

    PLUGIN = "plugin"
    JOBS = "jobs"
    EVENTS = "events"
    SYSTEM = "system"


#: How older configurations say it.
_OLDER = {"read:jobs": "jobs:ro", "read:events": "events:ro"}


@lru_cache(maxsize=1024)
def auth_scope(subject: str, right: AccessLevel) -> str:
    return f"{subject}:{right}"


@lru_cache(maxsize=256)
def expand_scopes(granted: tuple[str, ...]) -> frozenset[str]:
    """The scopes with all that they imply: writing includes reading."""
    written = {_OLDER.get(each, each) for each in granted}
    return frozenset(written | {f"{each.removesuffix(':rw')}:ro" for each in written if each.endswith(":rw")})


def allows(granted: tuple[str, ...], needed: tuple[str, ...]) -> bool:
    """Whether one of the needed scopes is granted. Where none would do, nobody may."""
    have = expand_scopes(granted)
    return bool(needed) and (EVERYTHING in have or not have.isdisjoint(needed))
