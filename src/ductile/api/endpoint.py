"""What an endpoint is: a row of the table from which requests, the OpenAPI document and the docs are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.core.json import JsonObject
from ductile.struct import Value, field

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

    from ductile.api.access import Authenticator
    from ductile.api.events import EventStreams
    from ductile.config.snapshot import Snapshot
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
#: The scopes of which one is needed, given the configuration and the path's parameters.
Need: TypeAlias = "Callable[[Snapshot, Mapping[str, str]], tuple[str, ...]]"


class Access(Value):
    """Who may ask: nobody need say who they are, or one of the scopes is needed."""

    #: As the reference has it.
    shown: str
    need: Need | None = None
    #: Open where the catalogue is; elsewhere any token will do: what can be called is for all who may call.
    discovery: bool = False


OPEN = Access(shown="none")


def requires_scope(subject: AccessResource, right: AccessLevel) -> Access:
    """The same scope whatever the path says."""
    needed = (auth_scope(subject, right),)
    return Access(shown=needed[0], need=lambda _snapshot, _path: needed)


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
    """What a path means: an endpoint, and the values of its parameters.

    Most callers come back to the same few paths, so it also keeps what the gatekeeper has found out about it.
    """

    __slots__ = ("auth_version", "endpoint", "granted", "shown", "values")

    def __init__(self, endpoint: Endpoint, values: Mapping[str, str], shown: str) -> None:
        self.endpoint = endpoint
        self.values = values
        #: The path as it was asked for, for the log.
        self.shown = shown
        #: The scopes of tokens that it is open to, and the gatekeeper's mark of when that was so.
        self.granted: set[tuple[str, ...]] = set()
        self.auth_version: object = None
