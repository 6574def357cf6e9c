"""What an endpoint is: a row of the table from which requests, the OpenAPI document and the docs are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from ductile.core.json import JsonObject
from ductile.struct import Value, field

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

    from ductile.api.events import EventStreams
    from ductile.http.authentication import Access, Authenticator
    from ductile.operations.context import OperationContext
    from ductile.telemetry.metrics import Metrics


class ParameterType(StrEnum):
    """How a value of the query is read."""

    TEXT = "string"
    NUMBER = "integer"
    FLAG = "boolean"


class Parameter(Value):
    name: str
    about: str
    kind: ParameterType = ParameterType.TEXT
    schema: JsonObject = field(default_factory=dict)


class ApiServices(Value):
    """What answers need besides the desk, and what lives as long as the listener."""

    authenticator: Authenticator
    streams: EventStreams
    metrics: Metrics


class ApiRequest(Value):
    """A request, read. `token` is the name of the token, None where none is needed."""

    context: OperationContext
    services: ApiServices
    given: JsonObject
    headers: Mapping[bytes, bytes]
    route: MatchedRoute
    token: str | None = None
    peer: str | None = None


class Reply(Value):
    body: JsonObject
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Document(Value):
    """An answer that is not one of our objects: another format decides what it looks like."""

    content: bytes
    media_type: str
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(Value):
    """An answer that is sent as it comes. It ends when the caller goes away."""

    run: Callable[[ASGISendCallable], Awaitable[None]]
    #: Called when it is over, also if it never began.
    close: Callable[[], None] = lambda: None


ApiReply: TypeAlias = Reply | Document | Stream
Handler: TypeAlias = Callable[[ApiRequest], Awaitable[ApiReply]]


class Endpoint(Value):
    method: str
    #: With parameters in braces: `/job/{job_id}`.
    path: str
    summary: str
    access: Access
    handler: Handler
    #: What an answer says of itself where its body has no message.
    message: str
    #: The name of what it answers, or one for each good status; None where it is no object of ours.
    answer: str | Mapping[int, str] | None = None
    #: What it answers in another format, by media type.
    documents: Mapping[str, JsonObject] = field(default_factory=dict)
    query: tuple[Parameter, ...] = ()
    #: Names a body may have; None where none is read.
    body: tuple[str, ...] | None = None
    #: Whether the caller may have to wait for something: then it is noticed when they hang up.
    waits: bool = False
    #: Whether the answer is sent as it comes.
    streams: bool = False
    #: Whether the header `X-Ductile-Status` says how the job stands.
    tells_status: bool = False
    #: Whether its last parameter takes the rest of the path, slashes included.
    takes_rest: bool = False
    #: Whether it is intake, which ends when the daemon begins to stop.
    intake: bool = False
    #: Whether it is asked so often that its line in the log is for debugging only, unless it was refused.
    probe: bool = False
    #: Status of the usual answer, and the others that are worth naming.
    statuses: tuple[int, ...] = (200,)
    tag: str = "system"


class MatchedRoute:
    """The endpoint that a path means, and the values of the parameters in the path."""

    __slots__ = ("endpoint", "shown", "values")

    def __init__(self, endpoint: Endpoint, values: Mapping[str, str], shown: str) -> None:
        self.endpoint = endpoint
        self.values = values
        #: The path as it was requested, for the log.
        self.shown = shown
