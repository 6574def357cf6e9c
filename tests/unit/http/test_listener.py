"""The limits of a listener, made small: slow heads, slow bodies, clients that do not read."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from ductile.errors import DuctileError
from ductile.http.body import ClientDisconnectedError, read_body, refuse_body
from ductile.http.responses import send_error, send_json
from ductile.http.server import Listener, ListenerLimits
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

PATIENCE = 60.0
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSING_GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def count_bytes(
    scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable, seconds: float = 0.1
) -> None:
    """Respond with the length of the body, within small limits."""
    asked: HTTPScope = scope  # type: ignore[assignment]  # the listener makes no other
    try:
        body = await read_body(asked, receive, limit=100, seconds=seconds)
    except ClientDisconnectedError:
        return
    except DuctileError as error:
        await refuse_body(receive, send, error)
    else:
        await send_json(send, 200, {"bytes": len(body)})


count_patiently = partial(count_bytes, seconds=PATIENCE)


@asynccontextmanager
async def a_listener(
    application: object = count_bytes, signals: SignalBus | None = None, **limits: float
) -> AsyncIterator[int]:
    listener = Listener("test", "127.0.0.1:0", application, ListenerLimits(**limits), signals)  # type: ignore[arg-type]  # small ones
    (address,) = await listener.start()
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await listener.stop(1.0)


async def exchange(port: int, content: bytes) -> bytes:
    """Return what is received until the listener closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


