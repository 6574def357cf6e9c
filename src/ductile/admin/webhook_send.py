"""`webhook send`: a request signed as its sender would sign it, posted to our own listener."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode

from ductile.admin.config import open_configuration
from ductile.core.json import JsonObject
from ductile.core.webhooks.signatures import URL_TOKEN, signed_headers
from ductile.errors import DaemonNotRunningError
from ductile.operations.webhooks.manage import named_endpoint
from ductile.struct import Value, hide_in_repr

_TIMEOUT_SECONDS = 30.0
_ACCEPTED = range(200, 300)
#: Replaces addresses that mean all interfaces, to which no connection is possible.
_LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - replaced, not bound


@hide_in_repr("body", "query")
class SignedRequest(Value):
    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    body: bytes
    #: The secret, for a sender that cannot sign.
    query: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.path}"

    def redacted(self) -> JsonObject:
        """Return the request as it may be shown, without its body and its secret."""
        return {"url": self.url, "headers": dict(self.headers), "bytes": len(self.body)}


def sign_request(
    config_path: str | None, environ: Mapping[str, str], name: str, body: bytes, delivery: str | None
) -> SignedRequest:
    """Return a signed request for an endpoint, given by its name or path. Raises NotFoundError."""
    snapshot = open_configuration(config_path, environ).snapshot
    endpoint = named_endpoint(snapshot, name)
    headers = signed_headers(
        endpoint.scheme,
        endpoint.secret.reveal(),
        message_id=delivery or str(uuid.uuid4()),
        body=body,
        now=datetime.now(UTC),
    )
    # Removed from the headers, which are shown: this one is the secret itself.
    token = headers.pop(URL_TOKEN.header, None)
    host, _, port = snapshot.webhooks_listen.rpartition(":")
    address = host.strip("[]")
    return SignedRequest(
        host=_LOOPBACK_ADDRESSES.get(address, address),
        port=int(port),
        path=endpoint.path,
        headers={"content-type": "application/json", **headers},
        body=body,
        query="" if token is None else f"?{urlencode({'token': token})}",
    )


def send_request(signed: SignedRequest) -> JsonObject:
    """Send the request and return the response. Raises DaemonNotRunningError if nothing listens."""
    connection = HTTPConnection(signed.host, signed.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("POST", signed.path + signed.query, body=signed.body, headers=dict(signed.headers))
        response = connection.getresponse()
        status, content = response.status, response.read()
    except (OSError, HTTPException) as error:
        raise DaemonNotRunningError(
            f"nothing answers at {signed.host}:{signed.port}", hint="Start it with `ductile system start`."
        ) from error
    finally:
        connection.close()
    try:
        decoded = json.loads(content)
    except ValueError:
        decoded = None
    document: JsonObject = decoded if isinstance(decoded, dict) else {}
    return {
        "url": signed.url,
        "status": status,
        "accepted": status in _ACCEPTED,
        "job_id": document.get("job_id"),
        "message": document.get("message"),
        "answer": document,
    }
