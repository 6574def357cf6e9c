"""How to add an operation: one use case that the HTTP API, the CLI and the control socket share.

An operation has four parts. HTTP parameters, OpenAPI, CLI options, permission checks and reference pages are
derived from them:

1. a request struct: its fields are the parameters of the HTTP endpoint and the options of the CLI command;
2. a response struct: its JSON is the body of the HTTP response;
3. one async function `(context, request) -> response`;
4. one row in `operations/table/`.

The example pauses a schedule. In `operations/schedules/manage.py`:

    class PauseSchedule(Value):
        plugin: Annotated[str, about("Name of the plugin, as it is configured.")]
        schedule: Annotated[str | None, about("Its schedule; may be left out if there is only one.")] = None
        dry_run: DryRun = False

    class SchedulePaused(Response):
        plugin: str
        id: str
        paused: Annotated[bool, about("Whether it is paused now.")]
        dry_run: WasDryRun = UNSET

    async def pause_schedule(context: OperationContext, request: PauseSchedule) -> SchedulePaused:
        entry = await find_schedule(context, request.plugin, request.schedule)
        if not request.dry_run:
            await context.store.pause_schedule(entry.plugin, entry.schedule_id, paused=True)
        return SchedulePaused(
            plugin=entry.plugin,
            id=entry.schedule_id,
            paused=not request.dry_run or entry.paused_at is not None,
            dry_run=request.dry_run or UNSET,
        )

In `operations/table/`:

    Operation(
        name="schedule.pause",
        target="schedules.manage:pause_schedule",
        summary="Pause a schedule; it survives a restart",
        access=JOBS_RW,
        http=post("/schedule/{plugin}/{schedule}/pause", tag="schedules", statuses=(200, 404, 409)),
    )

For the CLI, a function with `@action("pause", "pause a schedule", "schedule.pause")` in
`cli/commands/schedule.py` renders the response. Then `make docs` writes the CLI options and reference pages.

Rules:

- The types are found from the function's annotations, so their modules are imported at run time, not under
  `TYPE_CHECKING`.
- A request field is `str`, `bool`, `int` (with `ge`, `le`), a `StrEnum` (with `extra={"aliases": {...}}` for
  synonyms), `datetime` (as `core/instants.py` reads it), `timedelta` (`5m`) or `dict` (a JSON object),
  and any of them or None. Another type needs `extra={"decode": function}` and `extra_json_schema={...}`.
- A field whose JSON name is a Python keyword: `since: ... = field(name="from", default=None)`.
- Over HTTP, a field named in the path comes from the path; others come from the query (GET) or the body
  (POST), unless `in_query`, `in_header` or `in_local_call` says otherwise (see `operations/request.py`).
- A response field that is always present has no default; one that can be absent is `| UnsetType = UNSET`.
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
from types import MappingProxyType
from typing import Any, TypeAlias, get_args, get_type_hints

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import (
    AccessLevel,
    AccessResource,
    Reach,
    auth_scope,
    decide_reach,
    pipeline_scope,
    sees_only_own,
)
from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext
from ductile.operations.request import RequestField, decode_request, request_fields
from ductile.operations.response import Response
from ductile.protocol.manifest.model import Command, CommandType
from ductile.struct import Value, field, to_builtins

Function: TypeAlias = Callable[[OperationContext, Any], Awaitable[Any]]


class HttpRoute(Value):
    """The HTTP method and path of an operation, and how its requests and responses differ from others."""

    method: str
    #: The path, with parameters in braces: `/job/{job_id}`.
    path: str
    #: Other paths of the same operation.
    aliases: tuple[str, ...] = ()
    #: The `message` of a response that has none of its own; the operation's summary if it is empty.
    message: str = ""
    #: The status of the usual response, then those of other responses and of likely errors.
    statuses: tuple[int, ...] = (200,)
    tag: str = "system"
    #: The JSON Schemas of response bodies in another format than our JSON, by media type.
    content_types: Mapping[str, JsonObject] = field(default_factory=dict)
    #: Whether the operation submits work, which is refused while the daemon stops.
    submits: bool = False
    #: Whether the response may take long: the operation is cancelled when the client disconnects.
    waits: bool = False
    #: Whether the body is streamed.
    streams: bool = False
    #: Whether the last parameter of the path is catch-all: it matches the rest, slashes included.
    is_catch_all: bool = False
    #: Whether monitors poll the endpoint: a successful request is logged at debug level.
    is_polled: bool = False
    #: Whether the header `X-Ductile-Status` has the status of the job.
    sends_status_header: bool = False


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
    #: Whether the operation can run while another process has the store's lock. The `*.follow` operations
    #: change nothing either, but wait for changes that only the daemon publishes.
    read_only: bool = False
    #: Whether the operation waits for something, and can be cancelled meanwhile without leaving a change half
    #: done. The control socket cancels it when its client disconnects, and completes all others.
    waits: bool = False
    http: HttpRoute | None = None

    @cached_property
    def function(self) -> Function:
        module, _, name = self.target.partition(":")
        function: Function = getattr(import_module(f"ductile.operations.{module}"), name)
        return function

    @cached_property
    def request_type(self) -> type[Value]:
        _context, request, *_ = get_annotations(self.function)
        request_type: type[Value] = get_type_hints(self.function)[request]
        return request_type

    @cached_property
    def response_types(self) -> tuple[type[Response], ...]:
        returned = get_type_hints(self.function)["return"]
        return get_args(returned) or (returned,)

    @cached_property
    def fields(self) -> Mapping[str, RequestField]:
        return request_fields(self.request_type)

    async def run(self, context: OperationContext, values: JsonObject) -> Any:
        """Return the response of the function, which sees only the jobs that the caller may reach."""
        starts = self.http is not None and self.http.submits and not self.access.any_token
        reached = within_reach(context, self.access, starts_jobs=starts)
        return await self.function(reached, decode_request(self.request_type, values, reached.now_and_zone))

    async def run_to_json(self, context: OperationContext, values: JsonObject) -> JsonObject:
        """Run the operation like `run`, but return the response as decoded JSON."""
        document: JsonObject = to_builtins(await self.run(context, values))
        return document


# ---------------------------------------------------------------------------------------------- access

NO_PATH: Mapping[str, str] = MappingProxyType({})


#: Returns the scopes of which one is needed, given the configuration and the path's parameters.
RequiredScopes: TypeAlias = Callable[[Snapshot, Mapping[str, str]], tuple[str, ...]]


class Access(Value):
    """The right that a caller of an operation needs."""

    #: The text in the reference pages and in OpenAPI.
    doc_text: str
    #: Returns the scopes; None where no token is needed.
    required_scopes: RequiredScopes | None = None
    #: Needs no token where discovery is open; elsewhere any token is enough.
    discovery: bool = False
    #: Any token is enough: the operation itself asks for the scopes of what it does.
    any_token: bool = False
    #: Of the required scopes, the one that is enough for the token's own jobs.
    own_scope: str | None = None

    def reach(self, granted: tuple[str, ...], snapshot: Snapshot, path: Mapping[str, str] = NO_PATH) -> Reach:
        """Return the jobs for which a token with these scopes may use the operation."""
        if self.required_scopes is None or self.discovery or self.any_token:
            return Reach.ALL
        return decide_reach(granted, self.required_scopes(snapshot, path), self.own_scope)


def requires_scope(resource: AccessResource, level: AccessLevel, *, or_own: bool = False) -> Access:
    """Return the access that a scope gives.

    With `or_own`, a token with the scope `own` of the same level has access to its own jobs.
    """
    own = auth_scope(AccessResource.OWN, level) if or_own else None
    needed = (auth_scope(resource, level), *((own,) if own is not None else ()))
    return Access(
        doc_text=" or ".join(needed), required_scopes=lambda _snapshot, _path: needed, own_scope=own
    )


def within_reach(context: OperationContext, access: Access, *, starts_jobs: bool = False) -> OperationContext:
    """Return the context with the jobs for which the caller has this access.

    Only its own jobs exist if its scope is for these alone, or if it starts jobs and may read no others: the
    duplicate of its call is then never a job of another token. Raises `DeniedError` without a scope, which
    surfaces have checked before.
    """
    scopes = context.source.scopes
    if scopes is None:
        return context
    if access.own_scope is not None:
        reach = access.reach(scopes, context.snapshot())
        if reach is Reach.NONE and access.required_scopes is not None:
            context.require_scope(*access.required_scopes(context.snapshot(), NO_PATH))
        return context.with_own_jobs() if reach is Reach.OWN else context.with_all_jobs()
    return context.with_own_jobs() if starts_jobs and sees_only_own(scopes) else context.with_all_jobs()


def access_level_of(command: Command) -> AccessLevel:
    """Return the access level that running a command needs: read, if the command changes nothing outside."""
    return AccessLevel.READ if command.type is CommandType.READ else AccessLevel.WRITE


def scopes_for_command(snapshot: Snapshot, plugin: str, command: str | None) -> tuple[str, ...]:
    """Return the scopes of which one is needed to run a command.

    An unknown plugin or command needs the least: the operation does not find it. Without
    a command, they are the scopes of the default: `poll` if the plugin has it, else `handle`.
    """
    instance = snapshot.plugins.get(plugin)
    if instance is None:
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.READ),)
    commands = instance.installed.manifest.commands if instance.installed else {}
    declared = commands.get(command or ("poll" if "poll" in commands else "handle"))
    right = AccessLevel.READ if declared is None else access_level_of(declared)
    return (auth_scope(AccessResource.PLUGIN, right), auth_scope(plugin, right))


def scopes_to_run_by_name(snapshot: Snapshot, name: str) -> tuple[str, ...]:
    """Return the scopes of which one is enough to run any command of a plugin, or else a pipeline."""
    general = auth_scope(AccessResource.PLUGIN, AccessLevel.WRITE)
    if name in snapshot.plugins:
        return (general, auth_scope(name, AccessLevel.WRITE))
    return scopes_for_pipeline(snapshot, name)


def scopes_for_pipeline(snapshot: Snapshot, name: str) -> tuple[str, ...]:
    """Return the scopes of which one is needed to run a pipeline."""
    general = auth_scope(AccessResource.PLUGIN, AccessLevel.WRITE)
    return (general, pipeline_scope(name)) if name in snapshot.pipelines else (general,)


def scopes_to_see_plugin(snapshot: Snapshot, plugin: str) -> tuple[str, ...]:
    """Return the scopes of which one is needed to read about a plugin: for all plugins, or for this one."""
    general = auth_scope(AccessResource.PLUGIN, AccessLevel.READ)
    return (general, auth_scope(plugin, AccessLevel.READ)) if plugin in snapshot.plugins else (general,)


def scopes_for_trigger(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """Return the scopes of which one is needed for a trigger: those for its pipeline, else for the plugin."""
    if triggered := pipelines_started_by(snapshot, f"{plugin}.{command}"):
        # Several pipelines are an error, which the operation raises.
        return scopes_for_pipeline(snapshot, triggered[0] if len(triggered) == 1 else "")
    return scopes_for_command(snapshot, plugin, command)


def pipelines_started_by(snapshot: Snapshot, event_type: str) -> tuple[str, ...]:
    return tuple(name for name, pipeline in snapshot.pipelines.items() if pipeline.on == event_type)


OPEN = Access(doc_text="none")
DISCOVERY = Access(
    doc_text="none while open, else any token", required_scopes=lambda _snapshot, _path: (), discovery=True
)
ANY_TOKEN = Access(
    doc_text="any token; a tool needs the scope of its operation",
    required_scopes=lambda _snapshot, _path: (),
    any_token=True,
)
JOBS_RO, JOBS_RW = (
    requires_scope(AccessResource.JOBS, AccessLevel.READ),
    requires_scope(AccessResource.JOBS, AccessLevel.WRITE),
)
EVENTS_RO, EVENTS_RW = (
    requires_scope(AccessResource.EVENTS, AccessLevel.READ),
    requires_scope(AccessResource.EVENTS, AccessLevel.WRITE),
)
#: The same as JOBS_RO, JOBS_RW and EVENTS_RO; `own:ro` and `own:rw` allow them for a token's own jobs.
OWN_JOBS_RO, OWN_JOBS_RW, OWN_EVENTS_RO = (
    requires_scope(AccessResource.JOBS, AccessLevel.READ, or_own=True),
    requires_scope(AccessResource.JOBS, AccessLevel.WRITE, or_own=True),
    requires_scope(AccessResource.EVENTS, AccessLevel.READ, or_own=True),
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
    doc_text="plugin:ro or {plugin}:ro",
    required_scopes=lambda snapshot, path: scopes_to_see_plugin(snapshot, path["plugin"]),
)
RUN_COMMAND = Access(
    doc_text="plugin or {plugin}, :ro for read commands, :rw for write",
    required_scopes=lambda snapshot, path: scopes_for_command(snapshot, path["plugin"], path.get("command")),
)
RUN_BY_NAME = Access(
    doc_text="plugin:rw; {name}:rw for a plugin, pipeline:{name} for a pipeline",
    required_scopes=lambda snapshot, path: scopes_to_run_by_name(snapshot, path["name"]),
)
RUN_PIPELINE = Access(
    doc_text="plugin:rw or pipeline:{pipeline}",
    required_scopes=lambda snapshot, path: scopes_for_pipeline(snapshot, path["pipeline"]),
)
RUN_TRIGGER = Access(
    doc_text="as for the pipeline if one answers, else as for the plugin",
    required_scopes=lambda snapshot, path: scopes_for_trigger(snapshot, path["plugin"], path["command"]),
)