class Caller:
    """A connected client that sends when the test says so."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, port: int, content: bytes = b"") -> Caller:
        caller = cls(*await asyncio.open_connection("127.0.0.1", port))
        caller._writer.write(content)
        return caller

    async def ask(self, content: bytes = GET) -> bytes:
        """Send a request. Returns the response up to the end of its body."""
        self._writer.write(content)
        async with asyncio.timeout(PATIENCE):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            return head + await self._reader.readexactly(int(length.partition(b": ")[2]))

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def say(self, content: bytes) -> None:
        """Send in a TCP segment of its own: the listener has a turn before the next."""
        self._writer.write(content)
        await self._writer.drain()
        for _ in range(5):
            await asyncio.sleep(0)

    async def rest(self) -> bytes:
        return await _until_closed(self._reader)

    async def is_closed(self) -> bool:
        return await _until_closed(self._reader) == b""

    def go(self) -> None:
        self._writer.transport.abort()


class Refusals:
    """Collects the refusals that a listener reports."""

    def __init__(self) -> None:
        self.signals = SignalBus()
        self.events: list[SignalEvent] = []
        self.signals.subscribe(self.events.append, (Signal.LISTENER_REFUSED,))

    def counts(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for event in self.events:
            total.update(cast("dict[str, int]", event.data["refused"]))
        return dict(total)


async def say_hello(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    await send_json(send, 200, {"hello": True})


async def test_slow_heads_time_out() -> None:
    """A silent client, or one that sends half a head, does not hold a connection."""
    async with a_listener(head_seconds=0.1) as port:
        assert await exchange(port, b"") == b""
        assert await exchange(port, b"GET / HTT") == b""
        assert await exchange(port, b"GET / HTTP/1.1\r\nX: y\r\n") == b""


async def test_slow_bodies_time_out() -> None:
    """408, and the connection is closed."""
    async with a_listener() as port:
        answer = await exchange(port, POST + b"Content-Length: 10\r\n\r\nab")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer
        answer = await exchange(port, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_bodies_are_limited() -> None:
    """The limit holds whether the length is declared or the body is chunked."""
    close = b"Connection: close\r\n"
    async with a_listener() as port:
        answer = await exchange(port, POST + close + b"Content-Length: 100\r\n\r\n" + b"x" * 100)
        assert answer.endswith(b'{"bytes":100}')
        answer = await exchange(port, POST + close + b"Content-Length: 101\r\n\r\n" + b"x" * 101)
        assert answer.startswith(b"HTTP/1.1 413 ")
        chunks = b"65\r\n" + b"x" * 0x65 + b"\r\n0\r\n\r\n"
        answer = await exchange(port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    """The rest of the body is read and dropped, so that the response is not lost in a reset."""
    async with a_listener() as port:
        content = POST + b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000
        assert (await exchange(port, content)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
@pytest.mark.parametrize(("size", "more"), [(100_000, True), (30_000_000, True), (30_000_000, False)])
async def test_clients_that_do_not_read_are_disconnected(size: int, more: bool) -> None:
    """Whether the rest of the response waits in our kernel or in our process, and whether it is complete."""
    refusals, disconnected, loop = Refusals(), asyncio.Event(), asyncio.get_running_loop()
    refusals.signals.subscribe(lambda _event: disconnected.set(), (Signal.LISTENER_REFUSED,))

    async def send_much(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # there is no body
        await send({"type": "http.response.body", "body": b"x" * size, "more_body": more})
        await receive()

    async with a_listener(send_much, refusals.signals, unread_seconds=0.3) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, ("127.0.0.1", port))
            await loop.sock_sendall(deaf, CLOSING_GET)
            async with asyncio.timeout(PATIENCE):
                await disconnected.wait()
    assert refusals.counts() == {"unread": 1}


async def test_heads_are_limited() -> None:
    """431 for one long header and for many short ones."""
    async with a_listener(head_bytes=1000) as port:
        for lines in (b"X: " + b"y" * 2000 + b"\r\n", b"X: y\r\n" * 300):
            answer = await exchange(port, b"GET / HTTP/1.1\r\n" + lines + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""


async def test_a_head_may_arrive_in_pieces() -> None:
    """A head within the limit is accepted in any number of pieces; an endless header is not."""
    head = b"GET / HTTP/1.1\r\n" + b"X-Some-Header: y\r\n" * 45 + b"\r\n"
    async with a_listener(say_hello, head_bytes=1000) as port:
        caller = await Caller.of(port)
        for part in (head[:300], head[300:600]):
            await caller.say(part)
        assert (await caller.ask(head[600:])).startswith(b"HTTP/1.1 200 ")
        await caller.say(b"GET / HTTP/1.1\r\nX: " + b"y" * 300)
        await caller.say(b"y" * 1200)  # of one value that does not end
        assert (await caller.rest()).startswith(b"HTTP/1.1 431 ")
        caller.go()


async def test_the_end_of_a_body_does_not_count_as_head() -> None:
    """A body and the start of the next request may arrive in one piece."""
    async with a_listener(count_patiently, head_bytes=150) as port:
        caller = await Caller.of(port)
        await caller.say(POST + b"Content-Length: 100\r\n\r\n")
        assert (await caller.ask(b"x" * 100 + POST + b"Content-Le")).endswith(b'{"bytes":100}')
        assert (await caller.ask(b"ngth: 0\r\n\r\n")).endswith(b'{"bytes":0}')
        caller.go()


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01garbage\r\n\r\n", b"x" * 2000, POST + b"Transfer-Encoding: x\r\n\r\n"]
)
async def test_requests_before_garbage_are_answered(garbage: bytes) -> None:
    """Complete requests get their responses whatever follows them; then the connection closes."""
    asked = POST + b"Content-Length: 2\r\n\r\nab"
    async with a_listener(count_patiently) as port:
        assert (await exchange(port, asked + garbage)).endswith(b'{"bytes":2}')
        twice = await exchange(port, asked + POST + b"Content-Length: 3\r\n\r\nabc" + garbage)
        assert twice.count(b"HTTP/1.1 ") == 2
        assert twice.endswith(b'{"bytes":3}')


async def test_a_request_before_half_a_request_is_answered() -> None:
    """The head timeout of a pipelined request does not cut off the response before it."""
    entered, released = asyncio.Event(), asyncio.Event()

    async def slow(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.set()
        await released.wait()
        await send_json(send, 200, {"done": True})

    loop = asyncio.get_running_loop()
    async with a_listener(slow, head_seconds=0.1) as port:
        inside = asyncio.create_task(entered.wait())
        while True:  # again, where the machine was too busy for the head to come in time
            asking = asyncio.create_task(exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /"))
            await asyncio.wait({asking, inside}, return_when=asyncio.FIRST_COMPLETED)
            if inside.done():
                break
        loop.call_later(0.3, released.set)  # three times as long as a head may take
        assert (await asking).endswith(b'{"done":true}')


async def test_malformed_chunks_are_refused() -> None:
    """400, and nothing of them reaches the request before."""
    bad = POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    async with a_listener(count_patiently) as port:
        assert (await exchange(port, bad)).startswith(b"HTTP/1.1 400 ")
        both = await exchange(port, POST + b"Content-Length: 2\r\n\r\nab" + bad)
        assert both.count(b"HTTP/1.1 ") == 1
        assert both.endswith(b'{"bytes":2}')


async def test_trailers_are_not_headers() -> None:
    """RFC 9110: trailers must not be merged into headers, which may authenticate the caller."""

    async def tell_headers(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        asked: HTTPScope = scope  # type: ignore[assignment]  # the listener makes no other
        await read_body(asked, receive, limit=100, seconds=PATIENCE)
        await send_json(send, 200, {"names": " ".join(name.decode() for name, _ in asked["headers"])})

    trailer = b"1\r\na\r\n0\r\nAuthorization: x\r\n\r\n"
    async with a_listener(tell_headers) as port:
        caller = await Caller.of(port)
        answer = await caller.ask(POST + b"Transfer-Encoding: chunked\r\n\r\n" + trailer)
        assert answer.endswith(b'{"names":"host transfer-encoding"}')
        caller.go()


async def test_responses_without_a_body_are_sent() -> None:
    """The head of a response is held until its body is written; that of a HEAD request has none."""
    async with a_listener() as port:
        caller = await Caller.of(port)
        await caller.say(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await caller.head()).startswith(b"HTTP/1.1 200")
        assert (await caller.ask(GET)).endswith(b'{"bytes":0}')
        caller.go()


async def test_an_expected_continue_is_sent_before_the_body() -> None:
    async with a_listener(count_patiently) as port:
        caller = await Caller.of(port, POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await caller.head()).startswith(b"HTTP/1.1 100")
        assert (await caller.ask(b"hi")).endswith(b'{"bytes":2}')
        caller.go()


async def test_idle_connections_are_closed() -> None:
    """The keep-alive time ends a connection without a further request."""
    async with a_listener(keep_alive_seconds=0.1) as port:
        answer = await exchange(port, POST + b"Content-Length: 0\r\n\r\n")
        assert answer.endswith(b'{"bytes":0}')


async def test_connections_beyond_the_limit_are_answered_503() -> None:
    """Idle connections count. When one closes, the next connection is served."""
    refusals = Refusals()
    async with a_listener(say_hello, refusals.signals, connections=2) as port:
        served, idle = await Caller.of(port), await Caller.of(port)
        assert (await served.ask()).startswith(b"HTTP/1.1 200 ")
        refused = await exchange(port, GET)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        assert b"connection: close\r\n" in refused
        assert (await served.ask()).startswith(b"HTTP/1.1 200 ")
        idle.go()
        while not (await exchange(port, CLOSING_GET)).startswith(b"HTTP/1.1 200 "):
            pass  # until the listener has noticed the close
        served.go()
    assert refusals.counts()["too_many_connections"] >= 1


async def test_connections_beyond_twice_the_limit_are_closed() -> None:
    """Refused connections that send nothing do not accumulate."""
    refusals = Refusals()
    async with a_listener(say_hello, refusals.signals, connections=1) as port:
        silent = [await Caller.of(port) for _ in range(3)]
        assert await silent[2].is_closed()
        for caller in silent:
            caller.go()
    assert refusals.counts() == {"too_many_connections": 1}


async def test_refusals_are_reported() -> None:
    """The application does not see them: the first of each reason is reported at once, the rest together."""
    refusals = Refusals()
    async with a_listener(signals=refusals.signals, head_bytes=1000) as port:
        await exchange(port, b"HELLO\r\n\r\n")
        (first,) = refusals.events
        assert first.data == {"listener": "test", "refused": {"malformed": 1}, "peer": "127.0.0.1"}
        for _ in range(4):
            await exchange(port, b"GET / HTTP/1.1\r\nX: " + b"y" * 2000 + b"\r\n\r\n")
        assert [event.data["refused"] for event in refusals.events[1:]] == [{"head_too_large": 1}]
    assert refusals.events[2].data["refused"] == {"head_too_large": 3}
    assert refusals.events[2].message == "The test listener refused callers: 3 head too large."


async def test_probes_are_answered_when_the_listener_is_full() -> None:
    """Health checks succeed while every connection is in use; other paths are answered 503."""
    entered, released, refusals = asyncio.Event(), asyncio.Event(), Refusals()

    async def slow(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/slow":
            entered.set()
            await released.wait()
        await send_json(send, 200, {"path": scope["path"]})

    async with a_listener(slow, refusals.signals, connections=1) as port:
        inside = await Caller.of(port)
        served = asyncio.create_task(inside.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        await entered.wait()
        for path in (b"/healthz", b"/readyz"):
            answer = await exchange(port, b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close\r\n" in answer
        assert refusals.counts() == {}
        answer = await exchange(port, GET)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert refusals.counts() == {"too_many_connections": 1}
        released.set()
        await served
        inside.go()


async def test_every_probe_of_a_burst_is_answered() -> None:
    """Connections of one burst are answered before so many are accepted that some would be closed."""
    entered, released = asyncio.Semaphore(0), asyncio.Event()

    async def slow(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/slow":
            entered.release()
            await released.wait()
        await send_json(send, 200, {})

    limit = 128
    async with a_listener(slow, connections=limit) as port:
        inside = [await Caller.of(port) for _ in range(limit)]
        served = [asyncio.create_task(each.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")) for each in inside]
        for _ in inside:
            await entered.acquire()
        burst = [
            socket.create_connection(("127.0.0.1", port)) for _ in range(2 * limit)
        ]  # none is accepted yet
        for probe in burst:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = await asyncio.to_thread(lambda: [probe.recv(15) for probe in burst])
        released.set()
        await asyncio.gather(*served)
        for probe in burst:
            probe.close()
        for caller in inside:
            caller.go()
    assert answers == [b"HTTP/1.1 200 OK"] * len(burst)


async def test_stopping_lets_responses_finish() -> None:
    """Requests in progress get their responses; new connections are not accepted."""
    entered, released = asyncio.Event(), asyncio.Event()

    async def slow(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.set()
        await released.wait()
        await send_json(send, 200, {"done": True})

    listener = Listener("test", "127.0.0.1:0", slow, ListenerLimits())
    (address,) = await listener.start()
    port = int(address.rpartition(":")[2])
    asking = asyncio.create_task(exchange(port, GET))
    await entered.wait()
    stopping = asyncio.create_task(listener.stop(PATIENCE))
    await asyncio.sleep(0)
    released.set()
    assert (await asking).endswith(b'{"done":true}')
    await stopping


async def test_errors_carry_retry_after() -> None:
    """503 and 429 carry Retry-After."""
    from ductile.errors import TooBusyError, TooManyError  # noqa: PLC0415 - only these two

    async def busy(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send_error(send, errors.pop(), close=True)

    errors: list[DuctileError] = [
        TooManyError("no", details={"retry_after_seconds": 7}),
        TooBusyError("no"),
    ]
    async with a_listener(busy) as port:
        assert b"retry-after: 1\r\n" in await exchange(port, b"GET / HTTP/1.1\r\n\r\n")
        assert b"retry-after: 7\r\n" in await exchange(port, b"GET / HTTP/1.1\r\n\r\n")


async def test_a_blank_line_does_not_keep_a_connection_open() -> None:
    """Bytes after a response that begin no request do not stop the timer."""
    async with a_listener(head_seconds=0.1) as port:
        reader, writer = await _answered(port, b"Content-Length: 0\r\n\r\n", b'{"bytes":0}')
        writer.write(b"\r\n")
        assert await _until_closed(reader) == b""
        writer.close()


async def test_the_rest_of_an_unread_body_does_not_keep_a_connection_open() -> None:
    """A client that was answered before its body was read cannot hold the connection with the rest."""

    async def refuse(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send_json(send, 401, {"known": False})

    async with a_listener(refuse, head_seconds=0.1) as port:
        reader, writer = await _answered(port, b"Content-Length: 1000\r\n\r\n", b'{"known":false}')
        writer.write(b"x")
        assert await _until_closed(reader) == b""
        writer.close()


async def _answered(
    port: int, rest: bytes, answer: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection whose request was answered. On a busy machine a head may time out: try again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST + rest)
            try:
                await reader.readuntil(answer)
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
            else:
                return reader, writer


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_a_disconnect_reaches_pipelined_requests() -> None:
    """The request in progress learns of a disconnect even if another one was sent after it."""
    noticed = asyncio.Event()

    async def send_until_gone(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # there is no body
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)
        noticed.set()

    async with a_listener(send_until_gone) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET * 2)
        assert await reader.read(1)
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE):
            await noticed.wait()


async def test_uvicorn_formats_no_access_log() -> None:
    """Uvicorn formats a line for each request if its logger has any handler."""
    async with a_listener():
        assert not logging.getLogger("uvicorn.access").hasHandlers()
