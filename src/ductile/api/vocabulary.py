"""Who may ask, and what may be asked for: the access and the parameters that endpoints share."""

from __future__ import annotations

from ductile.api.endpoint import Parameter, ParameterType
from ductile.core.auth_scopes import AccessLevel, AccessResource
from ductile.core.jobs.model import JobStatus, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.http.authentication import Access, requires_scope
from ductile.operations.jobs.log import LOG_ALIASES
from ductile.operations.jobs.query import STATUS_ALIASES
from ductile.operations.plugins import catalogue
from ductile.store.model.records import LARGEST_PAGE

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
DISCOVERY = Access(shown="none while open, else any token", need=lambda _snapshot, _path: (), discovery=True)
ONE_PLUGIN = Access(
    shown="plugin:ro or {plugin}:ro",
    need=lambda snapshot, path: catalogue.needed_to_see(snapshot, path["plugin"]),
)
COMMAND = Access(
    shown="plugin or {plugin}, :ro for read commands, :rw for write",
    need=lambda snapshot, path: catalogue.needed_for(snapshot, path["plugin"], path["command"]),
)
TRIGGER = Access(
    shown="plugin:rw if a pipeline answers, else as for the plugin",
    need=lambda snapshot, path: catalogue.needed_for_trigger(snapshot, path["plugin"], path["command"]),
)

SUBMISSION = ("payload", "dedupe_key", "dedupe_ttl", "state_webhook_url", "state_webhook_events")
#: Of a call whose path says all there is to do.
CHANGE = ("dry_run",)
RESULT = Parameter(
    name="result",
    about="`only`: answer with the `result` and nothing else.",
    schema={"enum": ["only"]},
)
STRICT = Parameter(
    name="strict", kind=ParameterType.FLAG, about="Answer 502 instead of 200 if the run did not succeed."
)
LIMIT = Parameter(
    name="limit",
    kind=ParameterType.NUMBER,
    about="Rows of a page.",
    schema={"minimum": 1, "maximum": LARGEST_PAGE, "default": 50},
)
CURSOR = Parameter(name="cursor", about="`next_cursor` of the page before.")
FILTERS = (
    Parameter(name="job_id", about="Of this job."),
    Parameter(name="plugin", about="Of this plugin."),
    Parameter(name="command", about="Of this command."),
    Parameter(
        name="submitted_by", about="Through this door.", schema={"enum": [str(door) for door in SubmittedBy]}
    ),
    Parameter(name="from", about="Not before this instant.", schema={"format": "date-time"}),
    Parameter(name="to", about="Before this instant.", schema={"format": "date-time"}),
    Parameter(name="query", about="Words that all occur in a result, an error or stderr."),
    LIMIT,
    CURSOR,
)
JOB_STATUS = Parameter(
    name="status",
    about="In this state.",
    schema={"enum": [*(str(status) for status in JobStatus), *STATUS_ALIASES]},
)
LOG_STATUS = Parameter(
    name="status",
    about="That ended so.",
    schema={"enum": [*(str(status) for status in LogStatus), *LOG_ALIASES, "pending"]},
)
