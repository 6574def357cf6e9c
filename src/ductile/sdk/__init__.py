"""Write a Ductile plugin in a few lines of Python. Standard library only, and one file: copy it anywhere.

    from ductile_sdk import Plugin

    plugin = Plugin()

    @plugin.command
    def poll(request):
        request.emit("greeted", {"name": request.config["name"]})
        return "hello " + request.config["name"]

    plugin.run()

What a command returns is the result of the job. To fail, raise `Failure`. Another exception is a failure that
may pass, and its traceback goes to stderr. Inside a command `print` writes to stderr: stdout is the answer's.
"""

# Every job starts a process and imports this, so it imports little: pathlib and urllib are slow to load.
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

__all__ = ["PROTOCOL", "Failure", "Gateway", "GatewayFailure", "Plugin", "Request"]

PROTOCOL = 2
#: sysexits.h EX_CONFIG: trying again cannot help.
EXIT_CONFIG = 78
#: So much of a refusal is quoted in the message.
_SHOWN = 300
_SERVER_ERROR = 500
#: Answers below 500 that may be different next time: timeout, too early, too many requests.
_PASSING = (408, 425, 429)


class Failure(Exception):  # noqa: N818 - it is what a plugin answers, not a fault of the plugin
    """The job did not succeed. With `retry=False` it is not tried again."""

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry


class GatewayFailure(Failure):
    """The gateway did not answer, or not with success; `status` is 0 if it did not answer."""

    def __init__(self, message: str, *, status: int, retry: bool) -> None:
        super().__init__(message, retry=retry)
        self.status = status


class Request:
    """What the plugin was asked, and what it will answer."""

    def __init__(self, raw: dict[str, Any]) -> None:
        #: The request as it came.
        self.raw = raw
        self.job_id = str(raw.get("job_id", ""))
        self.command = str(raw.get("command", ""))
        #: The name under which the plugin is configured.
        self.instance = str(raw.get("instance", ""))
        self.config: dict[str, Any] = raw.get("config") or {}
        self.state: dict[str, Any] = raw.get("state") or {}
        #: The baggage of the run, and `ductile_…` entries that describe it.
        self.context: dict[str, Any] = raw.get("context") or {}
        #: What happened; empty for commands that are not about an event.
        self.event: dict[str, Any] = raw.get("event") or {}
        self.headers: dict[str, str] = self.event.get("headers") or {}
        self.payload: dict[str, Any] = raw.get("payload") or self.event.get("payload") or {}
        self._answer: dict[str, Any] = {}

    @property
    def baggage(self) -> dict[str, Any]:
        """The context without what Ductile itself has put there."""
        return {name: value for name, value in self.context.items() if not name.startswith("ductile_")}

    def seconds_left(self, otherwise: float = 60.0) -> float:
        """How long until the process is ended; `otherwise` if the request does not say."""
        from datetime import datetime, timezone  # noqa: PLC0415 - few plugins ask

        deadline = self.raw.get("deadline_at")
        if not isinstance(deadline, str):
            return otherwise
        end = datetime.fromisoformat(deadline.replace("Z", "+00:00"))  # noqa: FURB162 - as below
        return max(0.0, (end - datetime.now(timezone.utc)).total_seconds())  # noqa: UP017 - older Pythons

    def emit(
        self, kind: str, payload: dict[str, Any] | None = None, *, dedupe_key: str | None = None
    ) -> None:
        """Tell that something has happened; routes and pipelines may take it up if the job succeeds."""
        event: dict[str, Any] = {"type": kind, "payload": payload or {}}
        if dedupe_key is not None:
            event["dedupe_key"] = dedupe_key
        self._answer.setdefault("events", []).append(event)

    def remember(self, **values: Any) -> None:
        """Keep values in the plugin's state; the next request has them in `state`."""
        self._answer.setdefault("state_updates", {}).update(values)

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to Ductile's log: debug, info, warn or error."""
        self._answer.setdefault("logs", []).append({"level": level, "message": message})

    def attach(self, name: str, *, path: str | None = None, url: str | None = None, **about: Any) -> None:
        """Name a file that was written; `about` may be media_type, size and sha256."""
        place = {"path": os.path.abspath(path)} if path is not None else {"url": url}  # noqa: PTH100 - slow to load
        self._answer.setdefault("artifacts", []).append({"name": name, **place, **about})

    def gateway(self, url: str, token: str | None = None) -> Gateway:
        """Ductile's own HTTP API, called on behalf of this job."""
        return Gateway(url, token, self.job_id)

    def succeeded(self, result: Any) -> dict[str, Any]:
        blank = result is None or (isinstance(result, str) and not result.strip())
        return {"status": "ok", "result": "done" if blank else result, **self._answer}

    def failed(self, message: str, *, retry: bool) -> dict[str, Any]:
        """With what was gathered so far: it has no effect, and stays with the job's log."""
        # A message may quote a file's name, and those need not be text that can be written.
        said = message.encode("utf-8", "replace").decode() if message.strip() else "failed without a message"
        return {"status": "error", "error": said, "retry": retry, **self._answer}


