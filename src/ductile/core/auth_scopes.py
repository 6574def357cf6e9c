"""Auth scopes of tokens: which granted scopes cover a needed one, and for which jobs."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

EVERYTHING = "*"


class AccessLevel(StrEnum):
    READ = "ro"
    WRITE = "rw"


class AccessResource(StrEnum):
    """The resources of scopes. A scope can also have the name of one plugin or pipeline instead."""

    PLUGIN = "plugin"
    JOBS = "jobs"
    #: The jobs that the same token started, and the jobs that follow from them.
    OWN = "own"
    EVENTS = "events"
    SYSTEM = "system"


class Reach(StrEnum):
    """The jobs for which a token may use an operation."""

    NONE = "none"
    OWN = "own"
    ALL = "all"


#: The subject of scopes that allow to run one pipeline: `pipeline:NAME`.
PIPELINE_SUBJECT = "pipeline"
#: The spelling of older configurations.
_OLDER = {"read:jobs": "jobs:ro", "read:events": "events:ro"}


@lru_cache(maxsize=1024)
def auth_scope(subject: str, right: AccessLevel) -> str:
    return f"{subject}:{right}"


def pipeline_scope(name: str) -> str:
    """Return the scope that allows to run this one pipeline."""
    return f"{PIPELINE_SUBJECT}:{name}"


def pipeline_of(scope: str) -> str | None:
    """Return the pipeline that a scope allows to run; None for any other scope."""
    subject, _, name = scope.partition(":")
    return name if subject == PIPELINE_SUBJECT and name else None


@lru_cache(maxsize=256)
def expand_scopes(granted: tuple[str, ...]) -> frozenset[str]:
    """Return the scopes with those that they imply: writing includes reading."""
    scopes = {_OLDER.get(scope, scope) for scope in granted}
    # `pipeline:rw` allows to run the pipeline named `rw`, and implies nothing.
    writing = (scope for scope in scopes if scope.endswith(":rw") and pipeline_of(scope) is None)
    return frozenset(scopes | {f"{scope.removesuffix(':rw')}:ro" for scope in writing})


def covers(granted: tuple[str, ...], scope: str) -> bool:
    """Return whether a token with these scopes may grant this scope to another: it can do as much itself.

    A scope for all plugins covers the same one for a single plugin or pipeline. A scope for the own jobs of
    the other token is covered by the same one for all jobs, together with the right to read events.
    """
    scope = _OLDER.get(scope, scope)
    subject, _, right = scope.partition(":")
    if scope == EVERYTHING:
        return EVERYTHING in granted
    if pipeline_of(scope) is not None:
        return allows(granted, (scope, auth_scope(AccessResource.PLUGIN, AccessLevel.WRITE)))
    if subject == AccessResource.OWN:
        events = auth_scope(AccessResource.EVENTS, AccessLevel.READ)
        return allows(granted, (f"{AccessResource.JOBS}:{right}",)) and allows(granted, (events,))
    general = () if subject in tuple(AccessResource) else (f"{AccessResource.PLUGIN}:{right}",)
    return allows(granted, (scope, *general))


def allows(granted: tuple[str, ...], needed: tuple[str, ...]) -> bool:
    """Return whether one of the needed scopes is granted; never without a needed scope."""
    scopes = expand_scopes(granted)
    return bool(needed) and (EVERYTHING in scopes or not scopes.isdisjoint(needed))


def decide_reach(granted: tuple[str, ...], needed: tuple[str, ...], own: str | None) -> Reach:
    """Return the jobs for which a token may use an operation that needs one of these scopes.

    `own` is the scope among them that suffices for the token's own jobs; None if there is none.
    """
    if allows(granted, tuple(scope for scope in needed if scope != own)):
        return Reach.ALL
    return Reach.OWN if own is not None and allows(granted, (own,)) else Reach.NONE


def sees_only_own(granted: tuple[str, ...]) -> bool:
    """Return whether responses to a token that starts jobs may be about its own jobs only.

    Such a token may not read all jobs, and has one of the scopes that are for agents with jobs of their own.
    Tokens without such a scope get the same responses as from older versions.
    """
    subjects = {scope.partition(":")[0] for scope in granted}
    limited = not subjects.isdisjoint((AccessResource.OWN, PIPELINE_SUBJECT))
    return limited and not allows(granted, (auth_scope(AccessResource.JOBS, AccessLevel.READ),))
