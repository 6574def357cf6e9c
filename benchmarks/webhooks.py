"""Signed webhooks accepted per second, on disk and answered, beside a handler that only answers.

Both are served by the same listener and called by the same clients, which take their share of the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.table import Line, compared
from ductile.config.compile import compile_snapshot
from ductile.config.installed import Discovery, InstalledPlugin
from ductile.config.load import Seal, load_config
from ductile.core.signatures import sign_body
from ductile.listening.listener import Listener
from ductile.listening.protocol import Limits
from ductile.operations.desk import Desk
from ductile.protocol.manifest import Command, Manifest
from ductile.store.sqlite.store import open_sqlite_store
from ductile.telemetry.signals import Signals
from ductile.webhooks.application import WebhookApplication

CLIENTS = 32
REQUESTS = 6_400
SECRET = "a-shared-secret"  # noqa: S105 - of the benchmark itself
CONFIG = f"""
tokens: [{{name: shared, key: {SECRET}}}]
plugins: {{p: {{}}}}
webhooks: {{endpoints: [{{path: /hook, plugin: p, secret_ref: shared}}]}}
"""
BODY = b'{"text": "' + b"x" * 500 + b'"}'
REQUEST = (
    b"POST /hook HTTP/1.1\r\nHost: here\r\nX-Hub-Signature-256: %s\r\nContent-Length: %d\r\n\r\n"
    % (sign_body(SECRET, BODY).encode(), len(BODY))
) + BODY


def measure(directory: Path, rounds: int) -> list[Line]:
    ours, bare = [], []
    for number in range(rounds):
        bare.append(asyncio.run(rate(answering)))
        place = directory / f"webhooks-{number}"
        place.mkdir()
        ours.append(asyncio.run(accepting(place)))
    return [compared(f"signed webhooks, {CLIENTS} callers", ours, bare, "requests/s")]


async def answering(_scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
    """The least that a server can do: read the body and answer."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def accepting(place: Path) -> float:
    (place / "config.yaml").write_text(CONFIG)
    store = open_sqlite_store(place / "state.db", clock=lambda: datetime.now(UTC), dice=Random(1))
    loaded = load_config(place / "config.yaml", {}, seal=Seal.IGNORE)
    snapshot = compile_snapshot(loaded, Discovery(installed={"p": installed(place)}, refused={}))
    desk = Desk(store=store, snapshot=lambda: snapshot, now=lambda: datetime.now(UTC), dice=Random(2))
    try:
        done = await rate(WebhookApplication(desk, Signals()))
        accepted = (await store.counts()).depth
        assert accepted == REQUESTS, accepted
        return done
    finally:
        await store.close()


def installed(place: Path) -> InstalledPlugin:
    manifest = Manifest(name="p", entrypoint="run.sh", commands={"handle": Command(name="handle")})
    return InstalledPlugin(
        name="p",
        version="1",
        root=place,
        directory=place,
        entrypoint=place / "run.sh",
        manifest=manifest,
        fingerprint="-",
    )


async def rate(application: Any) -> float:
    async with listening(application) as port:
        began = time.perf_counter()
        await asyncio.gather(*(call(port, REQUESTS // CLIENTS) for _ in range(CLIENTS)))
        return REQUESTS / (time.perf_counter() - began)


@asynccontextmanager
async def listening(application: Any) -> AsyncIterator[int]:
    listener = Listener("webhooks", "127.0.0.1:0", application, Limits())
    (address,) = await listener.start()
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await listener.stop(1)


async def call(port: int, times: int) -> None:
    """Over one connection, each request after the answer to the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 202"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()
