"""Write a Ductile plugin in a few lines of Python. Standard library only, and one file: copy it anywhere.

    from ductile_sdk import Plugin

    plugin = Plugin()

    @plugin.command
    def poll(request):
        request.emit("greeted", {"name": request.config["name"]})
        return "hello " + request.config["name"]

    plugin.run()

The return value of a command is the result of the job. To fail, raise `Failure`. Any other exception is a
failure that may be retried, and its traceback goes to stderr. Inside a command `print` writes to stderr:
stdout is reserved for the response.
"""

# Every job imports this module, so it imports little: pathlib and urllib are slow to load.
from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeAlias, TypeVar

    Handler: TypeAlias = "Callable[[Request], Any]"
    Declared = TypeVar("Declared", bound="Callable[[Request], Any]")

__all__ = ["PROTOCOL", "ConfigFailure", "Failure", "Gateway", "GatewayFailure", "Plugin", "Request"]

PROTOCOL = 2
#: sysexits.h EX_CONFIG: a retry cannot help.
EXIT_CONFIG = 78
#: Characters of an error response that are quoted in a message.
_MAX_QUOTED = 300
_SERVER_ERROR = 500
#: Statuses below 500 after which a retry may succeed: timeout, too early, too many requests.
_TRANSIENT = (408, 425, 429)


class Failure(Exception):  # noqa: N818 - a response of the plugin, not a defect of it
    """The job failed. With `retry=False` it is not retried."""

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry


class ConfigFailure(Failure):
    """The configuration is at fault: the job is not retried, and the exit status is 78."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=False)


class GatewayFailure(Failure):
    """The gateway sent no response, or an error; `status` is 0 without a response."""

    def __init__(self, message: str, *, status: int, retry: bool) -> None:
        super().__init__(message, retry=retry)
        self.status = status


class Request:
    """The request for one command. It also collects the parts of the response."""

    def __init__(self, raw: dict[str, Any]) -> None:
        #: The whole request.
        self.raw = raw
        self.job_id = str(raw.get("job_id", ""))
        self.command = str(raw.get("command", ""))
        #: The name under which the plugin is configured.
        self.instance = str(raw.get("instance", ""))
        self.config: dict[str, Any] = raw.get("config") or {}
        self.state: dict[str, Any] = raw.get("state") or {}
        #: The baggage of the run, and `ductile_…` entries that describe it.
        self.context: dict[str, Any] = raw.get("context") or {}
        #: The event; empty for commands without one.
        self.event: dict[str, Any] = raw.get("event") or {}
        self.headers: dict[str, str] = self.event.get("headers") or {}
        self.payload: dict[str, Any] = raw.get("payload") or self.event.get("payload") or {}
        self._response: dict[str, Any] = {}

    @property
    def baggage(self) -> dict[str, Any]:
        """The context without the entries of Ductile itself."""
        return {name: value for name, value in self.context.items() if not name.startswith("ductile_")}

    def seconds_left(self, otherwise: float = 60.0) -> float:
        """Return the seconds until the deadline; `otherwise` if the request has none."""
        from datetime import datetime, timezone  # noqa: PLC0415 - rarely needed

        deadline = self.raw.get("deadline_at")
        if not isinstance(deadline, str):
            return otherwise
        end = datetime.fromisoformat(deadline.replace("Z", "+00:00"))  # noqa: FURB162 - as below
        return max(0.0, (end - datetime.now(timezone.utc)).total_seconds())  # noqa: UP017 - older Pythons

    def emit(
        self, kind: str, payload: dict[str, Any] | None = None, *, dedupe_key: str | None = None
    ) -> None:
        """Emit an event of type `kind`; routes and pipelines receive it if the job succeeds."""
        event: dict[str, Any] = {"type": kind, "payload": payload or {}}
        if dedupe_key is not None:
            event["dedupe_key"] = dedupe_key
        self._response.setdefault("events", []).append(event)

    def remember(self, **values: Any) -> None:
        """Update the plugin's state; the next request has it in `state`."""
        self._response.setdefault("state_updates", {}).update(values)

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to Ductile's log: debug, info, warn or error."""
        self._response.setdefault("logs", []).append({"level": level, "message": message})

    def attach(self, name: str, *, path: str | None = None, url: str | None = None, **about: Any) -> None:
        """Declare a file as an artifact; `about` may be media_type, size and sha256."""
        location = {"path": os.path.abspath(path)} if path is not None else {"url": url}  # noqa: PTH100 - slow to load
        self._response.setdefault("artifacts", []).append({"name": name, **location, **about})

    def report_cost(self, cost: float) -> None:
        """Add to the cost of the job, in the currency of the operator's choice."""
        self._response["cost"] = self._response.get("cost", 0) + cost

    def gateway(self, url: str, token: str | None = None) -> Gateway:
        """Return a client of Ductile's HTTP API that calls it on behalf of this job."""
        return Gateway(url, token, self.job_id)

    def succeeded(self, result: Any) -> dict[str, Any]:
        """Return the response of a job that succeeded, with the events and state collected so far."""
        is_blank = result is None or (isinstance(result, str) and not result.strip())
        return {"status": "ok", "result": "done" if is_blank else result, **self._response}

    def failed(self, message: str, *, retry: bool) -> dict[str, Any]:
        """Return the error response. Events and state collected so far have no effect, but are logged."""
        # A message may contain a file name that is not valid Unicode.
        text = message.encode("utf-8", "replace").decode() if message.strip() else "failed without a message"
        return {"status": "error", "error": text, "retry": retry, **self._response}


