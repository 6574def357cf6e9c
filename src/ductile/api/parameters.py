"""Reading the parameters of an HTTP request: path, query, headers and body as one object of named values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import parse_qsl

from ductile.api.endpoint import Endpoint, MatchedRoute
from ductile.core.json import JsonObject, JsonValue
from ductile.core.suggest import did_you_mean
from ductile.errors import RefusedError, UsageError
from ductile.http.body import decode_object
from ductile.operations.access import OPEN
from ductile.operations.request import FieldSource

_QUOTED = 100


def read_parameters(
    route: MatchedRoute, query: bytes, headers: Mapping[bytes, bytes], body: bytes | None
) -> JsonObject:
    """The named values of a request. The path takes precedence over the body, the body over the query.

    Raises `UsageError` for an unknown or unreadable parameter, `RefusedError` for an unknown body field.
    """
    endpoint = route.endpoint
    values: JsonObject = {}
    # Monitors add query parameters of their own to health checks; those are not refused.
    if query and not (endpoint.http.probe and endpoint.access is OPEN):
        values.update(_read_query(endpoint, query))
    for header, field in endpoint.fields[FieldSource.HEADER].items():
        if (text := headers.get(header.encode())) is not None:
            values[field.name] = text.decode("latin-1")
    if body:
        values.update(_read_body(endpoint, body, headers.get(b"content-encoding")))
    values.update(route.values)
    return values


def _read_query(endpoint: Endpoint, query: bytes) -> Iterator[tuple[str, JsonValue]]:
    known = endpoint.fields[FieldSource.QUERY]
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise UsageError("the query cannot be read") from None
    for name, text in pairs:
        if name not in known:
            all_known = f"Known: {', '.join(known)}." if known else "This call has none."
            hint = did_you_mean(name, known) or all_known
            raise UsageError(f"there is no parameter {name[:_QUOTED]}", hint=hint)
        yield name, known[name].parse_text(text)


def _read_body(endpoint: Endpoint, body: bytes, encoding: bytes | None) -> JsonObject:
    document = cast("JsonObject", decode_object(body, encoding))
    known = endpoint.fields[FieldSource.BODY]
    for name in document:
        if name not in known:
            meant = "What is meant for the plugin goes into payload; known" if "payload" in known else "Known"
            raise RefusedError(
                f"there is no field {name[:_QUOTED]} in this body",
                hint=did_you_mean(name, known) or f"{meant}: {', '.join(known)}.",
                details={"field": name[:_QUOTED], "known": list(known)},
            )
    return document
