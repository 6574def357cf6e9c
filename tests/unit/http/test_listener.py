"""The limits of a listener, with small values: slow heads, slow bodies, and clients that do not read."""

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
    http_scope: HTTPScope = scope  # type: ignore[assignment]  # the listener serves HTTP only
    try:
        body = await read_body(http_scope, receive, limit=100, seconds=seconds)
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
    """A connected client that sends when the test does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int, content: bytes = b"") -> Caller:
        caller = cls(*await asyncio.open_connection("127.0.0.1", port))
        caller._writer.write(content)
        return caller

    async def request(self, content: bytes = GET) -> bytes:
        """Send a request, and return the response up to the end of its body."""
        self._writer.write(content)
        async with asyncio.timeout(PATIENCE):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            return head + await self._reader.readexactly(int(length.partition(b": ")[2]))

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def send(self, content: bytes) -> None:
        """Send in a TCP segment of its own: the listener has a turn before the next."""
        self._writer.write(content)
        await self._writer.drain()
        for _ in range(5):
            await asyncio.sleep(0)

    async def read_rest(self) -> bytes:
        return await _until_closed(self._reader)

    async def is_closed(self) -> bool:
        return await _until_closed(self._reader) == b""

    def disconnect(self) -> None:
        self._writer.transport.abort()


class Refusals:
    """A collection of the refusals that a listener reports."""

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
    """A client that is silent or sends half a head does not hold a connection."""
    async with a_listener(head_seconds=0.1) as port:
        assert await exchange(port, b"") == b""
        assert await exchange(port, b"GET / HTT") == b""
        assert await exchange(port, b"GET / HTTP/1.1\r\nX: y\r\n") == b""


async def test_slow_bodies_time_out() -> None:
    """The response is 408, and the connection is closed."""
    async with a_listener() as port:
        response = await exchange(port, POST + b"Content-Length: 10\r\n\r\nab")
        assert response.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in response
        response = await exchange(port, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert response.startswith(b"HTTP/1.1 408 ")


async def test_bodies_are_limited() -> None:
    """The limit holds whether the length is declared or the body is chunked."""
    close = b"Connection: close\r\n"
    async with a_listener(count_patiently) as port:
        response = await exchange(port, POST + close + b"Content-Length: 100\r\n\r\n" + b"x" * 100)
        assert response.endswith(b'{"bytes":100}')
        response = await exchange(port, POST + close + b"Content-Length: 101\r\n\r\n" + b"x" * 101)
        assert response.startswith(b"HTTP/1.1 413 ")
        chunks = b"65\r\n" + b"x" * 0x65 + b"\r\n0\r\n\r\n"
        response = await exchange(port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert response.startswith(b"HTTP/1.1 413 ")


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    """The rest of the body is read and discarded, so that a reset does not lose the response."""
    async with a_listener() as port:
        content = POST + b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000
        assert (await exchange(port, content)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
@pytest.mark.parametrize(("size", "is_open"), [(100_000, True), (30_000_000, True), (30_000_000, False)])
async def test_clients_that_do_not_read_are_disconnected(size: int, is_open: bool) -> None:
    """The unread response may be in the kernel or in the process, and may be complete."""
    refusals, disconnected, loop = Refusals(), asyncio.Event(), asyncio.get_running_loop()
    refusals.signals.subscribe(lambda _event: disconnected.set(), (Signal.LISTENER_REFUSED,))

    async def send_large_body(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # there is no body
        await send({"type": "http.response.body", "body": b"x" * size, "more_body": is_open})
        await receive()

    async with a_listener(send_large_body, refusals.signals, unread_seconds=0.3) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, CLOSING_GET)
            async with asyncio.timeout(PATIENCE):
                await disconnected.wait()
    assert refusals.counts() == {"unread": 1}


async def test_heads_are_limited() -> None:
    """The response is 431 for one long header and for many short ones."""
    async with a_listener(head_bytes=1000) as port:
        for lines in (b"X: " + b"y" * 2000 + b"\r\n", b"X: y\r\n" * 300):
            response = await exchange(port, b"GET / HTTP/1.1\r\n" + lines + b"\r\n")
            assert response.startswith(b"HTTP/1.1 431 ") or response == b""


async def test_a_head_may_arrive_in_pieces() -> None:
    """A head within the limit is accepted in any number of pieces; an endless header is not."""
    head = b"GET / HTTP/1.1\r\n" + b"X-Some-Header: y\r\n" * 45 + b"\r\n"
    async with a_listener(say_hello, head_bytes=1000) as port:
        caller = await Caller.connect(port)
        for part in (head[:300], head[300:600]):
            await caller.send(part)
        assert (await caller.request(head[600:])).startswith(b"HTTP/1.1 200 ")
        await caller.send(b"GET / HTTP/1.1\r\nX: " + b"y" * 300)
        await caller.send(b"y" * 1200)  # one value without an end
        assert (await caller.read_rest()).startswith(b"HTTP/1.1 431 ")
        caller.disconnect()


async def test_the_end_of_a_body_does_not_count_as_head() -> None:
    """A body and the start of the next request may arrive in one piece."""
    async with a_listener(count_patiently, head_bytes=150) as port:
        caller = await Caller.connect(port)
        await caller.send(POST + b"Content-Length: 100\r\n\r\n")
        assert (await caller.request(b"x" * 100 + POST + b"Content-Le")).endswith(b'{"bytes":100}')
        assert (await caller.request(b"ngth: 0\r\n\r\n")).endswith(b'{"bytes":0}')
        caller.disconnect()


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01garbage\r\n\r\n", b"x" * 2000, POST + b"Transfer-Encoding: x\r\n\r\n"]
)
async def test_requests_before_garbage_are_answered(garbage: bytes) -> None:
    """Complete requests get their responses whatever follows; then the connection closes."""
    request = POST + b"Content-Length: 2\r\n\r\nab"
    async with a_listener(count_patiently) as port:
        assert (await exchange(port, request + garbage)).endswith(b'{"bytes":2}')
        responses = await exchange(port, request + POST + b"Content-Length: 3\r\n\r\nabc" + garbage)
        assert responses.count(b"HTTP/1.1 ") == 2
        assert responses.endswith(b'{"bytes":3}')


async def test_a_request_before_half_a_request_is_answered() -> None:
    """The head timeout of a pipelined request does not cut off the response before it."""
    entered, released = asyncio.Event(), asyncio.Event()

    async def respond_slowly(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.set()
        await released.wait()
        await send_json(send, 200, {"done": True})

    loop = asyncio.get_running_loop()
    async with a_listener(respond_slowly, head_seconds=0.1) as port:
        entered_task = asyncio.create_task(entered.wait())
        while True:  # a busy machine may let the head time out, so it is repeated
            asking = asyncio.create_task(exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /"))
            await asyncio.wait({asking, entered_task}, return_when=asyncio.FIRST_COMPLETED)
            if entered_task.done():
                break
        loop.call_later(0.3, released.set)  # three times as long as a head may take
        assert (await asking).endswith(b'{"done":true}')


async def test_malformed_chunks_are_refused() -> None:
    """The response is 400, and no part of the chunks reaches the request before."""
    malformed = POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    async with a_listener(count_patiently) as port:
        assert (await exchange(port, malformed)).startswith(b"HTTP/1.1 400 ")
        responses = await exchange(port, POST + b"Content-Length: 2\r\n\r\nab" + malformed)
        assert responses.count(b"HTTP/1.1 ") == 1
        assert responses.endswith(b'{"bytes":2}')


async def test_trailers_are_not_headers() -> None:
    """RFC 9110: trailers must not be merged into headers, which may authenticate the caller."""

    async def respond_with_header_names(
        scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        http_scope: HTTPScope = scope  # type: ignore[assignment]  # the listener serves HTTP only
        await read_body(http_scope, receive, limit=100, seconds=PATIENCE)
        await send_json(send, 200, {"names": " ".join(name.decode() for name, _ in http_scope["headers"])})

    trailer = b"1\r\na\r\n0\r\nAuthorization: x\r\n\r\n"
    async with a_listener(respond_with_header_names) as port:
        caller = await Caller.connect(port)
        response = await caller.request(POST + b"Transfer-Encoding: chunked\r\n\r\n" + trailer)
        assert response.endswith(b'{"names":"host transfer-encoding"}')
        caller.disconnect()


async def test_responses_without_a_body_are_sent() -> None:
    """The head of a response is sent with its body; a response to HEAD has no body."""
    async with a_listener() as port:
        caller = await Caller.connect(port)
        await caller.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await caller.head()).startswith(b"HTTP/1.1 200")
        assert (await caller.request(GET)).endswith(b'{"bytes":0}')
        caller.disconnect()


async def test_an_expected_continue_is_sent_before_the_body() -> None:
    async with a_listener(count_patiently) as port:
        caller = await Caller.connect(port, POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await caller.head()).startswith(b"HTTP/1.1 100")
        assert (await caller.request(b"hi")).endswith(b'{"bytes":2}')
        caller.disconnect()


async def test_idle_connections_are_closed() -> None:
    """The keep-alive time ends a connection without a further request."""
    async with a_listener(keep_alive_seconds=0.1) as port:
        response = await exchange(port, POST + b"Content-Length: 0\r\n\r\n")
        assert response.endswith(b'{"bytes":0}')


async def test_connections_beyond_the_limit_are_answered_503() -> None:
    """Idle connections count. When one closes, the next connection is served."""
    refusals = Refusals()
    async with a_listener(say_hello, refusals.signals, connections=2) as port:
        served_caller, idle_caller = await Caller.connect(port), await Caller.connect(port)
        assert (await served_caller.request()).startswith(b"HTTP/1.1 200 ")
        refused = await exchange(port, GET)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        assert b"connection: close\r\n" in refused
        assert (await served_caller.request()).startswith(b"HTTP/1.1 200 ")
        idle_caller.disconnect()
        while not (await exchange(port, CLOSING_GET)).startswith(b"HTTP/1.1 200 "):
            pass  # the listener has not noticed the close yet
        served_caller.disconnect()
    assert refusals.counts()["too_many_connections"] >= 1


async def test_connections_beyond_twice_the_limit_are_closed() -> None:
    """Refused connections that send nothing do not accumulate."""
    refusals = Refusals()
    async with a_listener(say_hello, refusals.signals, connections=1) as port:
        silent = [await Caller.connect(port) for _ in range(3)]
        assert await silent[2].is_closed()
        for caller in silent:
            caller.disconnect()
    assert refusals.counts() == {"too_many_connections": 1}


async def test_refusals_are_reported() -> None:
    """The first refusal of each reason is reported at once, and the others together at the end."""
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
    """Health checks succeed while every connection is in use; other paths get 503."""
    entered, released, refusals = asyncio.Event(), asyncio.Event(), Refusals()

    async def respond_slowly(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/slow":
            entered.set()
            await released.wait()
        await send_json(send, 200, {"path": scope["path"]})

    async with a_listener(respond_slowly, refusals.signals, connections=1) as port:
        busy_caller = await Caller.connect(port)
        slow_response = asyncio.create_task(busy_caller.request(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        await entered.wait()
        for path in (b"/healthz", b"/readyz"):
            response = await exchange(port, b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            assert response.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close\r\n" in response
        assert refusals.counts() == {}
        response = await exchange(port, GET)
        assert response.startswith(b"HTTP/1.1 503 ")
        assert refusals.counts() == {"too_many_connections": 1}
        released.set()
        await slow_response
        busy_caller.disconnect()


async def test_every_probe_of_a_burst_is_answered() -> None:
    """Connections of a burst are answered before more are accepted than the limit."""
    entered, released = asyncio.Semaphore(0), asyncio.Event()

    async def respond_slowly(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/slow":
            entered.release()
            await released.wait()
        await send_json(send, 200, {})

    limit = 128
    async with a_listener(respond_slowly, connections=limit) as port:
        busy_callers = [await Caller.connect(port) for _ in range(limit)]
        slow_responses = [
            asyncio.create_task(caller.request(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
            for caller in busy_callers
        ]
        for _ in busy_callers:
            await entered.acquire()
        burst = [
            socket.create_connection(("127.0.0.1", port)) for _ in range(2 * limit)
        ]  # no connection is accepted yet
        for probe in burst:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = await asyncio.to_thread(lambda: [probe.recv(15) for probe in burst])
        released.set()
        await asyncio.gather(*slow_responses)
        for probe in burst:
            probe.close()
        for caller in busy_callers:
            caller.disconnect()
    assert answers == [b"HTTP/1.1 200 OK"] * len(burst)


async def test_stopping_lets_responses_finish() -> None:
    """Requests in progress get their responses; new connections are not accepted."""
    entered, released = asyncio.Event(), asyncio.Event()

    async def respond_slowly(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.set()
        await released.wait()
        await send_json(send, 200, {"done": True})

    listener = Listener("test", "127.0.0.1:0", respond_slowly, ListenerLimits())
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
    """Responses 503 and 429 have Retry-After."""
    from ductile.errors import TooBusyError, TooManyError  # noqa: PLC0415 - only these two

    async def respond_with_error(
        _scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        await send_error(send, errors.pop(), close=True)

    errors: list[DuctileError] = [
        TooManyError("no", details={"retry_after_seconds": 7}),
        TooBusyError("no"),
    ]
    async with a_listener(respond_with_error) as port:
        assert b"retry-after: 1\r\n" in await exchange(port, b"GET / HTTP/1.1\r\n\r\n")
        assert b"retry-after: 7\r\n" in await exchange(port, b"GET / HTTP/1.1\r\n\r\n")


async def test_a_blank_line_does_not_keep_a_connection_open() -> None:
    """Bytes that begin no request do not stop the timer."""
    async with a_listener(head_seconds=0.1) as port:
        reader, writer = await _open_answered_connection(port, b"Content-Length: 0\r\n\r\n", b'{"bytes":0}')
        writer.write(b"\r\n")
        assert await _until_closed(reader) == b""
        writer.close()


async def test_the_rest_of_an_unread_body_does_not_keep_a_connection_open() -> None:
    """A client that is answered before its body is read cannot hold the connection with the rest."""

    async def refuse(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send_json(send, 401, {"known": False})

    async with a_listener(refuse, head_seconds=0.1) as port:
        reader, writer = await _open_answered_connection(
            port, b"Content-Length: 1000\r\n\r\n", b'{"known":false}'
        )
        writer.write(b"x")
        assert await _until_closed(reader) == b""
        writer.close()


async def _open_answered_connection(
    port: int, request_end: bytes, response: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection whose request was answered. A head that times out on a busy machine is repeated."""
    async with asyncio.timeout(PATIENCE):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST + request_end)
            try:
                await reader.readuntil(response)
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
    """The request in progress is notified of a disconnect although another request was sent after it."""
    noticed = asyncio.Event()

    async def send_until_gone(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # there is no body
        disconnected = asyncio.ensure_future(receive())
        while not disconnected.done():
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
    """Uvicorn formats a line per request if its logger has a handler."""
    async with a_listener():
        assert not logging.getLogger("uvicorn.access").hasHandlers()