class Plugin:
    """The commands of a plugin."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._exit_status = 0

    def command(self, function: Declared) -> Declared:
        """Declare a command: the function's name, without a trailing underscore, is the command's."""
        self._handlers[function.__name__.rstrip("_")] = function
        return function

    def run(self) -> NoReturn:
        """Read the request, run its command, print the response, exit."""
        request = _read_request()
        # Stdout is reserved for the response: prints of the plugin and its child processes go to stderr.
        out = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        response = self.answer(request)
        try:
            data = json.dumps(response, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            message = f"the response cannot be written as JSON: {error}"
            data = json.dumps(Request(request.raw).failed(message, retry=False)).encode()
        with os.fdopen(out, "wb") as stdout:
            stdout.write(data)
        sys.exit(self._exit_status)

    def answer(self, request: Request) -> dict[str, Any]:
        """Run the command of a request and return its response."""
        handler = self._handlers.get(request.command)
        if handler is None:
            return request.failed(f"there is no command {request.command!r}", retry=False)
        try:
            return request.succeeded(handler(request))
        except Failure as failure:
            if isinstance(failure, ConfigFailure):
                self._exit_status = EXIT_CONFIG
            return request.failed(str(failure), retry=failure.retry)
        except Exception as error:  # noqa: BLE001 - every exception becomes an error response
            import traceback  # noqa: PLC0415 - rarely needed

            traceback.print_exc()
            return request.failed(f"{type(error).__name__}: {error}", retry=True)


class Gateway:
    """Calls the HTTP API and names the calling job, so that loops are detected."""

    def __init__(self, url: str, token: str | None, job_id: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "X-Ductile-Job": job_id}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def call(self, path: str, body: Any = None, *, method: str | None = None, timeout: float = 30.0) -> Any:
        """Send `body` as JSON, or GET without one. Returns the decoded response; raises `GatewayFailure`."""
        import urllib.error  # noqa: PLC0415 - slow to load and rarely needed
        import urllib.request  # noqa: PLC0415

        if not self._url.startswith(("http://", "https://")):
            raise Failure(
                f"the gateway's address has to begin with http:// or https://: {self._url}", retry=False
            )
        data = None if body is None else json.dumps(body).encode()
        verb = method or ("GET" if body is None else "POST")
        http_request = urllib.request.Request(self._url + path, data=data, headers=self._headers, method=verb)  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(http_request, timeout=timeout) as response:  # noqa: S310 - as above
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")[:_MAX_QUOTED]
            retry = error.code >= _SERVER_ERROR or error.code in _TRANSIENT
            message = f"the gateway answers {verb} {path} with {error.code}: {text}"
            raise GatewayFailure(message, status=error.code, retry=retry) from None
        except (OSError, ValueError) as error:
            message = f"the gateway does not answer {verb} {path}: {error}"
            raise GatewayFailure(message, status=0, retry=True) from None


def _read_request() -> Request:
    """Return the request on stdin. Exits if there is none, or one of another protocol."""
    try:
        raw = json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        _refuse(f"stdin holds no request: {error}")
    if not isinstance(raw, dict) or raw.get("protocol") != PROTOCOL:
        version = raw.get("protocol") if isinstance(raw, dict) else None
        _refuse(f"this plugin speaks protocol {PROTOCOL}, not {version}")
    return Request(raw)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    sys.exit(EXIT_CONFIG)
