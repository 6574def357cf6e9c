"""The rights of a session, which the page reads so that it shows nothing that would be refused."""

from __future__ import annotations

from typing import Annotated

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import allows
from ductile.core.jobs.model import LedgerKind
from ductile.http.sessions import BrowserSession
from ductile.operations.operation import (
    OWN_EVENTS_RO,
    Access,
    scopes_for_command,
    scopes_for_pipeline,
    scopes_to_see_plugin,
)
from ductile.operations.table import OPERATIONS
from ductile.struct import Value, about


class SessionView(Value):
    token: Annotated[str, about("The name of the access token.")]
    scopes: tuple[str, ...]
    csrf: Annotated[str, about("Sent with every change as X-CSRF-Token.")]
    operations: Annotated[
        list[str], about("Operations that the session may call for every plugin and pipeline.")
    ]
    events: Annotated[bool, about("Whether the session may follow events.")]
    kinds: Annotated[list[LedgerKind], about("The kinds of events there are.")]
    plugins: Annotated[list[str], about("Plugins that the session may read about.")]
    commands: Annotated[dict[str, list[str]], about("Commands that the session may run, by plugin.")]
    pipelines: Annotated[list[str], about("Pipelines that the session may run.")]
    service: str
    timezone: str
    version: str


def session_view(snapshot: Snapshot, session: BrowserSession) -> SessionView:
    """Return what the page needs to know about its session and the service."""
    scopes = session.token.scopes
    commands = {
        name: [
            command
            for command in (plugin.installed.manifest.commands if plugin.installed else ())
            if allows(scopes, scopes_for_command(snapshot, name, command))
        ]
        for name, plugin in snapshot.plugins.items()
    }
    return SessionView(
        token=session.token.name,
        scopes=scopes,
        csrf=session.csrf,
        operations=[
            name
            for name, operation in OPERATIONS.items()
            if operation.http is not None and _may_call(snapshot, scopes, operation.access)
        ],
        kinds=list(LedgerKind),
        events=_may_call(snapshot, scopes, OWN_EVENTS_RO),
        plugins=[name for name in snapshot.plugins if allows(scopes, scopes_to_see_plugin(snapshot, name))],
        commands={name: allowed for name, allowed in commands.items() if allowed},
        pipelines=[
            name for name in snapshot.pipelines if allows(scopes, scopes_for_pipeline(snapshot, name))
        ],
        service=snapshot.service.name,
        timezone=snapshot.timezone,
        version=__version__,
    )


def _may_call(snapshot: Snapshot, scopes: tuple[str, ...], access: Access) -> bool:
    """Return whether the scopes allow an operation for every plugin and pipeline.

    Rights for single plugins and pipelines are in fields of their own.
    """
    if access.required_scopes is None or access.discovery:
        return True
    anything = {"plugin": "", "command": "", "name": "", "pipeline": ""}
    return allows(scopes, access.required_scopes(snapshot, anything))
