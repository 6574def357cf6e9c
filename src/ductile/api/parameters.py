"""A request as the operations want it: path, query, headers and body in one object of named values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import parse_qsl

from ductile.api.endpoint import Endpoint, MatchedRoute, Parameter, ParameterType
from ductile.config.key_paths import did_you_mean
from ductile.core.json import JsonObject, JsonValue
from ductile.errors import RefusedError, UsageError
from ductile.http.authentication import OPEN
from ductile.http.body import decode_object

_WORDS = {"true": True, "1": True, "yes": True, "": True, "false": False, "0": False, "no": False}
_MOST_DIGITS = 18
#: Headers that every submission may carry, by the name an operation knows them by.
SUBMISSION_HEADERS = {
    b"idempotency-key": "idempotency_key",
    b"traceparent": "traceparent",
    b"x-ductile-job": "inside_job",
}


def read_parameters(
    route: MatchedRoute, query: bytes, headers: Mapping[bytes, bytes], body: bytes | None
) -> JsonObject:
    """All that was asked. The path counts before the body, the body before the query."""
    endpoint = route.endpoint
    given: JsonObject = {}
    if query and not _is_health(endpoint):
        given.update(_query(endpoint, query))
    if endpoint.intake and not SUBMISSION_HEADERS.keys().isdisjoint(headers):
        for header, name in SUBMISSION_HEADERS.items():
            if header in headers:
                given[name] = headers[header].decode("latin-1")
    if body:
        given.update(_body(endpoint, body, headers.get(b"content-encoding")))
    given.update(route.values)
    return given


def _is_health(endpoint: Endpoint) -> bool:
    """Monitors add parameters of their own; refused for one, they would take us for ill."""
    return endpoint.probe and endpoint.access is OPEN


def _body(endpoint: Endpoint, body: bytes, encoding: bytes | None) -> JsonObject:
    said = cast("JsonObject", decode_object(body, encoding))
    known = endpoint.body or ()
    for name in said:
        if name not in known:
            meant = "What is meant for the plugin goes into payload; known" if "payload" in known else "Known"
            raise RefusedError(
                f"there is no field {name[:100]} in this body",
                hint=did_you_mean(name, known) or f"{meant}: {', '.join(known)}.",
                details={"field": name[:100], "known": list(known)},
            )
    return said


def _query(endpoint: Endpoint, query: bytes) -> Iterator[tuple[str, JsonValue]]:
    known = {parameter.name: parameter for parameter in endpoint.query}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise UsageError("the query cannot be read") from None
    for name, value in pairs:
        if name not in known:
            all_known = f"Known: {', '.join(known)}." if known else "This call has none."
            hint = did_you_mean(name, known) or all_known
            raise UsageError(f"there is no parameter {name[:100]}", hint=hint)
        yield name, _value(known[name], value)


def _value(parameter: Parameter, text: str) -> JsonValue:
    match parameter.kind:
        case ParameterType.TEXT:
            return text
        case ParameterType.NUMBER:
            digits = text.removeprefix("-")
            if not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
                raise UsageError(f"{parameter.name} has to be a whole number")
            return int(text)
        case ParameterType.FLAG:
            if text.lower() not in _WORDS:
                raise UsageError(f"{parameter.name} has to be true or false")
            return _WORDS[text.lower()]
