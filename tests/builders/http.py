"""The API of a real daemon, and a client for it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from builders.daemons import PATIENCE, Daemon, Workspace, a_daemon, a_workspace

#: The scopes that exist while `echo` is the only plugin. Each has a token, see `token_for`.
SCOPES = (
    "*",
    "plugin:ro",
    "plugin:rw",
    "jobs:ro",
    "jobs:rw",
    "events:ro",
    "events:rw",
    "system:ro",
    "system:rw",
    "echo:ro",
    "echo:rw",
    "read:jobs",
    "read:events",
)
CANARY = "canary-5d1f"


def token_for(scope: str) -> str:
    return f"{CANARY}-{scope}"


def api_section(more: str = "", *, scopes: tuple[str, ...] = SCOPES) -> str:
    tokens = "".join(
        f'      - {{name: "{scope}", token: "{token_for(scope)}", scopes: ["{scope}"]}}\n' for scope in scopes
    )
    return f"api:\n  enabled: true\n  listen: localhost:0\n{more}  auth:\n    tokens:\n{tokens}"


def an_api_workspace(
    directory: Path, plugins: str = "", *, more: str = "", api: str = "", scopes: tuple[str, ...] = SCOPES
) -> Workspace:
    """Return a workspace with the API. `plugins` is added below `plugins:`, `more` before it."""
    workspace = a_workspace(directory, plugins)
    workspace.config.write_text(api_section(api, scopes=scopes) + more + workspace.config.read_text())
    return workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        decoded = json.loads(self.content)
        assert isinstance(decoded, dict), decoded
        return decoded

    @property
    def code(self) -> str:
        """Return the code of an error, and check the shape that all errors have."""
        body = self.body
        assert body.keys() == {"error", "message"}, body
        assert body["error"].keys() == {"code", "message", "hint", "details"}, body
        assert body["message"] == body["error"]["message"]
        assert self.headers["content-type"] == "application/json"
        code: str = body["error"]["code"]
        return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    daemon: Daemon
    port: int
    workspace: Workspace

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = token_for("*"),
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        """Send one request on a new connection. A body of bytes is sent unchanged, any other as JSON."""
        all_headers = dict(headers or {})
        if token is not None:
            all_headers.setdefault("Authorization", f"Bearer {token}")
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body=content, headers=all_headers)
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return ApiResponse(status=response.status, headers=lower, content=response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> dict[str, Any]:
        response = self.ask("GET", path, **more)
        assert response.status == 200, response
        return response.body

    def post(self, path: str, body: object = None, *, status: int = 202, **more: Any) -> dict[str, Any]:
        response = self.ask("POST", path, body, **more)
        assert response.status == status, response
        return response.body

    def ended(self, job_id: str) -> dict[str, Any]:
        """Wait until the log has the end of the job, and return the job."""
        ends = ("job.succeeded", "job.failed", "job.dead")
        self.daemon.wait_for_any(ends, lambda line: line.get("job_id") == job_id)
        return self.get(f"/job/{job_id}")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send_raw(self, content: bytes) -> bytes:
        """Send the bytes and return the response up to the close; empty if the daemon only hangs up."""
        with self.connect() as connection:
            with suppress(OSError):  # the daemon may respond and close before it has read everything
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


@contextmanager
def an_api(workspace: Workspace) -> Iterator[Api]:
    """Start a daemon with the API. Its configuration has tokens, so it is sealed first."""
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace) as daemon:
        address = daemon.wait_for("api.listening")["address"]
        yield Api(daemon=daemon, port=int(address.rpartition(":")[2]), workspace=workspace)


@dataclass(slots=True)
class EventReader:
    """Reads a stream of events in a thread, as a browser would."""

    api: Api
    last_id: int | None = None
    query: str = ""
    scope: str = "events:ro"
    events: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _connection: http.client.HTTPConnection | None = None
    ended: bool = False

    def __enter__(self) -> Self:
        headers = {"Authorization": f"Bearer {token_for(self.scope)}"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = str(self.last_id)
        self._connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=PATIENCE)
        self._connection.request("GET", f"/events{self.query}", headers=headers)
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert response.readline() == b"retry: 2000\n"  # from here on the stream has every event
        self._thread = threading.Thread(target=self._read, args=(response,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._connection is not None
        assert self._thread is not None
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._connection.close()

    def _read(self, response: http.client.HTTPResponse) -> None:
        try:
            for block in _blocks(response):
                with self._changed:
                    self._take(block)
                    self._changed.notify_all()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # one of the two sides has closed the connection
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _take(self, block: list[str]) -> None:
        event: dict[str, Any] = {}
        for line in block:
            name, _, value = line.partition(":")
            if not name:
                self.comments.append(value.strip())
            else:
                event[name] = value.strip()
        if "data" in event:
            self.events.append({**event, "data": json.loads(event["data"])})

    def wait_until(self, enough: Any) -> list[dict[str, Any]]:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.events) or self.ended, timeout=PATIENCE)
            assert enough(self.events), self.events
            return list(self.events)

    def wait_for_end(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended, timeout=PATIENCE)


def _blocks(response: http.client.HTTPResponse) -> Iterator[list[str]]:
    block: list[str] = []
    while line := response.readline():
        text = line.decode().rstrip("\n")
        if text:
            block.append(text)
        elif block:
            yield block
            block = []
