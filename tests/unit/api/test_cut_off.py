"""Requests in progress when the daemon stops."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.configs import a_config, a_discovery, a_manifest, loaded
from builders.jobs import Clock
from builders.stores import open_sqlite
from ductile.api.application import ApiApplication
from ductile.api.endpoint import ApiServices
from ductile.api.endpoints import ENDPOINTS
from ductile.api.router import Router
from ductile.config.compile.compiler import compile_snapshot
from ductile.http.authentication import Authenticator
from ductile.operations.context import OperationContext
from ductile.store.port import Priority
from ductile.store.session import Session
from ductile.telemetry.signals import SignalBus

API = "api: {enabled: true, auth: {tokens: [{name: t, token: canary, scopes: ['*']}]}}\nplugins: {p: {}}\n"


class Call:
    """One request. Without a body, reading it blocks."""

    def __init__(self, body: bytes | None) -> None:
        self.scope: Any = {
            "type": "http",
            "method": "POST",
            "raw_path": b"/plugin/p/handle",
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer canary")],
            "client": ("127.0.0.1", 1),
        }
        self.body = body
        self.waited_for = asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if self.body is None:
            self.waited_for.set()
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


async def test_a_commit_in_progress_at_shutdown_is_answered_as_uncertain(tmp_path: Path) -> None:
    """A job is stored although the daemon stops during a slow commit; the response says that it may exist."""
    snapshot = compile_snapshot(loaded(a_config(tmp_path, API)), a_discovery(tmp_path, a_manifest("p")))
    clock = Clock()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=Random(1))
    context = OperationContext(store=store, snapshot=lambda: snapshot, now=clock, rng=Random(2))
    authenticator = Authenticator(
        lambda: snapshot, time.monotonic, lambda: datetime.now(UTC), lambda _peer, _too_many: None
    )
    services: Any = ApiServices(authenticator=authenticator, streams=None, metrics=None)  # type: ignore[arg-type]
    application = ApiApplication(context, services, Router(ENDPOINTS), SignalBus(), time.perf_counter)
    disk, stuck = threading.Event(), threading.Event()

    def block_writer(_session: Session) -> None:
        stuck.set()
        disk.wait(60)

    commit = store.run_write(Priority.SETTLE, block_writer)
    await asyncio.to_thread(stuck.wait, 60)
    complete, incomplete = Call(b'{"payload": {}}'), Call(None)
    tasks = [
        asyncio.create_task(application(call.scope, call.receive, call.send))
        for call in (complete, incomplete)
    ]
    async with asyncio.timeout(60):
        await incomplete.waited_for.wait()
        while not store.writer.waiting(Priority.ENQUEUE):  # noqa: ASYNC110 - there is no signal for it
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    disk.set()
    await commit
    # The submission may be in a later batch than the commit that hung. This write comes after both.
    await store.run_write(Priority.MAINTENANCE, lambda _session: None)
    assert [call.sent[0]["status"] for call in (complete, incomplete)] == [503, 503]
    assert b"may be on the queue" in complete.sent[1]["body"]
    assert b"the daemon is stopping" in incomplete.sent[1]["body"]
    depth = (await store.queue_counts()).depth
    await store.close()
    assert depth == 1
