"""Endpoints: an HTTP route with its parameters and responses, and the handler that replies."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import parse_qsl

from ductile.core.json import JsonObject, JsonValue
from ductile.core.suggest import did_you_mean
from ductile.errors import RefusedError, UsageError
from ductile.http.body import decode_object
from ductile.http.responses import Header, RawResponse, Stream
from ductile.operations.operation import OPEN, Access, HttpRoute, Operation
from ductile.operations.request import FieldSource, RequestField, request_fields
from ductile.operations.response import Response
from ductile.struct import Value

if TYPE_CHECKING:
    from ductile.api.events import EventStreams
    from ductile.http.authentication import Authenticator
    from ductile.operations.context import OperationContext
    from ductile.telemetry.metrics import Metrics

#: The name of the schema of a response body that is the `result` alone, requested by `?result=only`.
BARE_RESULT = "BareResult"
_MAX_QUOTED = 100
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class ApiServices(Value):
    """The objects that handlers need besides the operation context. They live as long as the listener."""

    authenticator: Authenticator
    streams: EventStreams
    metrics: Metrics


class ApiRequest(Value):
    """A request that a handler gets: authenticated, with its parameters by name."""

    context: OperationContext
    services: ApiServices
    #: Parameters of path, query, headers and body by name.
    values: JsonObject
    headers: Mapping[bytes, bytes]
    matched: MatchedEndpoint
    #: The name of the caller's access token; None where the endpoint needs none.
    token_name: str | None = None
    #: The scopes of that token.
    scopes: tuple[str, ...] = ()
    #: Whether a browser sent it that signed in by a link, without a token of the configuration.
    signed_in_by_link: bool = False
    peer: str | None = None


class Reply(Value):
    """A response with HTTP headers. A `status` of None stands for the status of the response or the route."""

    response: Response
    status: int | None = None
    headers: tuple[Header, ...] = ()


ApiResponse: TypeAlias = Reply | RawResponse | Stream
Handler: TypeAlias = Callable[[ApiRequest], Awaitable[ApiResponse]]


class Endpoint(Value, dict=True):
    """A route of the API: its parameters, responses and access, and the handler that replies."""

    http: HttpRoute
    summary: str
    access: Access
    handler: Handler
    #: The operation that the handler runs; its types are loaded with the first request.
    operation: Operation | None = None
    #: The request of a handler that runs no operation, or an untyped one.
    request_type: type[Value] | None = None
    #: The responses of such a handler; None for those of the operation.
    response_types: tuple[type[Response], ...] | None = None

    @cached_property
    def path_parameters(self) -> tuple[str, ...]:
        return tuple(_PATH_PARAMETER.findall(self.http.path))

    @cached_property
    def fields(self) -> Mapping[FieldSource, Mapping[str, RequestField]]:
        """The fields of the request by their source, then by name; headers by their names in lower case."""
        fields = self.operation.fields if self.operation is not None else {}
        if self.request_type is not None:
            fields = request_fields(self.request_type)
        by_source: dict[FieldSource, dict[str, RequestField]] = {source: {} for source in FieldSource}
        for name, field in fields.items():
            if name in self.path_parameters:
                source = FieldSource.PATH
            elif field.source is not None:
                source = field.source
            else:
                source = FieldSource.QUERY if self.http.method == "GET" else FieldSource.BODY
            by_source[source][name if field.header is None else field.header.lower()] = field
        return by_source

    @cached_property
    def headers(self) -> tuple[tuple[bytes, str], ...]:
        """The names of the headers that are read, in lower case, each with the name of its field."""
        return tuple(
            (header.encode(), field.name) for header, field in self.fields[FieldSource.HEADER].items()
        )

    @cached_property
    def responses(self) -> Mapping[int, tuple[str, ...]]:
        """The names of the response schemas by status; empty where the reply has another format."""
        by_status: dict[int, tuple[str, ...]] = {}
        types = self.response_types
        if types is None:
            types = () if self.operation is None else self.operation.response_types
        for response_type in types:
            if not response_type.CLI_ONLY:
                status = response_type.STATUS or self.http.statuses[0]
                by_status[status] = (*by_status.get(status, ()), response_type.__name__)
        if "result" in self.fields[FieldSource.QUERY]:
            by_status[HTTPStatus.OK] += (BARE_RESULT,)
        if HTTPStatus.BAD_GATEWAY in self.http.statuses:
            by_status[HTTPStatus.BAD_GATEWAY] = by_status[HTTPStatus.OK]
        return by_status


class MatchedEndpoint:
    """The endpoint of a method and path, and the values of the parameters in the path."""

    __slots__ = ("endpoint", "logged_path", "values")

    def __init__(self, endpoint: Endpoint, values: Mapping[str, str], logged_path: str) -> None:
        self.endpoint = endpoint
        self.values = values
        #: The path as it was requested, for the log.
        self.logged_path = logged_path


def read_parameters(
    matched: MatchedEndpoint, query: bytes, headers: Mapping[bytes, bytes], body: bytes | None
) -> JsonObject:
    """Return the values of a request by name: those of the path before the body, the body before the query.

    Raises `UsageError` for an unknown or unreadable parameter, `RefusedError` for an unknown body field.
    """
    endpoint = matched.endpoint
    values: JsonObject = {}
    # Monitors add query parameters of their own to health checks; those are not refused.
    if query and not (endpoint.http.is_polled and endpoint.access is OPEN):
        values.update(_read_query(endpoint, query))
    for header, name in endpoint.headers:
        if header in headers:
            values[name] = headers[header].decode("latin-1")
    if body:
        values.update(_read_body(endpoint, body, headers.get(b"content-encoding")))
    values.update(matched.values)
    return values


def _read_query(endpoint: Endpoint, query: bytes) -> Iterator[tuple[str, JsonValue]]:
    """Yield the names and values of the query. Raises `UsageError`."""
    parameters = endpoint.fields[FieldSource.QUERY]
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise UsageError("the query cannot be read") from None
    for name, text in pairs:
        if name not in parameters:
            all_parameters = f"Known: {', '.join(parameters)}." if parameters else "This call has none."
            hint = did_you_mean(name, parameters) or all_parameters
            raise UsageError(f"there is no parameter {name[:_MAX_QUOTED]}", hint=hint)
        yield name, parameters[name].parse_text(text)


def _read_body(endpoint: Endpoint, body: bytes, encoding: bytes | None) -> JsonObject:
    """Return the fields of the body. Raises `UsageError` or `RefusedError`."""
    document = cast("JsonObject", decode_object(body, encoding))
    fields = endpoint.fields[FieldSource.BODY]
    for name in document:
        if name not in fields:
            prefix = "The input of the plugin goes into payload; known" if "payload" in fields else "Known"
            raise RefusedError(
                f"there is no field {name[:_MAX_QUOTED]} in this body",
                hint=did_you_mean(name, fields) or f"{prefix}: {', '.join(fields)}.",
                details={"field": name[:_MAX_QUOTED], "known": list(fields)},
            )
    return document
