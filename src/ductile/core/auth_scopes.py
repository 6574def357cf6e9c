"""Auth scopes of tokens: which granted scopes cover a needed one."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

EVERYTHING = "*"


class AccessLevel(StrEnum):
    READ = "ro"
    WRITE = "rw"


class AccessResource(StrEnum):
    """The resources of scopes, besides a single plugin by its name."""

    PLUGIN = "plugin"
    JOBS = "jobs"
    EVENTS = "events"
    SYSTEM = "system"


#: The spelling of older configurations.
_OLDER = {"read:jobs": "jobs:ro", "read:events": "events:ro"}


@lru_cache(maxsize=1024)
def auth_scope(subject: str, right: AccessLevel) -> str:
    return f"{subject}:{right}"


@lru_cache(maxsize=256)
def expand_scopes(granted: tuple[str, ...]) -> frozenset[str]:
    """Return the scopes with those that they imply: writing includes reading."""
    written = {_OLDER.get(each, each) for each in granted}
    return frozenset(written | {f"{each.removesuffix(':rw')}:ro" for each in written if each.endswith(":rw")})


def covers(granted: tuple[str, ...], scope: str) -> bool:
    """Return whether a token with these scopes may give this scope to another one: it can do as much itself.

    The right over all plugins covers that over one.
    """
    scope = _OLDER.get(scope, scope)
    subject, _, right = scope.partition(":")
    general = () if subject in tuple(AccessResource) else (f"{AccessResource.PLUGIN}:{right}",)
    return allows(granted, (scope, *general)) if scope != EVERYTHING else EVERYTHING in granted


def allows(granted: tuple[str, ...], needed: tuple[str, ...]) -> bool:
    """Return whether one of the needed scopes is granted; never without a needed scope."""
    have = expand_scopes(granted)
    return bool(needed) and (EVERYTHING in have or not have.isdisjoint(needed))
