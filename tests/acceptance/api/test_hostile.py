"""Clients that do not speak HTTP, or attack: the daemon stays up and answers other clients.

A client gets no response only if it ends its side of the connection.
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
#: The body of an honest caller.
BODY = b'{"payload": {"a": 1}}'
CLOSE = "Connection: close"
CHUNKED = "Transfer-Encoding: chunked"
IN_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HEALTH_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#: The limit of a head.
HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listener, and how a request with the honest body is authenticated there."""

    name: str
    api: Api
    path: str
    proof: str
    #: The status of the response to another body.
    status_of_other_body: int

    def head(self, *lines: str) -> bytes:
        header_lines = "".join(line + "\r\n" for line in (self.proof, *lines))
        return f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n{header_lines}\r\n".encode()

    def connect(self) -> socket.socket:
        return self.api.connect()

    def send(self, content: bytes) -> bytes:
        """Return the response up to the close, which the daemon does by itself."""
        with self.connect() as connection:
            with suppress(ConnectionError):  # the daemon may answer and close while this client still sends
                connection.sendall(content)
            return read_all(connection)

    def status(self, content: bytes) -> int | None:
        """Return the status of the response; None without a response."""
        return status_of(self.send(content))


def status_of(response: bytes) -> int | None:
    return int(response.split(b" ", 2)[1]) if response else None


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), more=HOOKS, api="  max_body_size: 64KB\n")
    with an_api(workspace) as api:
        yield api


@pytest.fixture(scope="module", params=["api", "webhooks"])
def listener(api: Api, request: pytest.FixtureRequest) -> Listener:
    if request.param == "api":
        proof = f"Authorization: Bearer {token_for('*')}"
        return Listener(name="api", api=api, path="/plugin/echo/poll", proof=proof, status_of_other_body=400)
    address = api.daemon.wait_for("webhook.listening")["address"]
    hooks = replace(api, port=int(address.rpartition(":")[2]))
    proof = f"X-Hub-Signature-256: {sign_body(SECRET, BODY)}"
    return Listener(name="webhooks", api=hooks, path="/hook", proof=proof, status_of_other_body=403)


@pytest.fixture(autouse=True)
def daemon_is_healthy(api: Api) -> Iterator[None]:
    """After each test an honest caller is served, and the log has no fault of the daemon."""
    yield
    assert api.ask("GET", "/healthz", token=None).status == 200
    job_id = api.post("/plugin/echo/poll")["job_id"]
    api.daemon.wait_for(
        "job.accepted", lambda line: line["job_id"] == job_id
    )  # earlier lines of the log are read
    assert api.daemon.process.poll() is None
    faults = ("api.fault", "webhook.fault", "service.failed")
    assert not [line for line in api.daemon.lines if line["signal"] in faults]


