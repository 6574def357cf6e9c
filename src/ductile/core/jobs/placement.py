"""Decide which queued jobs wait because no live node may run them, and which of these have waited too long.

A node offers the plugins that it has and whose jobs it claims. A job can belong to one node: that of
`ductile exec` needs the directory of its caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ductile.core.scripts import EXEC_PLUGIN
from ductile.struct import Value


class NodeOffer(Value):
    """A live node, and the plugins whose jobs it claims."""

    name: str
    plugins: frozenset[str]

    def may_run(self, plugin: str, node: str | None) -> bool:
        """Return whether the node may run jobs of a plugin that belong to `node`; None for any node."""
        return node in (None, self.name) and (plugin == EXEC_PLUGIN or plugin in self.plugins)


class JobGroup(Value):
    """Queued jobs of one plugin that are all ready, or all held because no node may run them."""

    plugin: str
    #: The node that alone may run them.
    node: str | None = None
    #: Since when the first of them is held; None if they are ready.
    held_since: datetime | None = None


class Placement(Value):
    """The changes to make: groups to hold, groups to make ready, and groups whose jobs have to end."""

    hold: tuple[JobGroup, ...] = ()
    release: tuple[JobGroup, ...] = ()
    expire: tuple[JobGroup, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hold or self.release or self.expire)


def decide_placement(
    groups: Iterable[JobGroup], offers: Sequence[NodeOffer] | None, *, now: datetime, max_hold: timedelta
) -> Placement:
    """Decide what happens to the groups. `offers` of None: the only daemon runs every job.

    A held group ends after `max_hold`.
    """
    hold, release, expire = [], [], []
    for group in groups:
        has_node = offers is None or any(offer.may_run(group.plugin, group.node) for offer in offers)
        if group.held_since is None:
            if not has_node:
                hold.append(group)
        elif has_node:
            release.append(group)
        elif now - group.held_since >= max_hold:
            expire.append(group)
    return Placement(hold=tuple(hold), release=tuple(release), expire=tuple(expire))
