"""A receiver of state webhooks: a real HTTP server in threads, whose responses the test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.raw)
        return decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The response is delayed until this is set.
    after: threading.Event | None = None


@dataclass(slots=True)
class Receiver:
    """Calls `decide` with each request and the number of requests before it."""

    decide: Callable[[ReceivedRequest, int], Reply] = lambda _request, _before: Reply()
    requests: list[ReceivedRequest] = field(default_factory=list)
    port: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def take(self, request: ReceivedRequest) -> Reply:
        with self._changed:
            before = len(self.requests)
            self.requests.append(request)
            self._changed.notify_all()
        return self.decide(request, before)

    def wait_for(self, condition: Callable[[list[ReceivedRequest]], bool]) -> list[ReceivedRequest]:
        """Wait until the condition holds for the received requests, and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.requests), timeout=PATIENCE), self.requests
            return list(self.requests)

    def states(self) -> list[str]:
        return [request.body["state"] for request in self.requests]


@contextmanager
def a_receiver(decide: Callable[[ReceivedRequest, int], Reply] | None = None) -> Iterator[Receiver]:
    receiver = Receiver() if decide is None else Receiver(decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = receiver.take(ReceivedRequest(path=self.path, headers=headers, raw=raw))
            if reply.after is not None:
                reply.after.wait(PATIENCE)
            self.send_response(reply.status)
            for name, value in {"Content-Length": "0", **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Print nothing: in some tests the sender closes the connection early."""

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
