"""Decide whether a submission is a duplicate, which queued job starts next, and why a job has to wait.

The store reads the oldest ready job of each plugin. A job that may not start has a `Hold` and is not ready,
so the decision depends on the number of plugins, not of jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from ductile.core.jobs.model import Hold
from ductile.struct import Value, field

_NO_CAP = sys.maxsize


class Caps(Value):
    """Limits of concurrent jobs: in total on this node, and per plugin on all nodes together."""

    workers: int
    plugins: Mapping[str, int] = field(default_factory=dict)
    #: The plugins whose jobs this node may claim; None: all.
    claimable: frozenset[str] | None = None
    #: The name of this node, for jobs that belong to one; None: there is only this one.
    node: str | None = None

    def of(self, plugin: str) -> int:
        """Return the cap of a plugin. Without its own, only the workers limit it."""
        if self.claimable is not None and plugin not in self.claimable:
            return 0
        return self.plugins.get(plugin, _NO_CAP)


def choose_next_plugin(
    oldest_ready: Mapping[str, int], running: Mapping[str, int], caps: Caps, *, busy: int
) -> str | None:
    """Return the plugin whose oldest ready job starts next: the oldest among the plugins below their cap.

    `busy` is the number of workers of this node that have a job.
    """
    if busy >= caps.workers:
        return None
    return min(
        (plugin for plugin in oldest_ready if running.get(plugin, 0) < caps.of(plugin)),
        key=lambda plugin: oldest_ready[plugin],
        default=None,
    )


def decide_hold(*, predecessor_live: bool, key_taken: bool, behind_suspect: bool = False) -> Hold | None:
    """Return why a queued job whose retry time, if any, has come has to wait; None if it is ready.

    At most one job of a dedupe key is ready or running, and at most one suspect: a job that ran when the
    daemon crashed. The others wait and are released one by one, oldest first.
    """
    if predecessor_live:
        return Hold.PREDECESSOR
    if key_taken:
        return Hold.KEY
    return Hold.SUSPECT if behind_suspect else None


#: The most characters of a key.
MAX_KEY_LENGTH = 1024


class KeyNamespace(StrEnum):
    """The prefixes of stored keys: equal keys of different namespaces do not match.

    Explicit keys (of callers, commands, events and routes) are one namespace. Keys of tokens that see their
    own jobs only are another one: they match jobs of the same token. Plugins, logs, the ledger and responses
    contain the key without its namespace (`bare_key`).
    """

    EXPLICIT = "key"
    IDEMPOTENCY = "idem"
    DELIVERY = "delivery"
    OWN = "own"


#: Namespaces whose keys contain an owner: a token or an endpoint.
_OWNED_PREFIXES = (f"{KeyNamespace.IDEMPOTENCY}:", f"{KeyNamespace.DELIVERY}:", f"{KeyNamespace.OWN}:")
#: Before schema version 3, keys of events had their own namespace; old stores can contain it.
_LEGACY_EVENT_PREFIX = "event:"


class KeyMatch(Value):
    """A job with the same plugin, command and key."""

    job_id: str
    #: None while the job is queued or running.
    succeeded_at: datetime | None


def normalise_key(key: str | None) -> str | None:
    """Return the key without surrounding space; None if it is blank."""
    return (key.strip() or None) if key is not None else None


def namespaced_key(namespace: KeyNamespace, key: str | None, *, owner: str | None = None) -> str | None:
    """Return the key as stored: its namespace, its owner (token, endpoint) if any, and its text."""
    text = normalise_key(key)
    if text is None:
        return None
    if owner is None:
        return f"{namespace}:{text}"
    # Escaped, so that the end of the owner is unambiguous.
    return f"{namespace}:{owner.replace('%', '%25').replace(':', '%3A')}:{text}"


def bare_key(stored: str | None) -> str | None:
    """Return a stored key without its namespace."""
    if stored is None:
        return None
    if stored.startswith(_OWNED_PREFIXES):
        return stored.split(":", 2)[-1]
    return stored.removeprefix(
        _LEGACY_EVENT_PREFIX if stored.startswith(_LEGACY_EVENT_PREFIX) else f"{KeyNamespace.EXPLICIT}:"
    )


def find_duplicate(
    matches: tuple[KeyMatch, ...], *, window: timedelta, has_own_window: bool, now: datetime
) -> KeyMatch | None:
    """Return the match that makes a submission a duplicate; None if it can be enqueued.

    A success counts within the window. A queued or running match counts only if the call has its own window;
    otherwise a second job with the key is accepted and waits.
    """
    for match in matches:
        if match.succeeded_at is None:
            if has_own_window:
                return match
        elif key_is_taken(match.succeeded_at, window=window, now=now):
            return match
    return None


def key_is_taken(ended_at: datetime | None, *, window: timedelta, now: datetime) -> bool:
    """Return whether a job that ended at `ended_at` still reserves its key; one that has not ended does."""
    return ended_at is None or now - ended_at <= window
