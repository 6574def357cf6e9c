"""The base of all fakes: an HTTP server whose faults and clock a test can set."""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self


@dataclass(frozen=True)
class Call:
    """One request as the service got it."""

    method: str
    path: str
    query: dict[str, str]
    #: By lower-case name.
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def bearer(self) -> str | None:
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else None


@dataclass(frozen=True)
class Reply:
    #: Sent as JSON, unless it is bytes.
    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class FakeService:
    """A service on a port of this machine. Subclasses answer in `respond`; calls are answered one by one."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        #: How far the service's clock is ahead of ours, in seconds.
        self.clock_offset = 0.0
        #: Called with each request before it is answered.
        self.before: Callable[[Call], None] = lambda _call: None
        #: Called with each answer after it was sent.
        self.after: Callable[[Call, Reply], None] = lambda _call, _reply: None
        self.url = ""
        self._faults: list[tuple[str, Reply]] = []
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def respond(self, call: Call) -> Reply:
        raise NotImplementedError

    # -- what a test sets

    def now(self) -> float:
        """The time as the service sees it."""
        return time.time() + self.clock_offset

    def fail_next(self, reply: Reply, *, path: str = "", times: int = 1) -> None:
        """Answer the next calls whose path begins with `path` with this."""
        self._faults += [(path, reply)] * times

    def calls_to(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    # -- running

    def start(self, port: int = 0) -> Self:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_call(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                parts = urlsplit(self.path)
                call = Call(
                    method=self.command,
                    path=parts.path,
                    query=dict(parse_qsl(parts.query, keep_blank_values=True)),
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=self.rfile.read(length),
                )
                reply = service.answer(call)
                content = reply.content
                self.send_response_only(reply.status)
                kind = "text/html" if isinstance(reply.body, bytes) else "application/json"
                named = {
                    "Date": formatdate(service.now(), usegmt=True),
                    "Content-Type": kind,
                    "Content-Length": str(len(content)),
                    **reply.headers,
                }
                for name, value in named.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)
                    self.wfile.flush()
                service.after(call, reply)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_call  # noqa: N815 - of http.server

            def log_message(self, *_: object) -> None:
                """Calls are in `calls`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self if self.url else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def answer(self, call: Call) -> Reply:
        self.before(call)
        with self._lock:
            self.calls.append(call)
            for index, (path, reply) in enumerate(self._faults):
                if call.path.startswith(path):
                    del self._faults[index]
                    return reply
            return self.respond(call)


def serve(service: FakeService, default_port: int) -> None:
    """Run a fake as a program until it is interrupted."""
    parser = argparse.ArgumentParser(description=(type(service).__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=default_port)
    service.start(parser.parse_args().port)
    print(f"{type(service).__name__} listens on {service.url}", flush=True)  # noqa: T201 - a program
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        service.stop()
