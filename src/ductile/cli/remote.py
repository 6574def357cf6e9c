"""Operations of a daemon on another machine, over its HTTP API.

Imported only for `--url` and `DUCTILE_URL`: other commands do not pay for HTTP and TLS.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from ductile.cli.operation_routes import ROUTES, Route
from ductile.control.client import decode_error
from ductile.core.durations import QuantityError, parse_duration
from ductile.core.host_names import is_loopback_host
from ductile.core.json import JsonObject, JsonValue
from ductile.errors import (
    DaemonNotRunningError,
    DeniedError,
    DuctileError,
    StoreBusyError,
    UnauthorizedError,
    UsageError,
)

TOKEN_ENV_VARIABLE = "DUCTILE_TOKEN_ENV"  # noqa: S105 - the name of a variable
#: The variable with the token, unless another one is named.
DEFAULT_TOKEN_ENV = "DUCTILE_TOKEN"  # noqa: S105 - the name of a variable

_CONNECT_SECONDS = 10.0
#: The longest that one request waits for a job. Many proxies cut connections that are idle for a minute.
_POLL_SECONDS = 25
#: How much longer than `_POLL_SECONDS` the response may take.
_POLL_MARGIN_SECONDS = 30.0
_MAX_QUOTED = 200
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ENDED = frozenset(("succeeded", "failed", "timed_out", "dead"))
_URL_HINT = "such as --url https://ductile.example.org"
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_REDIRECTS = range(300, 400)


class RemoteDaemon(NamedTuple):
    """The address of a daemon, and the token to use there. No message contains the token."""

    scheme: str
    host: str
    port: int
    #: The path below which a reverse proxy serves the daemon; without a slash at the end.
    prefix: str
    token_env: str
    token: str
    ca: str | None

    def __repr__(self) -> str:
        return f"RemoteDaemon({self.url!r})"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    def close(self) -> None:
        """Each request has a connection of its own, so nothing is open."""

    def call(self, operation: str, fields: Mapping[str, JsonValue], *, timeout: float | None) -> JsonObject:
        """Run an operation and return its response. Raises the error that the operation raised in the daemon.

        `timeout` limits the time without a response; None waits without a limit.
        """
        if operation == "job.wait":
            return self._wait_for_job(dict(fields))
        values = dict(fields)
        if operation.endswith(".follow"):
            values["timeout"], timeout = f"{_POLL_SECONDS}s", _POLL_SECONDS + _POLL_MARGIN_SECONDS
        if operation == "pipeline.run":
            values["async"] = True  # `job.wait` waits for the run, as it does on the same machine
        return self._call_route(operation, values, timeout)

    def _wait_for_job(self, fields: JsonObject) -> JsonObject:
        """Return the job when it has ended or the time is up, by repeated requests (long polling)."""
        deadline: float | None = None
        if (timeout := fields.get("timeout")) is not None:
            try:
                deadline = time.monotonic() + parse_duration(str(timeout)).total_seconds()
            except QuantityError as error:
                raise UsageError(f"timeout: {error}", details={"field": "timeout"}) from None
        while True:
            seconds_left = _POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            wait = min(seconds_left, _POLL_SECONDS)
            values = {**fields, "timeout": f"{round(wait * 1000)}ms"}
            job = self._call_route("job.wait", values, wait + _POLL_MARGIN_SECONDS)
            if job["status"] in _ENDED or (deadline is not None and time.monotonic() >= deadline):
                return job

    def _call_route(self, operation: str, fields: JsonObject, timeout: float | None) -> JsonObject:
        route = ROUTES.get(operation)
        if route is None:
            raise UsageError(
                f"{operation} is not offered over HTTP", hint="Run it on the machine of the daemon."
            )
        target, body = _request_target(route, fields)
        response = self._send_http(route.method, f"{self.prefix}{target}", body, timeout)
        if not route.own_message:
            response.pop("message", None)
        return response

    def _send_http(
        self, method: str, target: str, body: JsonObject | None, timeout: float | None
    ) -> JsonObject:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connect()
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            connection.request(method, target, body=content, headers=headers)
            response = connection.getresponse()
            received = response.read()
        except TimeoutError:
            raise StoreBusyError(
                f"{self.url} did not answer within {timeout:.0f} seconds", hint="Try again."
            ) from None
        except (OSError, http.client.HTTPException):
            raise DaemonNotRunningError(
                f"{self.url} closed the connection before it answered",
                hint="What was asked for may be done: look before you ask again.",
            ) from None
        finally:
            connection.close()
        return self._read(response, received)

    def _connect(self) -> http.client.HTTPConnection:
        """Return a connection with a verified certificate. Raises an error that names the cause."""
        connection: http.client.HTTPConnection
        if self.scheme == "https":
            context = _tls(self.ca)
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=_CONNECT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise DeniedError(
                f"the certificate of {self.url} cannot be trusted: {error.verify_message}",
                hint="Is it the right host? The certificate of a private authority is named with --ca FILE.",
            ) from None
        except ssl.SSLError as error:
            raise DaemonNotRunningError(
                f"{self.url} does not speak TLS as expected: {error.reason or 'the handshake failed'}",
                hint="Is the port the one for https?",
            ) from None
        except socket.gaierror:
            raise DaemonNotRunningError(
                f"the host {self.host} is not known", hint="Check the spelling of --url, and the network."
            ) from None
        except TimeoutError:
            raise DaemonNotRunningError(
                f"{self.url} did not accept the connection within {_CONNECT_SECONDS:.0f} seconds",
                hint="Is a firewall between?",
            ) from None
        except OSError as error:
            raise DaemonNotRunningError(
                f"{self.url} cannot be reached: {error.strerror or type(error).__name__}",
                hint="Does the daemon run there, with api.enabled, and is the port right?",
            ) from None
        return connection

    def _read(self, response: http.client.HTTPResponse, received: bytes) -> JsonObject:
        """Return the document of a response. Raises the daemon's error, or one for a foreign response."""
        status = response.status
        if status in _REDIRECTS:
            location = (response.getheader("location") or "another address")[:_MAX_QUOTED]
            raise DuctileError(
                f"{self.url} answered with a redirect to {location}, which is not followed with a token",
                hint="If you trust that address, give it as --url.",
            )
        try:
            document: Any = json.loads(received)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            content_type = (response.getheader("content-type") or "no content type")[:_MAX_QUOTED]
            raise DuctileError(
                f"{self.url} is not the API of Ductile: it answered {status} with {content_type}",
                hint="Check host, port and path of --url; a proxy on the way may have answered.",
            )
        body = document.get("error")
        if isinstance(body, dict) and isinstance(body.get("code"), str):
            error = decode_error({"message": "", **body})
            if isinstance(error, UnauthorizedError):  # hints of the daemon are for its own machine
                error.message = f"{self.url} refused the token: {error.message}"
                error.hint = (
                    f"The token is the value of the variable {self.token_env}. Is it the one for this daemon?"
                )
            raise error
        if status >= http.client.BAD_REQUEST:
            error_type = DeniedError if status in (_UNAUTHORIZED, _FORBIDDEN) else DuctileError
            raise error_type(
                f"{self.url} answered {status}, not as Ductile does: a proxy on the way may have answered",
                hint="Check host, port and path of --url.",
            )
        return document


