"""Clients that do not speak HTTP, or attack: the daemon stays up and answers others.

A client gets no answer only if it hangs up, that is, if it ends its side of the connection.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from builders.http import Api, an_api, an_api_workspace, read_all, token_for
from ductile.core.webhooks.signatures import sign_body

SECRET = "a-canary-of-hooks"
HOOKS = (
    "webhooks:\n  listen: 127.0.0.1:0\n  endpoints:\n"
    f"    - {{path: /hook, plugin: echo, command: poll, secret: {SECRET}, max_body_size: 64KB}}\n"
)
#: What an honest caller sends.
BODY = b'{"payload": {"a": 1}}'
CLOSE = "Connection: close"
CHUNKED = "Transfer-Encoding: chunked"
IN_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
WELL = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#: The limit of a head.
HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A listener, and how one comes in there with the honest body."""

    name: str
    api: Api
    path: str
    proof: str
    #: How a body is refused that is not the honest one.
    other_body: int

    def head(self, *lines: str) -> bytes:
        more = "".join(line + "\r\n" for line in (self.proof, *lines))
        return f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()

    def connect(self) -> socket.socket:
        return self.api.connect()

    def send(self, content: bytes) -> bytes:
        """The answer up to the close, which the daemon does by itself."""
        with self.connect() as connection:
            with suppress(ConnectionError):  # it may close while we still talk; it has answered then
                connection.sendall(content)
            return read_all(connection)

    def status(self, content: bytes) -> int | None:
        """Of the answer to this; None if there is none."""
        return status_of(self.send(content))


def status_of(answer: bytes) -> int | None:
    return int(answer.split(b" ", 2)[1]) if answer else None


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), more=HOOKS, api="  max_body_size: 64KB\n")
    with an_api(workspace) as running:
        yield running


@pytest.fixture(scope="module", params=["api", "webhooks"])
def door(api: Api, request: pytest.FixtureRequest) -> Door:
    if request.param == "api":
        proof = f"Authorization: Bearer {token_for('*')}"
        return Door(name="api", api=api, path="/plugin/echo/poll", proof=proof, other_body=400)
    address = api.daemon.wait_for("webhook.listening")["address"]
    hooks = replace(api, port=int(address.rpartition(":")[2]))
    proof = f"X-Hub-Signature-256: {sign_body(SECRET, BODY)}"
    return Door(name="webhooks", api=hooks, path="/hook", proof=proof, other_body=403)


@pytest.fixture(autouse=True)
def still_well(api: Api) -> Iterator[None]:
    """After each of them an honest caller is served, and no fault of our own was met."""
    yield
    assert api.ask("GET", "/healthz", token=None).status == 200
    honest = api.post("/plugin/echo/poll")["job_id"]
    api.daemon.wait_for(
        "job.accepted", lambda line: line["job_id"] == honest
    )  # the lines before it are there
    assert api.daemon.process.poll() is None
    faults = ("api.fault", "webhook.fault", "service.failed")
    assert not [line for line in api.daemon.lines if line["signal"] in faults]


@pytest.fixture(autouse=True)
def still_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """At the listener under test, too."""
    yield
    if "door" in request.fixturenames:
        door: Door = request.getfixturevalue("door")
        honest = door.head(f"Content-Length: {len(BODY)}", CLOSE) + BODY
        assert door.status(honest) == 202


def test_bytes_of_chance(door: Door) -> None:
    """400 in the usual shape, and counted."""
    rng = random.Random(7)
    for _ in range(100):
        noise = rng.randbytes(rng.randint(1, 4096))
        assert door.status(noise) == 400, noise
        assert door.status(b"GET / HTTP/1.1\r\n" + noise + b"\r\n\r\n") == 400, noise
    assert b'"code":"usage"' in door.send(b"HELLO\r\n\r\n")
    door.api.daemon.wait_for(
        "listener.refused", lambda line: line["listener"] == door.name and "malformed" in line["refused"]
    )


@pytest.mark.parametrize("length", range(5))
def test_half_a_word_is_not_answered(door: Door, length: int) -> None:
    """There is no request, so there is nothing to refuse."""
    assert door.api.send_raw(b"POST"[:length]) == b""


def test_mutations_of_a_good_request(door: Door) -> None:
    """Bytes changed, dropped and doubled in a request never meet a fault of ours."""
    rng = random.Random(11)
    good = door.head(f"Content-Length: {len(BODY)}") + BODY
    for _ in range(200):
        content = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(content))
            match rng.randrange(3):
                case 0:
                    content[place] = rng.randrange(256)
                case 1:
                    del content[place]
                case _:
                    content[place:place] = content[place : place + rng.randint(1, 20)]
        status = status_of(door.api.send_raw(bytes(content)))  # some of them are incomplete
        assert status is None or status < 500, bytes(content)


@pytest.mark.parametrize(
    ("lines", "body", "expected"),
    [
        (("Content-Length: 5",), BODY, None),
        (("Content-Length: 999999999999",), BODY, 413),
        (("Content-Length: -1",), BODY, 400),
        (("Content-Length: 2", "Content-Length: 3"), BODY, 400),
        (("Content-Length: 2", CHUNKED), b"0\r\n\r\n", 400),
        (("Transfer-Encoding: chunked, identity",), b"0\r\n\r\n", 400),
        ((CHUNKED,), b"zz\r\n{}\r\n0\r\n\r\n", 400),
        ((CHUNKED,), b"ffffffffffffffffff\r\n{}", 400),
        ((CHUNKED,), IN_CHUNKS, 202),
        ((CHUNKED,), b"1\r\n \r\n" * 70_000 + b"0\r\n\r\n", 413),
        (("Expect: 100-continue", f"Content-Length: {len(BODY)}"), BODY, 100),
    ],
)
def test_lengths_that_lie(door: Door, lines: tuple[str, ...], body: bytes, expected: int | None) -> None:
    """Bodies are limited while they are read, chunked included."""
    assert door.status(door.head(CLOSE, *lines) + body) == (expected or door.other_body)


