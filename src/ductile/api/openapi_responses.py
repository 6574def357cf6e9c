"""What each operation of the OpenAPI document may be answered with, and the components that it refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus

from ductile.api.endpoint import Endpoint
from ductile.api.openapi_schemas import content_of, schemas
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.request import FieldSource
from ductile.operations.shapes import PLACE, TEXT, named, told

_PLACE = "#/components/responses/"
_ERROR = 400
#: What every call that needs a token may be answered with; what every call may be.
_WITH_TOKEN = (401, 403, 429)
#: What a call that may be made without a token can be answered with.
_WITHOUT_TOKEN = (421,)
_ALWAYS = (400, 405, 431, 503)
_WITH_BODY = (408, 413, 422)
_ABOUT = {
    403: "The token lacks the scope; `details.needed` names those of which one is enough",
    405: "Another method at this path",
    421: "`Host` or `Origin` names another host than this loopback listener's, and there is no token",
    502: "With `strict`: the run did not succeed",
    503: "No slot, too many connections, the store is down, or the daemon stops",
}
_WAIT: JsonObject = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
_STATUS: JsonObject = {"X-Ductile-Status": {"schema": told(TEXT, "How the job stands, or how it ended.")}}
_HEADERS: Mapping[int, JsonObject] = {
    401: {"WWW-Authenticate": {"schema": told(TEXT, "How to say who you are.")}},
    405: {"Allow": {"schema": told(TEXT, "The methods that this path takes.")}},
    429: _WAIT,
    503: _WAIT,
}


def responses(endpoint: Endpoint) -> JsonObject:
    own = [each for each in endpoint.http.statuses if each < _ERROR or each in endpoint.responses]
    errors = {*_ALWAYS, *(status for status in endpoint.http.statuses if status not in own)}
    if endpoint.access.need is not None:
        errors |= {*_WITH_TOKEN}
    if endpoint.access.need is None or endpoint.access.discovery:
        errors |= {*_WITHOUT_TOKEN}
    if endpoint.http.method == "POST":
        errors |= {*_WITH_BODY}
    if endpoint.path_parameters:
        errors.add(404)
    if endpoint.fields[FieldSource.QUERY]:
        errors |= {404, 422}  # an unknown plugin, a cursor that is not ours
    return {
        **{str(status): _good(endpoint, status) for status in own},
        **{str(status): {"$ref": f"{_PLACE}{_name(status)}"} for status in sorted(errors)},
    }


def _good(endpoint: Endpoint, status: int) -> JsonObject:
    about = _ABOUT.get(status, HTTPStatus(status).phrase)
    shown: JsonObject = {"description": about, "content": content_of(endpoint, status)}
    return {**shown, "headers": _STATUS} if endpoint.http.tells_status else shown


def _name(status: int) -> str:
    return f"Error{int(status)}"  # the words for a status differ from one version of Python to another


def _refusal(status: HTTPStatus) -> JsonObject:
    return {
        "description": _ABOUT.get(status, status.phrase),
        "content": {"application/json": {"schema": named("Error")}},
        **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
    }


def components(paths: JsonObject) -> JsonObject:
    """Those that are referred to, and no others: an agent has to read all there is."""
    meant = {*_references(paths)}
    refusals: JsonObject = {
        _name(status): _refusal(status) for status in HTTPStatus if f"{_PLACE}{_name(status)}" in meant
    }
    known = schemas()
    found: JsonObject = {}
    wanted = {*meant, *_references(refusals)}
    while wanted:
        more = {name: known[name] for name in known if f"{PLACE}{name}" in wanted and name not in found}
        found |= more
        wanted = {*_references({**more})}
    return {"responses": refusals, "schemas": {name: found[name] for name in known if name in found}}


def _references(value: JsonValue) -> Iterator[str]:
    match value:
        case dict():
            if isinstance(place := value.get("$ref"), str):
                yield place
            for inner in value.values():
                yield from _references(inner)
        case list():
            for inner in value:
                yield from _references(inner)
        case _:
            return
