"""Callers who do not speak HTTP, or speak it to do harm: the daemon stays up and answers others (SPEC 8)."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest

from builders.http import Api, an_api, an_api_place, read_all, token_for

AUTH = f"Authorization: Bearer {token_for('*')}\r\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(an_api_place(tmp_path_factory.mktemp("api"), api="  max_body_size: 64KB\n")) as running:
        yield running


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
    assert not [line for line in api.daemon.lines if line["signal"] in ("api.fault", "service.failed")]


def head(*lines: str) -> bytes:
    more = "".join(line + "\r\n" for line in lines)
    return f"POST /plugin/echo/poll HTTP/1.1\r\nHost: x\r\n{AUTH}{more}\r\n".encode()


def status_of(answer: bytes) -> int | None:
    """None if the daemon hung up without a word."""
    return int(answer.split(b" ", 2)[1]) if answer else None


def test_bytes_of_chance(api: Api) -> None:
    """SPEC 8: 400 in the usual shape, or nothing."""
    dice = random.Random(7)
    for _ in range(100):
        noise = dice.randbytes(dice.randint(1, 4096))
        assert status_of(api.send_raw(noise)) in (400, None)
        assert status_of(api.send_raw(b"GET / HTTP/1.1\r\n" + noise + b"\r\n\r\n")) in (200, 400, None)
    assert b'"code":"usage"' in api.send_raw(b"HELLO\r\n\r\n")


def test_mutations_of_a_good_request(api: Api) -> None:
    """SPEC 8: bytes changed, dropped and doubled in a request never meet a fault of ours."""
    dice = random.Random(11)
    body = b'{"payload": {"a": 1}}'
    good = head(f"Content-Length: {len(body)}") + body
    for _ in range(200):
        content = bytearray(good)
        for _ in range(dice.randint(1, 6)):
            place = dice.randrange(len(content))
            match dice.randrange(3):
                case 0:
                    content[place] = dice.randrange(256)
                case 1:
                    del content[place]
                case _:
                    content[place:place] = content[place : place + dice.randint(1, 20)]
        status = status_of(api.send_raw(bytes(content)))
        assert status is None or status < 500, bytes(content)


@pytest.mark.parametrize(
    ("lines", "body", "expected"),
    [
        (("Content-Length: 5",), b'{"payload": {}}', {202, 400}),
        (("Content-Length: 999999999999",), b"{}", {413}),
        (("Content-Length: -1",), b"{}", {400}),
        (("Content-Length: 2", "Content-Length: 3"), b"{}", {400}),
        (("Content-Length: 2", "Transfer-Encoding: chunked"), b"0\r\n\r\n", {400}),
        (("Transfer-Encoding: chunked, identity",), b"0\r\n\r\n", {400}),
        (("Transfer-Encoding: chunked",), b"zz\r\n{}\r\n0\r\n\r\n", {400}),
        (("Transfer-Encoding: chunked",), b"ffffffffffffffffff\r\n{}", {400}),
        (("Transfer-Encoding: chunked",), b"2\r\n{}\r\n0\r\n\r\n", {202}),
        (("Transfer-Encoding: chunked",), b"".join(b"1\r\n \r\n" for _ in range(70_000)), {413}),
        (("Expect: 100-continue", "Content-Length: 2"), b"{}", {100, 202}),
    ],
)
def test_lengths_that_lie(api: Api, lines: tuple[str, ...], body: bytes, expected: set[int]) -> None:
    """SPEC 8: bodies are limited while they are read, chunked included."""
    assert status_of(api.send_raw(head(*lines) + body)) in {*expected, None}


def test_a_body_that_is_cut_short(api: Api) -> None:
    """SPEC 4.3: half a request is no job."""
    newest = api.get("/jobs?limit=1")["jobs"]
    before = _hung_up(api)
    with api.connect() as connection:
        connection.sendall(head("Content-Length: 100") + b'{"payload": {}}')
    api.daemon.wait_for("api.request", lambda _: _hung_up(api) > before)
    assert [job["job_id"] for job in api.get("/jobs?limit=1")["jobs"]] == [job["job_id"] for job in newest]


def _hung_up(api: Api) -> int:
    return sum(line["signal"] == "api.request" and line["status"] == 499 for line in api.daemon.lines)


def test_headers_without_end(api: Api) -> None:
    """SPEC 8: 431 instead of memory."""
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(5000))
    assert status_of(api.send_raw(b"GET / HTTP/1.1\r\n" + many + b"\r\n")) in (431, None)
    assert status_of(api.send_raw(b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000)) in (431, None)
    assert status_of(api.send_raw(b"GET /" + b"y" * 1_000_000)) in (431, None)
    assert status_of(api.send_raw(b"GET /healthz?q=" + b"y" * 60_000 + b" HTTP/1.1\r\n\r\n")) in (200, None)


def test_many_requests_in_one_breath(api: Api) -> None:
    """SPEC 8: pipelined requests are answered in order, all of them."""
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with api.connect() as connection:
        connection.sendall(one * 200 + last)
        assert read_all(connection).count(b"HTTP/1.1 200 OK") == 201


def test_connections_that_say_nothing_keep_nobody_out(api: Api) -> None:
    """SPEC 1, 8: whoever has kept the listener waiting longest gives way to whoever asks."""
    held: list[socket.socket] = []
    try:
        for _ in range(256):
            connection = api.connect()
            connection.sendall(b"GET / HTTP/1.1\r\nHost:")
            held.append(connection)
        assert api.ask("GET", "/healthz").status == 200
        assert read_all(held[0]) == b""
        held[-1].sendall(b" x\r\nConnection: close\r\n\r\n")
        assert read_all(held[-1]).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in held:
            connection.close()


def test_deep_and_huge_json(api: Api) -> None:
    """SPEC 8: 400 or 422, whatever is inside."""
    for body in (
        b'{"payload": {"a": ' + b"9" * 60_000 + b"}}",
        b'{"payload": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
        b'{"payload": {' + b",".join(b'"%d":1' % number for number in range(6000)) + b"}}",
        b'{"payload": {"\\u0000": "\\u0000"}}',
        b'{"payload": {"\\ud800": 1}}',
    ):
        assert api.ask("POST", "/plugin/echo/poll", body).status in (202, 400, 422), body[:60]


def test_names_that_are_not_names(api: Api) -> None:
    """SPEC 8: 404 or 400, never a file, never a fault."""
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


def test_descriptors_come_back(api: Api) -> None:
    """SPEC 8: whatever callers do, what they held is given back."""

    def count() -> int:
        return len(os.listdir(f"/proc/{api.daemon.process.pid}/fd"))  # noqa: PTH208 - only how many

    api.ask("GET", "/healthz")
    before = count()
    for _ in range(50):
        with api.connect() as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            read_all(connection)
    assert count() <= before + 5
