"""The API of a real daemon, asked over real sockets."""

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

#: One token for each scope there is while `echo` is the only plugin, each the scope's name made unlikely.
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
    """A place whose daemon has the API; `plugins` goes below `plugins:`, `more` beside it."""
    workspace = a_workspace(directory, plugins)
    workspace.config.write_text(api_section(api, scopes=scopes) + more + workspace.config.read_text())
    return workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        answer = json.loads(self.content)
        assert isinstance(answer, dict), answer
        return answer

    @property
    def code(self) -> str:
        """Of an error, which has the one shape that errors have."""
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
    ) -> Said:
        """One request on a connection of its own. A body of bytes is sent as it is, anything else as JSON."""
        sent = dict(headers or {})
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token}")
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body=content, headers=sent)
            answer = connection.getresponse()
            lower = {name.lower(): value for name, value in answer.getheaders()}
            return Said(status=answer.status, headers=lower, content=answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> dict[str, Any]:
        said = self.ask("GET", path, **more)
        assert said.status == 200, said
        return said.body

    def post(self, path: str, body: object = None, *, status: int = 202, **more: Any) -> dict[str, Any]:
        said = self.ask("POST", path, body, **more)
        assert said.status == status, said
        return said.body

    def ended(self, job_id: str) -> dict[str, Any]:
        """Wait for the end of the job in the log. Returns the job."""
        ends = ("job.succeeded", "job.failed", "job.dead")
        self.daemon.wait_for_any(ends, lambda line: line.get("job_id") == job_id)
        return self.get(f"/job/{job_id}")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send_raw(self, content: bytes) -> bytes:
        """Send the bytes and return the answer up to the close; empty if the daemon only hangs up."""
        with self.connect() as connection:
            with suppress(OSError):  # it may close, or have closed, while we still talk; it has answered then
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
    """A daemon that answers. Its configuration has tokens, so it is sealed first."""
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
        answer = self._connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert answer.readline() == b"retry: 2000\n"  # it follows from here on
        self._thread = threading.Thread(target=self._read, args=(answer,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._connection is not None
        assert self._thread is not None
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._connection.close()

    def _read(self, answer: http.client.HTTPResponse) -> None:
        try:
            for block in _blocks(answer):
                with self._changed:
                    self._take(block)
                    self._changed.notify_all()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # hung up, by one side or the other
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


def _blocks(answer: http.client.HTTPResponse) -> Iterator[list[str]]:
    block: list[str] = []
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        if text:
            block.append(text)
        elif block:
            yield block
            block = []
