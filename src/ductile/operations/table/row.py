"""Functions and values for the rows of the table of operations."""

from __future__ import annotations

from functools import partial
from typing import Any

from ductile.operations.operation import Access, HttpRoute, Operation


def exclusive(
    name: str, target: str, summary: str, access: Access, http: HttpRoute | None = None, **options: bool
) -> Operation:
    """Return an operation that only the daemon runs, or the process that has the store's lock."""
    return Operation(name=name, target=target, summary=summary, access=access, http=http, **options)


#: Returns an operation that also runs while another process has the store's lock.
read = partial(exclusive, read_only=True)

ONE_JOB = (200, 404, 409)
#: Options of a route whose response is sent when something has changed, or after the request's `timeout`.
LONG_POLL: dict[str, Any] = {"tag": "jobs", "waits": True}
