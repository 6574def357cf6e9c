"""The limits of a listener, made small: slow heads, slow bodies, readers who do not read."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from uvicorn.config import Config

from ductile.errors import DuctileError
from ductile.http.body import ClientDisconnectedError, read_body, refuse_body
from ductile.http.listener import Listener
from ductile.http.protocol import BoundedProtocol, ListenerLimits, ListenerState
from ductile.http.rejections import RejectionLog, RejectionReason
from ductile.http.responses import send_error, send_json
from ductile.http.socket_queue import unread_bytes
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

PATIENCE = 20.0
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def count_bytes(
    scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable, seconds: float = 0.1
) -> None:
    """Tells how long the body was, within small limits."""
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
    """What comes back until the other side closes."""
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
    """Somebody who is connected, and says things when the test wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, port: int, content: bytes = b"") -> Caller:
        caller = cls(*await asyncio.open_connection("127.0.0.1", port))
        caller._writer.write(content)
        return caller

    async def ask(self, content: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
        """What is answered, up to the end of its body."""
        self._writer.write(content)
        async with asyncio.timeout(PATIENCE):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            return head + await self._reader.readexactly(int(length.partition(b": ")[2]))

    async def say(self, content: bytes) -> None:
        """In a segment of its own, as far as that can be had: the listener has a turn before the next."""
        self._writer.write(content)
        await self._writer.drain()
        for _ in range(5):
            await asyncio.sleep(0)

    async def rest(self) -> bytes:
        return await _until_closed(self._reader)

    async def is_let_go(self) -> bool:
        return await _until_closed(self._reader) == b""

    def go(self) -> None:
        self._writer.transport.abort()


async def say_hello(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    await send_json(send, 200, {"hello": True})


async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    """Nobody holds a connection by saying nothing, or a letter at a time."""
    async with a_listener(head_seconds=0.1) as port:
        assert await exchange(port, b"") == b""
        assert await exchange(port, b"GET / HTT") == b""
        assert await exchange(port, b"GET / HTTP/1.1\r\nX: y\r\n") == b""


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """408, and the connection is closed."""
    async with a_listener() as port:
        answer = await exchange(port, POST + b"Content-Length: 10\r\n\r\nab")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer
        answer = await exchange(port, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_body_up_to_the_limit() -> None:
    """Not a byte more, however it is declared."""
    close = b"Connection: close\r\n"
    async with a_listener() as port:
        answer = await exchange(port, POST + close + b"Content-Length: 100\r\n\r\n" + b"x" * 100)
        assert answer.endswith(b'{"bytes":100}')
        answer = await exchange(port, POST + close + b"Content-Length: 101\r\n\r\n" + b"x" * 101)
        assert answer.startswith(b"HTTP/1.1 413 ")
        chunks = b"65\r\n" + b"x" * 0x65 + b"\r\n0\r\n\r\n"
        answer = await exchange(port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_refusal_reaches_a_caller_who_is_still_sending() -> None:
    """What was sent in vain is read, so that the answer is not lost in a reset."""
    async with a_listener() as port:
        content = POST + b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000
        assert (await exchange(port, content)).startswith(b"HTTP/1.1 413 ")


async def test_a_reader_who_does_not_read_is_let_go() -> None:
    """What is sent is not kept for ever for somebody who does not take it."""
    let_go = asyncio.Event()

    async def send_for_ever(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # there is no body
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        let_go.set()

    async with a_listener(send_for_ever, unread_seconds=0.1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read(1)
        async with asyncio.timeout(PATIENCE):  # and nothing more is read
            await let_go.wait()
        writer.transport.abort()


class Line(asyncio.Transport):
    """A connection on which the test says what is left to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0
        self.aborted = self.closed = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def write(self, data: object) -> None: ...

    def pause_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


@dataclass(slots=True)
class Timer:
    seconds: float
    then: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Hours:
    """Instead of a loop: its timers go off when the test says so."""

    def __init__(self) -> None:
        self._timers: list[Timer] = []

    def call_later(self, seconds: float, then: Callable[[], None]) -> Timer:
        timer = Timer(seconds, then)
        self._timers.append(timer)
        return timer

    def go_off(self, seconds: float) -> None:
        """Those that were set for so long, and not cancelled."""
        due = [timer for timer in self._timers if timer.seconds == seconds]
        self._timers = [timer for timer in self._timers if timer not in due]
        for timer in due:
            if not timer.cancelled:
                timer.then()


def a_connection() -> tuple[BoundedProtocol, Line, Hours]:
    line, hours = Line(), Hours()
    config = Config(say_hello, ws="none", lifespan="off", log_config=None, interface="asgi3")
    protocol = BoundedProtocol(config, ListenerState(1), {}, hours)  # type: ignore[arg-type]  # timers are enough
    protocol.connection_made(line)
    return protocol, line, hours


@pytest.mark.parametrize("closing", [False, True])
async def test_a_reader_who_reads_steadily_has_all_the_time(closing: bool) -> None:
    """An answer is not cut off for being large, or the line slow; only who takes nothing is."""
    protocol, line, hours = a_connection()
    limits = protocol.limits
    line.unread = 9_000_000
    protocol.pause_writing()
    if closing:
        protocol.transport.close()
    for _ in range(20):
        line.unread -= limits.least_read_bytes
        hours.go_off(limits.unread_seconds)
        assert not line.aborted
    line.unread -= limits.least_read_bytes - 1  # a byte now and then is no reading
    hours.go_off(limits.unread_seconds)
    assert line.aborted


async def test_a_reader_who_has_caught_up_is_waited_for_no_longer() -> None:
    """The time runs while something is unread; a closed connection has to be rid of the rest too."""
    protocol, line, hours = a_connection()
    line.unread = 100_000
    protocol.pause_writing()
    line.unread = 10_000
    protocol.resume_writing()
    hours.go_off(protocol.limits.unread_seconds)
    assert not line.aborted
    protocol.transport.close()
    protocol.resume_writing()
    hours.go_off(protocol.limits.unread_seconds)
    assert line.aborted


async def test_what_the_kernel_holds_is_unread_too() -> None:
    """It takes megabytes at once, and of those who read them nothing would be seen for long."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
        assert unread_bytes(transport) == 0
        transport.write(b"x" * 1000)
        assert transport.get_write_buffer_size() == 0
        assert unread_bytes(transport) >= 1000
        theirs.recv(1000)
        assert unread_bytes(transport) == 0
        transport.close()


async def test_heads_are_limited() -> None:
    """431 for one long header and for many short ones."""
    async with a_listener(head_bytes=1000) as port:
        for lines in (b"X: " + b"y" * 2000 + b"\r\n", b"X: y\r\n" * 300):
            answer = await exchange(port, b"GET / HTTP/1.1\r\n" + lines + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""


async def test_a_head_is_counted_once_however_it_comes() -> None:
    """What is within the limit in one piece is within it in many."""
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


async def test_the_end_of_one_request_is_no_part_of_the_next_ones_head() -> None:
    """A body and the beginning of another request may come in one piece."""
    async with a_listener(count_patiently, head_bytes=150) as port:
        caller = await Caller.of(port)
        await caller.say(POST + b"Content-Length: 100\r\n\r\n")
        assert (await caller.ask(b"x" * 100 + POST + b"Content-Le")).endswith(b'{"bytes":100}')
        assert (await caller.ask(b"ngth: 0\r\n\r\n")).endswith(b'{"bytes":0}')
        caller.go()


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01garbage\r\n\r\n", b"x" * 2000, POST + b"Transfer-Encoding: x\r\n\r\n"]
)
async def test_what_follows_a_request_does_not_cost_its_answer(garbage: bytes) -> None:
    """What was asked in full is answered, whatever comes behind it; then the connection ends."""
    asked = POST + b"Content-Length: 2\r\n\r\nab"
    async with a_listener(count_patiently) as port:
        assert (await exchange(port, asked + garbage)).endswith(b'{"bytes":2}')
        twice = await exchange(port, asked + POST + b"Content-Length: 3\r\n\r\nabc" + garbage)
        assert twice.count(b"HTTP/1.1 ") == 2
        assert twice.endswith(b'{"bytes":3}')


async def test_half_a_request_behind_another_does_not_cost_its_answer() -> None:
    """Somebody who waits for an answer and has begun to ask again still gets it."""
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


async def test_a_body_that_is_none_is_refused_and_not_mixed_up() -> None:
    """400 for chunks that are none, and nothing of it reaches the request before."""
    bad = POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    async with a_listener(count_patiently) as port:
        assert (await exchange(port, bad)).startswith(b"HTTP/1.1 400 ")
        both = await exchange(port, POST + b"Content-Length: 2\r\n\r\nab" + bad)
        assert both.count(b"HTTP/1.1 ") == 1
        assert both.endswith(b'{"bytes":2}')


@pytest.mark.parametrize("line", [b"1;" + b"x" * 100 + b"\r\na\r\n", b"0" * 100 + b"1\r\na\r\n"])
async def test_what_is_around_a_body_is_limited_too(line: bytes) -> None:
    """Extensions of chunks and zeros before their sizes are read by nobody; small chunks are fine."""
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    async with a_listener(count_patiently, head_bytes=1000) as port:
        caller = await Caller.of(port)
        await caller.say(chunked)
        await caller.say(line * 60)
        assert (await caller.rest()).startswith(b"HTTP/1.1 400 ")
        caller.go()
        caller = await Caller.of(port)
        await caller.say(chunked)
        for _ in range(50):
            await caller.say(b"1\r\na\r\n")
        assert (await caller.ask(b"0\r\n\r\n")).endswith(b'{"bytes":50}')
        caller.go()


async def test_what_comes_behind_a_body_is_no_header() -> None:
    """RFC 9110: trailers must not be taken for headers, which may say who is calling."""

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


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform does not have it")
async def test_a_reader_whose_kernel_takes_nothing_more_is_let_go() -> None:
    """Also where less is unread than our own kernel is willing to keep."""
    let_go = asyncio.Event()

    async def say_something(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # there is no body
        await send({"type": "http.response.body", "body": b"x" * 40_000, "more_body": True})
        await receive()
        let_go.set()

    async with a_listener(say_something, unread_seconds=0.3) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", port))
            await loop.sock_sendall(deaf, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                await let_go.wait()


async def test_idle_connections_are_closed() -> None:
    """A connection that is kept open for another request is not kept for ever."""
    async with a_listener(keep_alive_seconds=0.1) as port:
        answer = await exchange(port, POST + b"Content-Length: 0\r\n\r\n")
        assert answer.endswith(b'{"bytes":0}')


@pytest.mark.parametrize("said", [b"", b"G", b"GET / HTTP/1.1\r\nX: y\r\n"])
async def test_whoever_has_been_silent_longest_gives_way(said: bytes) -> None:
    """Those who say nothing, or half of it, keep nobody out; the newer ones of them stay."""
    async with a_listener(say_hello, connections=3) as port:
        silent = [await Caller.of(port, said) for _ in range(3)]
        newcomer = await Caller.of(port)
        assert (await newcomer.ask()).startswith(b"HTTP/1.1 200 ")
        assert await silent[0].is_let_go()
        rest = b"GET / HTTP/1.1\r\nX: y\r\n\r\n"[len(said) :]
        for caller in silent[1:]:
            assert (await caller.ask(rest)).startswith(b"HTTP/1.1 200 ")
        for caller in (*silent, newcomer):
            caller.go()


async def test_whoever_asked_longest_ago_gives_way() -> None:
    """Connections that are kept for another request keep nobody out either."""
    async with a_listener(say_hello, connections=2) as port:
        first, second = await Caller.of(port), await Caller.of(port)
        for caller in (first, second, first):
            await caller.ask()
        newcomer = await Caller.of(port)
        assert (await newcomer.ask()).startswith(b"HTTP/1.1 200 ")
        assert await second.is_let_go()
        assert (await first.ask()).startswith(b"HTTP/1.1 200 ")
        for caller in (first, second, newcomer):
            caller.go()


async def test_whoever_was_refused_and_goes_on_sending_gives_way() -> None:
    """What is swallowed so that a refusal arrives is swallowed while nobody else wants the place."""
    async with a_listener(connections=1) as port:
        refused = await Caller.of(port)
        assert b" 413 " in await refused.ask(POST + b"Content-Length: 5000\r\n\r\nx")
        newcomer = await Caller.of(port)
        assert (await newcomer.ask(POST + b"Content-Length: 2\r\n\r\nab")).endswith(b'{"bytes":2}')
        assert await refused.is_let_go()
        for caller in (refused, newcomer):
            caller.go()


async def test_whoever_does_not_read_an_answer_gives_way() -> None:
    """Also where it is not written to its end, such as a file or a stream of events; the wait for
    them begins when there is something to read.
    """
    unread = asyncio.Event()

    async def say_much(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        asked: HTTPScope = scope  # type: ignore[assignment]  # the listener makes no other
        if asked["path"] == "/":
            return await say_hello(scope, receive, send)
        await receive()  # there is no body
        await send({"type": "http.response.start", "status": 200, "headers": []})
        much = b"x" * 30_000_000  # more than any kernel takes
        await send({"type": "http.response.body", "body": much, "more_body": True})
        unread.set()
        await receive()
        return None

    async with a_listener(say_much, connections=2) as port:
        deaf = await Caller.of(port)
        idle = await Caller.of(port)
        await idle.ask()
        await deaf.say(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
        await unread.wait()
        first = await Caller.of(port)
        assert (await first.ask()).startswith(b"HTTP/1.1 200 ")
        assert await idle.is_let_go()
        second = await Caller.of(port)
        assert (await second.ask()).startswith(b"HTTP/1.1 200 ")
        assert len(await deaf.rest()) < 30_000_000
        assert (await first.ask()).startswith(b"HTTP/1.1 200 ")
        for caller in (deaf, idle, first, second):
            caller.go()


async def test_whoever_is_being_answered_keeps_the_place() -> None:
    """With nobody who could give way, newcomers are told 503; those told silent do not add up."""
    entered, released = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.release()
        await released.wait()
        await send_json(send, 200, {"done": True})

    async with a_listener(slow, connections=2) as port:
        inside = [await Caller.of(port) for _ in range(2)]
        served = [asyncio.create_task(caller.ask()) for caller in inside]
        for _ in served:
            await entered.acquire()
        silent = [await Caller.of(port) for _ in range(3)]
        assert await silent[0].is_let_go()
        refused = await silent[1].ask()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        released.set()
        assert all([(await each).endswith(b'{"done":true}') for each in served])
        newcomer = await Caller.of(port)
        assert (await newcomer.ask()).startswith(b"HTTP/1.1 200 ")
        for caller in (*inside, *silent, newcomer):
            caller.go()


class Told:
    """What a listener tells of whom it refused."""

    def __init__(self) -> None:
        self.signals = SignalBus()
        self.happened: list[SignalEvent] = []
        self.signals.subscribe(self.happened.append, (Signal.LISTENER_REFUSED,))

    def all(self) -> dict[str, int]:
        whole: Counter[str] = Counter()
        for happening in self.happened:
            whole.update(cast("dict[str, int]", happening.data["refused"]))
        return dict(whole)


async def test_what_a_listener_refuses_by_itself_is_told() -> None:
    """No application hears of it, and a flood must not go unnoticed."""
    told = Told()
    async with a_listener(signals=told.signals, head_bytes=1000) as port:
        await exchange(port, b"HELLO\r\n\r\n")
        (first,) = told.happened  # at once
        assert first.data == {"listener": "test", "refused": {"malformed": 1}, "peer": "127.0.0.1"}
        for _ in range(3):
            await exchange(port, b"GET / HTTP/1.1\r\nX: " + b"y" * 2000 + b"\r\n\r\n")
        assert len(told.happened) == 1  # and the others together
    assert told.happened[1].data["refused"] == {"head_too_large": 3}
    assert told.happened[1].message == "The test listener refused callers: 3 head too large."


async def test_whoever_finds_no_place_or_loses_it_is_told() -> None:
    """Which of both it was tells silence from work."""
    entered, released, told = asyncio.Event(), asyncio.Event(), Told()

    async def slow(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.set()
        await released.wait()
        await send_json(send, 200, {"done": True})

    async with a_listener(slow, told.signals, connections=1) as port:
        silent, inside = await Caller.of(port), await Caller.of(port)
        served = asyncio.create_task(inside.ask())
        await entered.wait()
        assert await silent.is_let_go()
        turned_away = await Caller.of(port)
        assert (await turned_away.ask()).startswith(b"HTTP/1.1 503 ")
        more = [await Caller.of(port) for _ in range(2)]  # the first of them goes for the second
        assert await more[0].is_let_go()
        released.set()
        await served
        for caller in (silent, inside, turned_away, *more):
            caller.go()
    assert told.all() == {"gave_way": 1, "too_many_connections": 2}


async def test_probes_are_answered_where_there_is_no_place() -> None:
    """A monitor learns that the daemon is well while every place is taken; nobody else gets in by that."""
    entered, released, told = asyncio.Event(), asyncio.Event(), Told()

    async def slow(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/slow":
            entered.set()
            await released.wait()
        await send_json(send, 200, {"path": scope["path"]})

    async with a_listener(slow, told.signals, connections=1) as port:
        inside = await Caller.of(port)
        served = asyncio.create_task(inside.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        await entered.wait()
        for path in (b"/healthz", b"/readyz"):
            answer = await exchange(port, b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close\r\n" in answer
        assert told.all() == {}
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert told.all() == {"too_many_connections": 1}
        released.set()
        await served
        inside.go()


async def test_every_probe_of_a_burst_is_answered() -> None:
    """Connections that come in one burst are read before any of them has to give way to a later one."""
    entered, released = asyncio.Semaphore(0), asyncio.Event()

    async def slow(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/slow":
            entered.release()
            await released.wait()
        await send_json(send, 200, {})

    places = 128
    async with a_listener(slow, connections=places) as port:
        inside = [await Caller.of(port) for _ in range(places)]
        served = [asyncio.create_task(each.ask(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")) for each in inside]
        for _ in inside:
            await entered.acquire()
        burst = [
            socket.create_connection(("127.0.0.1", port)) for _ in range(2 * places)
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


async def test_an_answer_that_was_left_unread_is_told() -> None:
    """Whoever gets half an answer will ask why."""
    protocol, line, hours = a_connection()
    told: list[Mapping[RejectionReason, int]] = []
    protocol._shared.refusals = RejectionLog(lambda counts, _: told.append(counts))
    line.unread = 100_000
    protocol.pause_writing()
    hours.go_off(protocol.limits.unread_seconds)
    assert told == [{RejectionReason.UNREAD: 1}]
    protocol._shared.refusals.close()


async def test_refusals_are_told_now_and_then() -> None:
    """A flood does not fill the log; when it is over nothing wakes us any more."""
    told: asyncio.Queue[tuple[Mapping[RejectionReason, int], str | None]] = asyncio.Queue()
    refusals = RejectionLog(lambda *counted: told.put_nowait(counted), seconds=0.05)
    for number in range(1000):
        refusals.count(RejectionReason.MALFORMED, str(number))
    assert told.get_nowait() == ({RejectionReason.MALFORMED: 1}, "0")
    async with asyncio.timeout(PATIENCE):
        assert await told.get() == ({RejectionReason.MALFORMED: 999}, "999")
    refusals.count(RejectionReason.UNREAD, None)
    refusals.close()
    assert told.get_nowait() == ({RejectionReason.UNREAD: 1}, None)
    refusals.close()
    assert told.empty()


async def test_stopping_lets_answers_finish() -> None:
    """Who is being answered gets the answer; nobody new is taken in."""
    entered, released = asyncio.Event(), asyncio.Event()

    async def slow(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        entered.set()
        await released.wait()
        await send_json(send, 200, {"done": True})

    listener = Listener("test", "127.0.0.1:0", slow, ListenerLimits())
    (address,) = await listener.start()
    port = int(address.rpartition(":")[2])
    asking = asyncio.create_task(exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
    await entered.wait()
    stopping = asyncio.create_task(listener.stop(PATIENCE))
    await asyncio.sleep(0)
    released.set()
    assert (await asking).endswith(b'{"done":true}')
    await stopping


async def test_an_error_says_how_long_to_wait() -> None:
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


async def test_bytes_that_begin_no_request_keep_nothing_open() -> None:
    """A blank line after an answer does not hold the connection for ever."""
    async with a_listener(head_seconds=0.1) as port:
        reader, writer = await _answered(port, b"Content-Length: 0\r\n\r\n", b'{"bytes":0}')
        writer.write(b"\r\n")
        assert await _until_closed(reader) == b""
        writer.close()


async def test_the_rest_of_a_body_nobody_reads_keeps_nothing_open() -> None:
    """Whoever was answered before the body was read does not hold the connection with the rest."""

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
    """A connection whose request was answered. On a busy machine its head may come too late: then another."""
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


async def test_whoever_asks_twice_and_goes_is_noticed() -> None:
    """That a caller has gone is told to the request that is being answered, even if
    another one had been sent behind it.
    """
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
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        assert await reader.read(1)
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE):
            await noticed.wait()


async def test_a_small_rest_that_nobody_reads_keeps_nothing_open() -> None:
    """A closed connection is let go, even if less is left than would make a writer wait."""

    async def say_much(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send_json(send, 200, {"much": "x" * 50_000})

    class Hasty(BoundedProtocol):
        limits = ListenerLimits(unread_seconds=0.1)

    state, loop = ListenerState(1), asyncio.get_running_loop()
    config = Config(say_much, http=Hasty, ws="none", lifespan="off", log_config=None, interface="asgi3")
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await loop.connect_accepted_socket(lambda: Hasty(config, state, {}), ours)
        theirs.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            await state.emptied.wait()


async def test_no_line_is_worked_out_that_nobody_reads() -> None:
    """Its server makes a line for each request if its logger has any handler, be it one that does nothing."""
    async with a_listener():
        assert not logging.getLogger("uvicorn.access").hasHandlers()
