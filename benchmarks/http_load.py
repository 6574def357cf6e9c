"""A small load generator, run as a process: `python -m benchmarks.http_load PORT SECONDS < REQUEST`.

Each of 64 connections sends the request as soon as the one before is answered. Prints the rate and latencies.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

CONNECTIONS = 64


class _Caller(asyncio.Protocol):
    """One connection. A response is complete when its Content-Length is reached."""

    def __init__(self, request: bytes, latencies: list[float], deadline: float) -> None:
        self._request = request
        self._latencies = latencies
        self._deadline = deadline
        self._received = b""
        self._sent_at = 0.0
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._received = b""
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, head_end, body = self._received.partition(b"\r\n\r\n")
        if not head_end or len(body) < _length(head):
            return
        assert head.startswith(b"HTTP/1.1 202"), head
        now = time.perf_counter()
        self._latencies.append(now - self._sent_at)
        if now < self._deadline:
            self._send()
        else:
            assert self._transport is not None
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(exc)


def _length(head: bytes) -> int:
    _, _, after_name = head.partition(b"content-length: ")
    return int(after_name.split(b"\r\n", 1)[0])


async def load(port: int, seconds: float, request: bytes) -> dict[str, float]:
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    callers = []
    for _ in range(CONNECTIONS):
        _, caller = await loop.create_connection(
            lambda: _Caller(request, latencies, began + seconds), "127.0.0.1", port
        )
        callers.append(caller)
    await asyncio.gather(*(caller.ended for caller in callers))
    took = time.perf_counter() - began
    latencies.sort()
    return {
        "rate": len(latencies) / took,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(int(sys.argv[1]), float(sys.argv[2]), sys.stdin.buffer.read()))))
