"""Membership of nodes on a PostgreSQL server, and the notifications that they send each other.

Heartbeats have a connection of their own on the event loop: neither the queue of writes nor the lock of the
store delays them. Another connection listens.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import psycopg
from psycopg import errors

from ductile.core.jobs.placement import NodeOffer
from ductile.store.cluster import DEAD_AFTER
from ductile.store.model.nodes import Heartbeat, Node, NodeInfo
from ductile.store.notifier import Notifier
from ductile.store.postgres.connection import AsyncConnection, connect_async, translate
from ductile.store.postgres.notifications import changes_that_wake_all, decode_changes
from ductile.store.rows import from_json, to_json
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.jobs.placement import read_group
from ductile.struct import asdict

#: The longest time for connecting, and for each statement: shorter than the time until a node fences itself.
TIMEOUT_SECONDS = 3
RECONNECT_SECONDS = 1.0
#: A writer that has neither sent nor read anything for this long is stopped or cut off.
STUCK_SECONDS = 5.0

#: `Store.run_read`, for the list of nodes.
ReadNodes = Callable[[Callable[[Session], tuple[Node, ...]]], Awaitable[tuple[Node, ...]]]


class PostgresCluster:
    """`ductile.store.cluster.Cluster` on a PostgreSQL server."""

    def __init__(
        self,
        url: str,
        queries: Mapping[str, str],
        notifier: Notifier,
        *,
        clock: Callable[[], datetime],
        read: ReadNodes,
        channel: str,
        sender: str,
        is_blocked: Callable[[], bool],
    ) -> None:
        """`sender` is the name of this process in notifications; it publishes its own changes without them.
        `is_blocked` returns whether the writer has waited for long, perhaps for the lock of the store.
        """
        self._url = url
        self._queries = queries
        self._notifier = notifier
        self._clock = clock
        self._read = read
        self._channel = channel
        self._sender = sender
        self._is_blocked = is_blocked
        self._connection: AsyncConnection | None = None
        #: Held while a statement runs: the connection runs one at a time.
        self._in_use = asyncio.Lock()

    async def join(self, node: NodeInfo) -> Node | None:
        await self._fetch("forget_nodes")
        try:
            await self._fetch("join_node", **_node_columns(node))
        except errors.UniqueViolation:
            live = [other for other in await self.nodes() if other.info.name == node.name]
            return live[0] if live else None
        return None

    async def renew(self, node: NodeInfo) -> Heartbeat | None:
        rows = await self._fetch("renew_node", **_node_columns(node), dead_after=DEAD_AFTER.total_seconds())
        if not rows:
            return None
        if self._is_blocked():
            await self._fetch("end_stuck_writers", seconds=STUCK_SECONDS)
        is_leader, silence, has_orphans, cancelled, server_seconds, offers, groups = rows[0]
        return Heartbeat(
            is_leader=is_leader,
            longest_silence=silence,
            has_orphans=has_orphans,
            cancelled=tuple(cancelled),
            server_seconds=server_seconds,
            offers=tuple(
                NodeOffer(name=name, plugins=frozenset(plugins))
                for name, plugins in from_json(offers or "[]")
            ),
            groups=tuple(read_group(group) for group in from_json(groups or "[]")),
        )

    async def end_silent_nodes(self) -> tuple[str, ...]:
        rows = await self._fetch("end_silent_nodes", dead_after=DEAD_AFTER.total_seconds())
        return tuple(name for (name,) in rows)

    async def end_node(self, owner: str) -> None:
        await self._fetch("end_node", owner=owner)

    async def nodes(self) -> tuple[Node, ...]:
        return await self._read(_read_nodes)

    async def listen(self) -> None:
        while True:
            try:
                connection = await connect_async(self._url, application_name="ductile listener")
                async with connection:
                    await connection.execute(f'LISTEN "{self._channel}"'.encode())
                    self._notifier.publish(changes_that_wake_all(self._clock()))
                    async for notification in connection.notifies():
                        sender, changes = decode_changes(notification.payload)
                        if sender != self._sender:
                            self._notifier.publish(changes)
            except psycopg.Error:
                # The server cannot be reached. Meanwhile the loops poll; afterwards they read everything.
                await asyncio.sleep(RECONNECT_SECONDS)

    async def close(self) -> None:
        async with self._in_use:
            await self._drop()

    async def _fetch(self, query: str, **values: SqlValue) -> list[tuple[Any, ...]]:
        """Run a statement on the connection of the heartbeats; a lost connection is opened again once."""
        async with self._in_use:
            try:
                try:
                    return await self._fetch_once(query, values)
                except psycopg.OperationalError:
                    await self._drop()
                    return await self._fetch_once(query, values)
            except errors.UniqueViolation:
                raise
            except psycopg.Error as error:
                raise translate(error) from error

    async def _fetch_once(self, query: str, values: Mapping[str, SqlValue]) -> list[tuple[Any, ...]]:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = await connect_async(
                self._url, application_name="ductile node", connect_timeout=TIMEOUT_SECONDS
            )
        # Cancelling a statement would wait for the server. Shutting down the connection does not.
        timeout = asyncio.get_running_loop().call_later(TIMEOUT_SECONDS, _shut_down, connection.fileno())
        try:
            cursor = await connection.execute(self._queries[query].encode(), values)
            return await cursor.fetchall() if cursor.description else []
        finally:
            timeout.cancel()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()


def _shut_down(fileno: int) -> None:
    """Shut down a socket that another object owns."""
    with suppress(OSError), socket.socket(fileno=os.dup(fileno)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _node_columns(node: NodeInfo) -> dict[str, SqlValue]:
    return {**asdict(node), "plugins": to_json(list(node.plugins))}


def _read_nodes(session: Session) -> tuple[Node, ...]:
    rows = session.fetch_all("live_nodes", dead_after=DEAD_AFTER.total_seconds())
    # The first live node is the leader: the nodes are in the order of their start.
    leader = next((owner for owner, *_, is_live in rows if is_live), None)
    nodes = [
        Node(
            info=NodeInfo(
                owner=row[0],
                name=row[1],
                host=row[2],
                machine=row[3],
                version=row[4],
                config=row[5],
                workers=row[6],
                plugins=tuple(from_json(row[7])),
            ),
            started_at=row[8],
            heartbeat_at=row[9],
            silent_seconds=row[10],
            is_leader=row[0] == leader,
            running=row[11],
        )
        for row in rows
    ]
    return tuple(sorted(nodes, key=lambda node: not node.is_leader))