@pytest.fixture(autouse=True)
def listener_is_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test an honest caller is served at the listener under test, too."""
    yield
    if "listener" in request.fixturenames:
        listener: Listener = request.getfixturevalue("listener")
        request_bytes = listener.head(f"Content-Length: {len(BODY)}", CLOSE) + BODY
        assert listener.status(request_bytes) == 202


def test_random_bytes_are_refused(listener: Listener) -> None:
    """Random bytes are answered 400 in the usual shape, and counted."""
    rng = random.Random(7)
    for _ in range(100):
        noise = rng.randbytes(rng.randint(1, 4096))
        assert listener.status(noise) == 400, noise
        assert listener.status(b"GET / HTTP/1.1\r\n" + noise + b"\r\n\r\n") == 400, noise
    assert b'"code":"usage"' in listener.send(b"HELLO\r\n\r\n")
    listener.api.daemon.wait_for(
        "listener.refused", lambda line: line["listener"] == listener.name and "malformed" in line["refused"]
    )


@pytest.mark.parametrize("length", range(5))
def test_an_incomplete_method_is_not_answered(listener: Listener, length: int) -> None:
    """An incomplete method is no request, so there is nothing to refuse."""
    assert listener.api.send_raw(b"POST"[:length]) == b""


def test_mutations_of_a_good_request(listener: Listener) -> None:
    """Bytes changed, dropped and doubled in a request lead to no fault of the daemon."""
    rng = random.Random(11)
    request = listener.head(f"Content-Length: {len(BODY)}") + BODY
    for _ in range(200):
        content = bytearray(request)
        for _ in range(rng.randint(1, 6)):
            position = rng.randrange(len(content))
            match rng.randrange(3):
                case 0:
                    content[position] = rng.randrange(256)
                case 1:
                    del content[position]
                case _:
                    content[position:position] = content[position : position + rng.randint(1, 20)]
        status = status_of(listener.api.send_raw(bytes(content)))  # some of them are incomplete
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
def test_wrong_lengths_are_refused(
    listener: Listener, lines: tuple[str, ...], body: bytes, expected: int | None
) -> None:
    """Bodies are limited while they are read, chunked included."""
    assert listener.status(listener.head(CLOSE, *lines) + body) == (expected or listener.status_of_other_body)


def test_a_body_that_is_cut_short(api: Api) -> None:
    """An incomplete request submits no job."""
    jobs_before = api.get("/jobs?limit=1")["jobs"]
    count_before = count_hung_up(api)
    with api.connect() as connection:
        connection.sendall(
            "POST /plugin/echo/poll HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token_for('*')}\r\n"
            "Content-Length: 100\r\n\r\n{}".encode()
        )
    api.daemon.wait_for("api.request", lambda _: count_hung_up(api) > count_before)
    assert [job["job_id"] for job in api.get("/jobs?limit=1")["jobs"]] == [
        job["job_id"] for job in jobs_before
    ]


def count_hung_up(api: Api) -> int:
    return sum(line["signal"] == "api.request" and line["status"] == 499 for line in api.daemon.lines)


def test_a_head_up_to_the_limit(listener: Listener) -> None:
    """A byte more is answered 431. It comes last here, so all was read when it is refused."""
    start = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n"
    counted = len(b"/healthz" + b"Connection: close\r\n")
    lines = [b"X: " + b"y" * 995 + b"\r\n"] * ((HEAD_BYTES - counted) // 1000)
    remaining = HEAD_BYTES - counted - sum(map(len, lines))
    for size, status in ((remaining, 200), (remaining + 1, 431)):
        last_line = b"X: " + b"y" * (size - 5) + b"\r\n"
        assert listener.status(start + b"".join((*lines, last_line)) + b"\r\n") == status
    assert listener.status(b"GET /" + b"y" * HEAD_BYTES) == 431


def test_headers_without_end(listener: Listener) -> None:
    """The response is 431 before the headers fill the memory, also while the client still sends."""
    headers = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(5000))
    assert listener.status(b"GET / HTTP/1.1\r\n" + headers + b"\r\n") == 431
    assert listener.status(b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000) == 431
    assert listener.status(b"GET /" + b"y" * 1_000_000) == 431
    assert (
        listener.status(b"GET /healthz?q=" + b"y" * 60_000 + b" HTTP/1.1\r\nConnection: close\r\n\r\n") == 200
    )


def test_pipelined_requests_are_answered(listener: Listener) -> None:
    """Pipelined requests are answered in order, all of them."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert listener.send(request * 200 + HEALTH_REQUEST).count(b"HTTP/1.1 200 OK") == 201


def test_connections_beyond_the_limit_are_answered_503(listener: Listener) -> None:
    """Health checks are answered even then, and earlier connections are served."""
    connections: list[socket.socket] = []
    try:
        for _ in range(256):
            connection = listener.connect()
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
            connections.append(connection)
        assert listener.status(HEALTH_REQUEST) == 200
        assert listener.status(HEALTH_REQUEST.replace(b"/healthz", b"/other")) == 503
        connections[-1].sendall(b" localhost\r\nConnection: close\r\n\r\n")
        assert read_all(connections[-1]).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in connections:
            connection.close()


def test_probes_are_answered_when_every_connection_is_in_use(api: Api) -> None:
    """Health checks are answered, so that a monitor does not take a busy daemon for a dead one."""
    lines = (
        "POST /plugin/echo/poll HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {token_for('*')}",
        "Content-Length: 1000",
        "Expect: 100-continue",
    )
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    connections = [api.connect() for _ in range(256)]
    try:
        for connection in connections:
            connection.sendall(head)
        for connection in connections:  # the body of each is being read now
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        assert api.ask("GET", "/jobs").status == 503
        for path in ("/healthz", "/readyz"):
            assert api.ask("GET", path, token=None).status == 200
    finally:
        for connection in connections:
            connection.close()


def test_deep_and_huge_json(api: Api) -> None:
    """Such a body is accepted, or refused with 400 or 422."""
    for body in (
        b'{"payload": {"a": ' + b"9" * 60_000 + b"}}",
        b'{"payload": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
        b'{"payload": {' + b",".join(b'"%d":1' % number for number in range(6000)) + b"}}",
        b'{"payload": {"\\u0000": "\\u0000"}}',
        b'{"payload": {"\\ud800": 1}}',
    ):
        assert api.ask("POST", "/plugin/echo/poll", body).status in (202, 400, 422), body[:60]


def test_strange_names_are_refused(api: Api) -> None:
    """A strange name is refused, and leads to no file and no fault."""
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


def test_descriptors_come_back(listener: Listener) -> None:
    """The daemon closes the descriptors of its connections."""

    def count() -> int:
        return len(os.listdir(f"/proc/{listener.api.daemon.process.pid}/fd"))  # noqa: PTH208 - only how many

    listener.send(HEALTH_REQUEST)
    before = count()
    for _ in range(50):
        listener.send(HEALTH_REQUEST)
    assert count() <= before + 5
