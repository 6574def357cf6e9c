"""Sign in to the dashboard from the command line."""

from __future__ import annotations

from typing import Annotated

from ductile.core.host_names import host_of
from ductile.errors import ConflictError, DaemonNotRunningError
from ductile.operations.context import OperationContext
from ductile.operations.request import NoFields
from ductile.operations.response import Response
from ductile.operations.tokens.sign_in_links import VALID_SECONDS
from ductile.struct import about

#: Listen addresses that mean every interface; a browser on this machine reaches them as `localhost`.
_EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class SignInLink(Response):
    url: Annotated[str, about("Opens the dashboard, signed in with all rights. Valid once.")]
    valid_seconds: int


async def create_sign_in_link(context: OperationContext, _request: NoFields) -> SignInLink:
    """Return a link for one sign-in. Raises `ConflictError` if no dashboard is served."""
    links = context.sign_in_links
    if links is None:
        raise DaemonNotRunningError("no daemon is running", hint="Start it with `ductile system start`.")
    settings = context.snapshot().api
    if not settings.enabled:
        raise ConflictError(
            "there is no dashboard: the HTTP API is not enabled",
            hint="Set api.enabled to true and give the API a token: `ductile token create`.",
        )
    if not settings.ui:
        raise ConflictError("the dashboard is switched off", hint="Remove `ui: false` from the section api.")
    # The host as it is configured, with the port that was bound.
    host = settings.listen.rpartition(":")[0]
    if host_of(settings.listen) in _EVERY_INTERFACE:
        host = "localhost"
    port = (links.address or settings.listen).rpartition(":")[2]
    # The code is in the fragment, which browsers do not send: no proxy and no log sees it.
    url = f"http://{host}:{port}/ui#open={links.issue()}"
    return SignInLink(url=url, valid_seconds=int(VALID_SECONDS))
