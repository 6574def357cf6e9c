"""A real HTTP server with responses of the test's choice, which records its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: Sent instead of `body`, each as soon as it is produced, with chunked encoding.
    chunks: Iterable[bytes] | None = None
    #: Whether the connection is closed without the final chunk.
    cut: bool = False


@dataclass(slots=True, kw_only=True)
class Service:
    url: str
    requests: list[ServiceRequest] = field(default_factory=list)


@contextmanager
def a_service(respond: Callable[[ServiceRequest], Reply]) -> Iterator[Service]:
    service = Service(url="")

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = ServiceRequest(
                method=self.command, path=self.path, headers=headers, body=self.rfile.read(length)
            )
            service.requests.append(request)
            reply = respond(request)
            if reply.chunks is not None:
                self._stream(reply, reply.chunks)
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def _stream(self, reply: Reply, chunks: Iterable[bytes]) -> None:
            self.protocol_version = "HTTP/1.1"
            self.close_connection = True
            self.send_response(reply.status)
            for name, value in {
                "Transfer-Encoding": "chunked",
                "Connection": "close",
                **reply.headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client may stop reading at any time
                for chunk in chunks:
                    self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                    self.wfile.flush()
                if not reply.cut:
                    self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