def find_remote(url: str, token_env: str | None, ca: str | None, environ: Mapping[str, str]) -> RemoteDaemon:
    """Return the daemon at a URL. Raises UsageError if the URL or the token cannot be used."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise UsageError("the port of --url is not a number", hint=_URL_HINT) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url[:_MAX_QUOTED]!r} is not the URL of a daemon", hint=_URL_HINT)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError("--url takes scheme, host, port and path, and no credentials", hint=_URL_HINT)
    if parts.scheme == "http" and not is_loopback_host(parts.hostname):
        raise UsageError(
            f"http would send the token to {parts.hostname} in the clear",
            hint="Use https, or a tunnel: ssh -L 8080:localhost:8080 HOST, then --url http://localhost:8080",
        )
    if ca is not None and parts.scheme == "http":
        raise UsageError("--ca is for https", hint=_URL_HINT)
    variable = token_env or environ.get(TOKEN_ENV_VARIABLE) or DEFAULT_TOKEN_ENV
    if not _VARIABLE.fullmatch(variable):
        # It may be the token itself, so it is not repeated.
        raise UsageError(
            "--token-env takes the name of a variable, and not the token",
            hint="export DUCTILE_TOKEN=..., then leave --token-env out",
        )
    token = environ.get(variable, "").strip()
    if not token:
        raise UsageError(
            f"there is no token: the variable {variable} is not set",
            hint=f"export {variable}=..., or name another variable with --token-env",
        )
    if not token.isascii() or not token.isprintable():
        raise UsageError(f"the value of {variable} cannot be a token: it has to be one line of ASCII text")
    return RemoteDaemon(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        prefix=parts.path.rstrip("/"),
        token_env=variable,
        token=token,
        ca=ca,
    )


def _request_target(route: Route, fields: JsonObject) -> tuple[str, JsonObject | None]:
    """Return the path with its query, and the body, which only POST has."""
    paths = [path for path in route.paths if all(name in fields for name in _PATH_PARAMETER.findall(path))]
    if not paths:
        missing = _PATH_PARAMETER.findall(route.paths[0])
        raise UsageError(f"{' and '.join(name for name in missing if name not in fields)} has to be named")
    in_path = _PATH_PARAMETER.findall(paths[0])
    path = _PATH_PARAMETER.sub(lambda match: quote(str(fields[match[1]]), safe=""), paths[0])
    body = {name: value for name, value in fields.items() if name not in in_path}
    in_query = (
        body if route.method == "GET" else {name: body.pop(name) for name in route.query if name in body}
    )
    texts = {name: str(value) for name, value in in_query.items()}
    texts |= {
        name: "true" if value else "false" for name, value in in_query.items() if isinstance(value, bool)
    }
    query = f"?{urlencode(texts)}" if texts else ""
    return f"{path}{query}", None if route.method == "GET" else body


@cache
def _tls(ca: str | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities in `ca`, or else of the system or SSL_CERT_FILE."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if not isinstance(error, ssl.SSLError) else "it has no certificate"
        raise UsageError(f"--ca: {ca} cannot be read: {reason}", hint="a file in PEM format") from None
