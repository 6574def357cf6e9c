"""What an operation is: one use case, said once.

An operation has four parts, and every surface derives the rest from them:

1. a request struct: its fields are the HTTP parameters, the CLI options and the tool's arguments;
2. a response struct: its JSON is what every surface returns;
3. one async function `(context, request) -> response`;
4. one row in `operations/table.py`.

To convert an operation `async def pause(context, given: JsonObject) -> JsonObject`, write in its module:

    class PauseSchedule(Value):
        plugin: Annotated[str, about("The plugin.")]
        schedule: Annotated[str | None, about("Its schedule; needed if there are several.")] = None
        until: Annotated[datetime | None, about("Resume by itself then.")] = None
        dry_run: DryRun = False

    class ScheduleSwitched(Response):
        plugin: str
        id: str
        paused: Annotated[bool, about("Whether it is paused now.")]
        paused_at: Timestamp | None
        would_be_paused: bool | UnsetType = UNSET
        dry_run: WasDryRun = UNSET

    async def pause_schedule(context: OperationContext, request: PauseSchedule) -> ScheduleSwitched:
        ...

and replace its row by

    Operation(
        name="schedule.pause",
        target="schedules.manage:pause_schedule",
        summary="Pause a schedule; it survives a restart",
        access=JOBS_RW,
        http=post("/schedule/{plugin}/{schedule}/pause", tag="schedules", statuses=(200, 404, 409)),
    )

Then delete its shape, its hand-written `Endpoint` in `api/endpoints.py` and its handler. The rules:

- The types are found from the function's annotations, so what they name is imported at run time, not under
  `TYPE_CHECKING`.
- A request field is `str`, `bool`, `int` (with `ge`, `le`), a `StrEnum` (with `extra={"aliases": {...}}` for
  other words), `datetime` (RFC 3339 or a date), `timedelta` (`5m`) or `dict` (a JSON object), and any of them
  or None. Another type brings `extra={"decode": function}` and `extra_json_schema={...}`.
- A name that Python reserves: `since: ... = field(name="from", default=None)`.
- Over HTTP, a field named in the path comes from the path; others come from the query (GET) or the body
  (POST), unless `in_query`, `in_header` or `local` says so (see `operations/request.py`).
- A response field that is always there has no default; one that is sometimes absent is `| UnsetType = UNSET`.
  Instants are texts made by `timestamp()`, of the type `Timestamp`; ids are `Id`; plugins' JSON is `Any`.
- A response may override `http_status` and `http_message`.
- A union of responses is allowed: `-> Submitted | Finished`.
- Class names are the names of the OpenAPI components: unique, and plain words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from importlib import import_module
from inspect import get_annotations
from typing import Any, TypeAlias, get_args, get_type_hints

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext
from ductile.operations.request import RequestField, decode_request, request_fields
from ductile.operations.response import Response
from ductile.protocol.manifest.model import Command, CommandType
from ductile.struct import Value, field, to_builtins

Function: TypeAlias = Callable[[OperationContext, Any], Awaitable[Any]]


class HttpRoute(Value):
    """Where an operation is found over HTTP."""

    method: str
    #: With parameters in braces: `/job/{job_id}`.
    path: str
    #: Other paths of the same operation.
    aliases: tuple[str, ...] = ()
    #: The `message` of a response that has none of its own; the operation's summary if it is empty.
    message: str = ""
    #: Status of the usual response, then those of other responses and errors that are worth naming.
    statuses: tuple[int, ...] = (200,)
    tag: str = "system"
    #: Response bodies of another format than our JSON: media type -> JSON Schema.
    documents: Mapping[str, JsonObject] = field(default_factory=dict)
    #: Whether it submits work: refused while the daemon stops.
    submits: bool = False
    #: Whether the response may take long: the operation is cancelled when the client disconnects.
    waits: bool = False
    #: Whether the body is streamed.
    streams: bool = False
    #: Whether the last parameter of the path takes the rest of it, slashes included.
    takes_rest: bool = False
    #: Whether it is polled by monitors: logged at debug level unless it failed.
    probe: bool = False
    #: Whether the header `X-Ductile-Status` has the status of the job.
    tells_status: bool = False


def get(path: str, **options: Any) -> HttpRoute:
    return HttpRoute(method="GET", path=path, **options)


def post(path: str, **options: Any) -> HttpRoute:
    return HttpRoute(method="POST", path=path, **options)


class Operation(Value, dict=True):
    name: str
    #: `module:function` in `ductile.operations`, loaded on first use: a starting daemon needs few of them.
    target: str
    summary: str
    access: Access
    #: Changes nothing: works beside a process that holds the store's lock.
    read_only: bool = False
    #: Waits for something, and can be cancelled meanwhile without leaving a change half done. The control
    #: socket cancels it when its client disconnects, and completes all others.
    waits: bool = False
    http: HttpRoute | None = None

    @cached_property
    def function(self) -> Function:
        module, _, name = self.target.partition(":")
        found: Function = getattr(import_module(f"ductile.operations.{module}"), name)
        return found

    @cached_property
    def request_type(self) -> type[Value] | None:
        """None for an operation that still takes and returns JSON objects."""
        _context, (name, annotation), *_ = get_annotations(self.function).items()
        if annotation == "JsonObject":
            return None
        found: type[Value] = get_type_hints(self.function)[name]
        return found

    @cached_property
    def response_types(self) -> tuple[type[Response], ...]:
        returned = get_type_hints(self.function)["return"]
        return get_args(returned) or (returned,)

    @cached_property
    def fields(self) -> Mapping[str, RequestField]:
        return {} if self.request_type is None else request_fields(self.request_type)

    async def run(self, context: OperationContext, values: JsonObject) -> Any:
        """Decode the request, call the function, return its response."""
        if self.request_type is None:
            return await self.function(context, values)
        return await self.function(context, decode_request(self.request_type, values))

    async def run_to_json(self, context: OperationContext, values: JsonObject) -> JsonObject:
        """As `run`; the response as decoded JSON."""
        document: JsonObject = to_builtins(await self.run(context, values))
        return document


# ---------------------------------------------------------------------------------------------- access


#: Returns the scopes of which one is needed, given the configuration and the path's parameters.
ScopesNeeded: TypeAlias = Callable[[Snapshot, Mapping[str, str]], tuple[str, ...]]


class Access(Value):
    """`need` is None where no token is needed."""

    #: As the reference shows it.
    shown: str
    need: ScopesNeeded | None = None
    #: Needs no token where discovery is open; elsewhere any token is enough.
    discovery: bool = False


def requires_scope(resource: AccessResource, level: AccessLevel) -> Access:
    needed = (auth_scope(resource, level),)
    return Access(shown=needed[0], need=lambda _snapshot, _path: needed)


def right_of(command: Command) -> AccessLevel:
    """A command that changes nothing outside needs the right to read only."""
    return AccessLevel.READ if command.type is CommandType.READ else AccessLevel.WRITE


def needed_for(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """The scopes of which one is needed to run a command. An unknown one needs the least: it is a 404."""
    instance = snapshot.plugins.get(plugin)
    if instance is None:
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.READ),)
    declared = instance.installed.manifest.commands.get(command) if instance.installed else None
    right = AccessLevel.READ if declared is None else right_of(declared)
    return (auth_scope(AccessResource.PLUGIN, right), auth_scope(plugin, right))


def needed_to_see(snapshot: Snapshot, plugin: str) -> tuple[str, ...]:
    """The scopes of which one is needed to read what a plugin takes: also that to call it."""
    general = auth_scope(AccessResource.PLUGIN, AccessLevel.READ)
    return (general, auth_scope(plugin, AccessLevel.READ)) if plugin in snapshot.plugins else (general,)


def needed_for_trigger(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """As for the plugin, unless a pipeline is triggered: that may do anything its steps do."""
    if pipelines_on(snapshot, f"{plugin}.{command}"):
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.WRITE),)
    return needed_for(snapshot, plugin, command)


def pipelines_on(snapshot: Snapshot, event_type: str) -> tuple[str, ...]:
    return tuple(name for name, pipeline in snapshot.pipelines.items() if pipeline.on == event_type)


OPEN = Access(shown="none")
DISCOVERY = Access(shown="none while open, else any token", need=lambda _snapshot, _path: (), discovery=True)
JOBS_RO, JOBS_RW = (
    requires_scope(AccessResource.JOBS, AccessLevel.READ),
    requires_scope(AccessResource.JOBS, AccessLevel.WRITE),
)
EVENTS_RO, EVENTS_RW = (
    requires_scope(AccessResource.EVENTS, AccessLevel.READ),
    requires_scope(AccessResource.EVENTS, AccessLevel.WRITE),
)
SYSTEM_RO, SYSTEM_RW = (
    requires_scope(AccessResource.SYSTEM, AccessLevel.READ),
    requires_scope(AccessResource.SYSTEM, AccessLevel.WRITE),
)
PLUGIN_RO, PLUGIN_RW = (
    requires_scope(AccessResource.PLUGIN, AccessLevel.READ),
    requires_scope(AccessResource.PLUGIN, AccessLevel.WRITE),
)
ONE_PLUGIN = Access(
    shown="plugin:ro or {plugin}:ro",
    need=lambda snapshot, path: needed_to_see(snapshot, path["plugin"]),
)
COMMAND = Access(
    shown="plugin or {plugin}, :ro for read commands, :rw for write",
    need=lambda snapshot, path: needed_for(snapshot, path["plugin"], path["command"]),
)
TRIGGER = Access(
    shown="plugin:rw if a pipeline answers, else as for the plugin",
    need=lambda snapshot, path: needed_for_trigger(snapshot, path["plugin"], path["command"]),
)
