"""Functions and values for the rows of the table of operations."""

from __future__ import annotations

from functools import partial
from typing import Any

from ductile.operations.operation import Access, HttpRoute, Operation


def exclusive(
    name: str, target: str, summary: str, access: Access, http: HttpRoute | None = None, **options: bool
) -> Operation:
    """Return an operation that runs in the daemon, or in the process that has the lock of the store.

    It writes, or it reads something that only this process has.
    """
    return Operation(name=name, target=target, summary=summary, access=access, http=http, **options)


#: Returns an operation that also runs while another process has the store's lock.
read = partial(exclusive, read_only=True)

#: HTTP statuses of routes with the id of a job, the success first. 409: a part of an id fits several jobs.
ONE_JOB_STATUSES = (200, 404, 409)
#: Options of a route whose response is sent when something has changed, or after the request's `timeout`.
LONG_POLL: dict[str, Any] = {"tag": "jobs", "waits": True}