class Plugin:
    """The commands of a plugin, and the loop around them, which is one turn."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def command(self, function: Declared) -> Declared:
        """Declare a command: the function's name, without a trailing underscore, is the command's."""
        self._handlers[function.__name__.rstrip("_")] = function
        return function

    def run(self) -> NoReturn:
        """Read the request, run its command, print the answer, exit."""
        request = _read_request()
        out = _keep_stdout()
        answer = _written(request, self.answer(request))
        with os.fdopen(out, "wb") as stdout:
            stdout.write(answer)
        sys.exit(0)

    def answer(self, request: Request) -> dict[str, Any]:
        handler = self._handlers.get(request.command)
        if handler is None:
            return request.failed(f"there is no command {request.command!r}", retry=False)
        try:
            return request.succeeded(handler(request))
        except Failure as failure:
            return request.failed(str(failure), retry=failure.retry)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer says so
            _print_traceback()
            return request.failed(f"{type(error).__name__}: {error}", retry=True)


class Gateway:
    """Calls of the HTTP API that say which job they come from, so that loops are noticed."""

    def __init__(self, url: str, token: str | None, job_id: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "X-Ductile-Job": job_id}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def call(self, path: str, body: Any = None, *, method: str | None = None, timeout: float = 30.0) -> Any:
        """Send `body` as JSON (GET without one); what is answered, or `GatewayFailure` if it is no 2xx."""
        import urllib.error  # noqa: PLC0415 - slow to load, and few plugins call back
        import urllib.request  # noqa: PLC0415

        if not self._url.startswith(("http://", "https://")):
            raise Failure(
                f"the gateway's address has to begin with http:// or https://: {self._url}", retry=False
            )
        data = None if body is None else json.dumps(body).encode()
        verb = method or ("GET" if body is None else "POST")
        asked = urllib.request.Request(self._url + path, data=data, headers=self._headers, method=verb)  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(asked, timeout=timeout) as answer:  # noqa: S310 - as above
                return json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            said = refusal.read().decode("utf-8", "replace")[:_SHOWN]
            retry = refusal.code >= _SERVER_ERROR or refusal.code in _PASSING
            message = f"the gateway answers {verb} {path} with {refusal.code}: {said}"
            raise GatewayFailure(message, status=refusal.code, retry=retry) from None
        except (OSError, ValueError) as error:
            message = f"the gateway does not answer {verb} {path}: {error}"
            raise GatewayFailure(message, status=0, retry=True) from None


def _read_request() -> Request:
    try:
        raw = json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        _refuse(f"stdin holds no request: {error}")
    if not isinstance(raw, dict) or raw.get("protocol") != PROTOCOL:
        found = raw.get("protocol") if isinstance(raw, dict) else None
        _refuse(f"this plugin speaks protocol {PROTOCOL}, not {found}")
    return Request(raw)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    sys.exit(EXIT_CONFIG)


def _keep_stdout() -> int:
    """Take stdout for the answer. What the plugin, or a program it starts, prints there goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def _written(request: Request, answer: dict[str, Any]) -> bytes:
    try:
        return json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        failed = Request(request.raw).failed(f"the answer cannot be written as JSON: {error}", retry=False)
        return json.dumps(failed).encode()


def _print_traceback() -> None:
    import traceback  # noqa: PLC0415 - only when something went wrong

    traceback.print_exc()