def test_a_body_that_is_cut_short(api: Api) -> None:
    """Half a request is no job."""
    newest = api.get("/jobs?limit=1")["jobs"]
    before = _hung_up(api)
    with api.connect() as connection:
        connection.sendall(
            "POST /plugin/echo/poll HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token_for('*')}\r\n"
            "Content-Length: 100\r\n\r\n{}".encode()
        )
    api.daemon.wait_for("api.request", lambda _: _hung_up(api) > before)
    assert [job["job_id"] for job in api.get("/jobs?limit=1")["jobs"]] == [job["job_id"] for job in newest]


def _hung_up(api: Api) -> int:
    return sum(line["signal"] == "api.request" and line["status"] == 499 for line in api.daemon.lines)


def test_a_head_up_to_the_limit(door: Door) -> None:
    """431 for a byte more. That comes last here, so all was read when it is refused."""
    begin = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n"
    counted = len(b"/healthz" + b"Connection: close\r\n")
    lines = [b"X: " + b"y" * 995 + b"\r\n"] * ((HEAD_BYTES - counted) // 1000)
    rest = HEAD_BYTES - counted - sum(map(len, lines))
    for size, status in ((rest, 200), (rest + 1, 431)):
        last = b"X: " + b"y" * (size - 5) + b"\r\n"
        assert door.status(begin + b"".join((*lines, last)) + b"\r\n") == status
    assert door.status(b"GET /" + b"y" * HEAD_BYTES) == 431


def test_headers_without_end(door: Door) -> None:
    """431 instead of memory, also while the client still sends."""
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(5000))
    assert door.status(b"GET / HTTP/1.1\r\n" + many + b"\r\n") == 431
    assert door.status(b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000) == 431
    assert door.status(b"GET /" + b"y" * 1_000_000) == 431
    assert door.status(b"GET /healthz?q=" + b"y" * 60_000 + b" HTTP/1.1\r\nConnection: close\r\n\r\n") == 200


def test_many_requests_in_one_breath(door: Door) -> None:
    """Pipelined requests are answered in order, all of them."""
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert door.send(one * 200 + WELL).count(b"HTTP/1.1 200 OK") == 201


def test_connections_beyond_the_limit_are_answered_503(door: Door) -> None:
    """Health checks are answered even then, and those inside are served."""
    held: list[socket.socket] = []
    try:
        for _ in range(256):
            connection = door.connect()
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
            held.append(connection)
        assert door.status(WELL) == 200
        assert door.status(WELL.replace(b"/healthz", b"/other")) == 503
        held[-1].sendall(b" localhost\r\nConnection: close\r\n\r\n")
        assert read_all(held[-1]).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in held:
            connection.close()


def test_probes_are_answered_when_every_connection_is_in_use(api: Api) -> None:
    """A monitor must not take a busy daemon for a dead one."""
    lines = (
        "POST /plugin/echo/poll HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {token_for('*')}",
        "Content-Length: 1000",
        "Expect: 100-continue",
    )
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    held = [api.connect() for _ in range(256)]
    try:
        for connection in held:
            connection.sendall(head)
        for connection in held:  # the body of each is being read now
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        assert api.ask("GET", "/jobs").status == 503
        for path in ("/healthz", "/readyz"):
            assert api.ask("GET", path, token=None).status == 200
    finally:
        for connection in held:
            connection.close()


def test_deep_and_huge_json(api: Api) -> None:
    """400 or 422, whatever is inside."""
    for body in (
        b'{"payload": {"a": ' + b"9" * 60_000 + b"}}",
        b'{"payload": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
        b'{"payload": {' + b",".join(b'"%d":1' % number for number in range(6000)) + b"}}",
        b'{"payload": {"\\u0000": "\\u0000"}}',
        b'{"payload": {"\\ud800": 1}}',
    ):
        assert api.ask("POST", "/plugin/echo/poll", body).status in (202, 400, 422), body[:60]


def test_names_that_are_not_names(api: Api) -> None:
    """404 or 400, never a file, never a fault."""
    for name in (
        "%00",
        "%2e%2e%2f%2e%2e",
        "%ff%fe",
        "a" * 5000,
        "'%20OR%201=1--",
        "%F0%9F%92%A9",
        "..;/",
        "${x}",
    ):
        for path in (
            f"/job/{name}",
            f"/plugin/{name}/poll",
            f"/job/x/artifact/{name}",
            f"/jobs?cursor={name}",
        ):
            assert api.ask("GET" if "plugin" not in path else "POST", path).status in (400, 404, 405, 422), (
                path
            )


def test_descriptors_come_back(door: Door) -> None:
    """Whatever callers do, what they held is given back."""

    def count() -> int:
        return len(os.listdir(f"/proc/{door.api.daemon.process.pid}/fd"))  # noqa: PTH208 - only how many

    door.send(WELL)
    before = count()
    for _ in range(50):
        door.send(WELL)
    assert count() <= before + 5
